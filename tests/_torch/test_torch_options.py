"""Options that torch's own layers have mean here what they mean there: p, inplace, numbers of NumPy's types."""

import inspect
import typing

import numpy as np
import pytest
import torch

import contdrop as cd
import contdrop.functional as F
from conformance import bit_equal, fixed, seeded

LAYERS = [
    *(cd.BernoulliDropout, cd.UniformDropout, cd.GaussianDropout),
    *(cd.Dropout, cd.DropConnectLinear, cd.FastDropoutLinear),
]
# p.


def test_p_of_constant_and_of_centred_laws():
    assert cd.GaussianDropout(0.0).p == 0
    assert cd.Dropout(cd.Uniform(-1, 1), scale="paper").p == 1
    assert [cd.BernoulliDropout(p).p for p in (0.0, 0.1, 0.5, 1.0)] == [0.0, 0.1, 0.5, 1.0]


def test_p_that_follows_from_the_law_is_not_assigned():
    with pytest.raises(AttributeError, match=r"GaussianDropout: p follows from the law.*assign law"):
        cd.GaussianDropout(0.3).p = 0.1


# Parameters of the law.


def test_parameters_of_the_law_are_read_and_assigned():
    layer = cd.GaussianDropout(0.2, mu=0.4)
    assert (layer.sigma, layer.mu, layer.low, layer.high) == (0.2, 0.4, 0.0, 1.0)
    layer.sigma = 0.4
    assert layer.law == cd.Gaussian(mu=0.4, sigma=0.4)
    layer.low, layer.high = -1.0, 2.0
    assert layer.law == cd.Gaussian(mu=0.4, sigma=0.4, low=-1.0, high=2.0)
    with pytest.raises(ValueError, match="sigma"):
        layer.sigma = -1
    uniform = cd.UniformDropout(0.2, 0.7)
    assert (uniform.low, uniform.high) == (0.2, 0.7)
    uniform.high = 0.9
    assert uniform.law == cd.Uniform(0.2, 0.9)


def test_an_assigned_sigma_is_the_one_that_masks_are_drawn_with():
    layer, x = cd.GaussianDropout(0.2), torch.ones(50)
    layer.sigma = 0.5
    assert torch.equal(seeded(layer, x), seeded(cd.GaussianDropout(0.5), x))


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16])
def test_numbers_of_numpy_are_numbers(number):
    x, layer, same = torch.ones(20), cd.BernoulliDropout(number(0.25)), cd.BernoulliDropout(0.25)
    assert repr(layer) == repr(same)
    assert torch.equal(seeded(layer, x), seeded(same, x))
    gate = cd.AdaptiveDropout(number(0.5), beta=number(0.25)).eval()
    assert torch.equal(gate(x, x), cd.AdaptiveDropout(0.5, beta=0.25).eval()(x, x))
    assert cd.DropConnectLinear(3, 2, samples=np.int64(7)).samples == 7


def test_whole_numbers_of_numpy_are_whole_numbers():
    model, x, whole = torch.nn.Sequential(torch.nn.Linear(3, 2), cd.GaussianDropout(0.3)), torch.ones(4, 3), np.int64
    predicted = cd.mc_predict(model, x, whole(5), seed=whole(1))
    assert torch.equal(predicted.mean, cd.mc_predict(model, x, 5, seed=1).mean)
    options = {"repeats": 4, "chunk": 2, "seed": 1}
    found = cd.coadaptation(model, x, ["1"], **{name: whole(value) for name, value in options.items()})
    assert torch.equal(found.pairs("1"), cd.coadaptation(model, x, ["1"], **options).pairs("1"))
    assert cd.schedules.Schedule(model, lambda fraction: cd.Gaussian(sigma=fraction), whole(3)).steps == 3
    assert cd.GaussianDropout(0.3, shared_axes=[whole(1)]).shared_axes == (1,)


# Signatures.


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_signatures_are_explicit_and_choices_are_literals(layer):
    hints = typing.get_type_hints(layer.__init__)
    for name, parameter in inspect.signature(layer).parameters.items():
        assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), name
        if name in ("scale", "masks", "inference", "activation"):
            assert typing.get_origin(hints[name]) is typing.Literal
            assert parameter.default in typing.get_args(hints[name])


# inplace, beside torch.nn.Dropout(inplace=True).


def both():
    return [torch.nn.Dropout(0.5, True), cd.BernoulliDropout(0.5, True), cd.GaussianDropout(0.3, inplace=True)]


@pytest.mark.parametrize("layer", both(), ids=repr)
def test_inplace_returns_its_input_with_the_result(layer):
    x = torch.ones(64)
    version = x._version
    y = layer(x)
    assert y is x
    assert x._version > version
    assert not torch.equal(x, torch.ones(64))
    unchanged = x.clone()
    assert layer.eval()(x) is x
    assert torch.equal(x, unchanged)


@pytest.mark.parametrize("layer", both(), ids=repr)
def test_inplace_is_refused_where_torch_refuses_it(layer):
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        layer(torch.ones(4, requires_grad=True))
    with pytest.raises(RuntimeError, match="single memory location"):
        layer(torch.ones(1).expand(4))
    # What another function kept for backward has been overwritten.
    x = torch.ones(8, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        layer(x.exp()).sum().backward()


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"scale": "paper"}, {"shared_axes": (1,)}], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("law", [cd.Bernoulli(keep=0.5), cd.Gaussian(sigma=0.3)], ids=str)
def test_inplace_gives_the_numbers_and_gradients_of_the_plain_layer(law, training, options):
    results = []
    for inplace in (False, True):
        layer = cd.Dropout(law, inplace=inplace, **options).train(training)
        leaf = fixed(6, 5).requires_grad_()
        x = leaf * 1
        y = seeded(layer, x)
        changes = training or "activation" in options or "scale" in options
        assert (y is x) == (inplace or not changes)
        results.append([y, *torch.autograd.grad(y.square().sum(), leaf)])
    assert bit_equal(*results)


def test_inplace_is_shown_by_repr_and_known_to_the_function():
    assert repr(cd.BernoulliDropout(0.5, True)) == "BernoulliDropout(p=0.5, inplace=True)"
    x = torch.ones(9)
    assert F.dropout(x, cd.Uniform(), inplace=True) is x
