"""Laws that change during training."""

import math

import pytest
from torch import nn

import contdrop as cd
from contdrop.schedules import Schedule, cosine, linear


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 4), nn.Dropout(0.1))


def test_straight_and_curved():
    straight = linear("gaussian:sigma=0.1", cd.Gaussian(sigma=0.5))
    assert [straight(t).sigma for t in (0, 0.25, 1)] == pytest.approx([0.1, 0.2, 0.5])
    curved = cosine("bernoulli:keep=1", "bernoulli:keep=0.5")
    assert [curved(t).keep for t in (0, 1 / 3, 0.5, 1)] == pytest.approx([1, 0.875, 0.75, 0.5])
    unclipped = linear(*(cd.Gaussian(sigma=s, mu=1.0, low=-math.inf, high=math.inf) for s in (0.1, 0.3)))
    assert unclipped(0.5) == cd.Gaussian(sigma=0.2, mu=1.0, low=-math.inf, high=math.inf)
    # The end is exact, although 0.2 + (0.9 - 0.2) is not.
    assert linear("gaussian:sigma=0.2", "gaussian:sigma=0.9")(1.0) == cd.Gaussian(sigma=0.9)


def test_steps_reach_the_end_and_stay():
    net = model()
    swap = cd.swap_dropout(net, "gaussian:sigma=0.3", only="1")
    schedule = Schedule(swap, linear("gaussian:sigma=0", "gaussian:sigma=0.4"), steps=4)
    assert net[1].law.sigma == 0
    assert [schedule.step().sigma for _ in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert net[1].law == cd.Gaussian(sigma=0.4)
    assert type(net[3]) is nn.Dropout
    assert schedule.at(0.5).sigma == net[1].law.sigma == pytest.approx(0.2)


def test_resume():
    net = model()
    cd.swap_dropout(net, "uniform")
    course = linear("uniform:low=0.5,high=0.6", "uniform")
    schedule = Schedule(net, course, steps=10)
    for _ in range(3):
        schedule.step()
    again = Schedule(net, course, steps=10)
    again.load_state_dict(schedule.state_dict())
    assert net[1].law == net[3].law == course(0.3)
    assert again.step() == schedule.step()


def test_every_layer_with_a_law_follows():
    net = nn.Sequential(cd.UniformDropout(), cd.DropConnectLinear(4, 4), cd.FastDropoutLinear(4, 4, law=cd.Uniform()))
    Schedule(net, linear("gaussian:sigma=0.2", "gaussian:sigma=0.4"), steps=2).step()
    assert [layer.law.sigma for layer in net] == pytest.approx([0.3] * 3)
    connect = nn.Sequential(cd.DropConnectLinear(4, 4))
    Schedule(connect, linear("uniform", "uniform"))
    assert connect[0].law == cd.Uniform()


def test_any_function_and_it_prints_where_it_is():
    net = nn.Sequential(cd.UniformDropout(), cd.UniformDropout())
    schedule = Schedule(net, lambda done: cd.Uniform() if done > 0.3 else cd.Bernoulli(keep=0.9), steps=4)
    assert net[0].law == cd.Bernoulli(keep=0.9)
    schedule.step()
    schedule.step()
    assert net[0].law == cd.Uniform()
    assert repr(schedule) == "Schedule(2 of 4 steps, 2 layers, now Uniform())"


PLAIN = nn.Sequential(cd.UniformDropout())


def test_refusals(code_refusals):
    code_refusals("schedule_refusals", globals())
