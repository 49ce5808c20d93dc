"""Dropout layers that do the work of the ReLU before them: the same numbers, and nothing where it could be seen."""

import pytest
import torch
from torch import nn

import contdrop as cd
from conformance import bit_equal


def network(*units):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), *units, nn.Linear(5, 2))


def run(model):
    torch.manual_seed(3)
    x = torch.randn(4, 6, requires_grad=True)
    y = model(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


@pytest.mark.parametrize("training", [True, False])
def test_the_same_numbers(training):
    model = network(nn.ReLU(), cd.GaussianDropout(sigma=0.3)).train(training)
    names, expected = list(model.state_dict()), run(model)
    assert cd.fuse_relu(model) == ["2"]
    assert isinstance(model[1], nn.Identity)
    assert model[2].activation == "relu"
    assert list(model.state_dict()) == names
    assert bit_equal(run(model), expected)
    assert cd.fuse_relu(model) == []
    assert cd.fuse_relu(nn.ModuleDict({"inner": network(nn.ReLU(), cd.UniformDropout())})) == ["inner.2"]


def _hooked(module, register="register_forward_hook"):
    getattr(module, register)(lambda *_: None)
    return module


class Mine(nn.ReLU):
    def forward(self, x):
        return x.relu() + 1


@pytest.mark.parametrize(
    "units",
    [
        lambda: (_hooked(nn.ReLU()), cd.UniformDropout()),
        lambda: (_hooked(nn.ReLU(), "register_full_backward_hook"), cd.UniformDropout()),
        lambda: (nn.ReLU(), _hooked(cd.UniformDropout(), "register_forward_pre_hook")),
        lambda: (nn.ReLU(inplace=True), cd.UniformDropout()),
        lambda: (nn.ReLU(), cd.UniformDropout(inplace=True)),
        lambda: (nn.ReLU(), cd.UniformDropout(activation="relu")),
        lambda: (Mine(), cd.UniformDropout()),
        lambda: (nn.ReLU(), nn.Identity(), cd.UniformDropout()),
        lambda: (nn.ReLU(), nn.Dropout()),
        lambda: [nn.ReLU(), *[cd.UniformDropout()] * 2],
        lambda: (nn.ReLU(), cd.UniformDropout(), nn.LeakyReLU(inplace=True)),
        lambda: (nn.ReLU(), cd.UniformDropout(), nn.Identity(), nn.Flatten(), nn.Dropout(0.0), nn.ELU(inplace=True)),
        lambda: (nn.ReLU(), cd.UniformDropout(), nn.Sequential(nn.Sequential(nn.SiLU(inplace=True)), nn.Linear(5, 5))),
        lambda: (nn.ReLU(), cd.UniformDropout(), nn.ModuleDict({"first": nn.SiLU(inplace=True)})),
    ],
    ids=[
        *["hook", "backward", "pre-hook", "relu-inplace", "inplace", "fused", "subclass", "apart", "torch's", "twice"],
        *["before-inplace", "before-a-view", "before-a-sequence", "before-a-block"],
    ],
)
def test_nothing_where_somebody_could_see_it(units):
    model = network(*units())
    before = list(model)
    assert cd.fuse_relu(model) == []
    assert all(a is b for a, b in zip(model, before, strict=True))


class Both(nn.Sequential):
    def forward(self, x):
        features = self[0](x)
        return features + self[1](features)


def test_nothing_in_a_container_with_a_forward_of_its_own():
    assert cd.fuse_relu(Both(nn.ReLU(), cd.UniformDropout())) == []


def test_nothing_at_the_end_of_a_part_that_is_written_into():
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), cd.UniformDropout()), nn.ReLU(inplace=True))
    expected = run(model)
    assert cd.fuse_relu(model) == []
    assert bit_equal(run(model), expected)


@pytest.mark.parametrize(
    "last", [nn.Linear(5, 5), nn.LeakyReLU(), nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True))]
)
def test_what_comes_later_may_work_in_place(last):
    model = network(nn.ReLU(), cd.UniformDropout(), last, nn.Linear(5, 5), nn.ReLU(inplace=True))
    expected = run(model)
    assert cd.fuse_relu(model) == ["2"]
    assert bit_equal(run(model), expected)


def test_a_swap_does_not_fuse_before_what_works_in_place():
    model = network(nn.ReLU(), nn.Dropout(0.3), nn.LeakyReLU(inplace=True))
    assert cd.swap_dropout(model, "gaussian", fuse_relu=True).fused == []
    run(model)


def test_writing_into_the_result_of_a_fused_layer_never_gives_wrong_gradients():
    """As the documentation says: torch refuses it. On older ones the layer keeps its input, and it works."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), cd.GaussianDropout(0.3))
    cd.fuse_relu(model)
    torch.manual_seed(0)
    (expected,) = torch.autograd.grad((model(torch.ones(2, 4)) + 1).sum(), model[0].bias)
    torch.manual_seed(0)
    y = model(torch.ones(2, 4))
    y += 1
    found, refused = expected, "modified by an inplace operation"
    try:
        (found,) = torch.autograd.grad(y.sum(), model[0].bias)
    except RuntimeError as error:
        refused = str(error)
    assert torch.equal(found, expected)
    assert "modified by an inplace operation" in refused


def test_a_relu_in_two_places_is_replaced_in_one():
    relu = nn.ReLU()
    model = nn.Sequential(relu, cd.UniformDropout(), nn.Linear(3, 3), relu)
    assert cd.fuse_relu(model) == ["1"]
    assert model[3] is relu


def test_a_swap_fuses_what_it_puts_in_and_undoes_it():
    model = nn.Sequential(network(nn.ReLU(), nn.Dropout(0.2)), nn.ReLU(), cd.UniformDropout(), nn.ReLU(), nn.Dropout())
    before = list(model.named_modules(remove_duplicate=False))
    plain = cd.swap_dropout(model, "gaussian:sigma=0.3", only=["0.2"])
    expected = run(model)
    assert plain.fused == []
    plain.undo()
    swap = cd.swap_dropout(model, "gaussian:sigma=0.3", only=["0.2"], fuse_relu=True)
    assert swap.fused == ["0.2"]
    assert [type(model[0][1]), type(model[1]), type(model[3])] == [nn.Identity, nn.ReLU, nn.ReLU]
    assert bit_equal(run(model), expected)
    swap.undo()
    after = list(model.named_modules(remove_duplicate=False))
    assert all(a == b and one is other for (a, one), (b, other) in zip(after, before, strict=True))


def test_undoing_a_swap_does_not_lose_a_relu_that_was_fused_later():
    model = network(nn.ReLU(), nn.Dropout(0.2))
    swap = cd.swap_dropout(model, "uniform")
    cd.fuse_relu(model)
    with pytest.raises(
        RuntimeError, match=r"^undo: expected 2 as swap_dropout made it, but fuse_relu put the ReLU before"
    ):
        swap.undo()
    assert isinstance(model[2], cd.Dropout)
