"""Dropout that is counted by watching a forward pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import contdrop as cd
from architectures import Constant
from contdrop._torch import private
from contdrop.surgery import DropoutCalls, changed, count_dropout

X = torch.ones(2, 4, 8)
HEADS = torch.randn(2, 2, 6, 8)


@pytest.mark.parametrize(
    ("draw", "rates"),
    [
        (lambda x: F.dropout(x, 0.3), [0.3]),
        (lambda x: F.dropout(x + 0, 0.3, inplace=True), [0.3]),
        (lambda x: torch.native_dropout(x, 0.3, True), [0.3]),
        (lambda x: F.dropout1d(x, 0.3), [0.3]),
        (lambda x: F.alpha_dropout(x, 0.3, True), [0.3]),
        (lambda x: F.dropout(x, 0.3, False), []),
        (lambda x: F.dropout(x, 0.0), []),
        (lambda x: F.scaled_dot_product_attention(HEADS, HEADS, HEADS, dropout_p=0.2), [0.2]),
        (lambda x: F.scaled_dot_product_attention(HEADS, HEADS, HEADS), []),
        (lambda x: torch.rand_like(x) * x, [None]),
        (lambda x: torch.bernoulli(x * 0.5), [None]),
        (lambda x: x + torch.randn(8), [None]),
        (lambda x: x * torch.normal(1.0, 0.5, x.shape), [None]),
        (lambda x: x * torch.normal(torch.ones_like(x), 0.5), [None]),
    ],
)
@pytest.mark.parametrize("with_gradient", [True, False])
def test_draws_of_torch(draw, rates, with_gradient):
    x = X.clone().requires_grad_(with_gradient)
    with DropoutCalls(nn.Identity()) as calls:
        y = draw(x)
        if with_gradient and getattr(y, "requires_grad", False):
            y.sum().backward()
    assert [call.rate for call in calls.calls] == [rate if rate is None else pytest.approx(rate) for rate in rates]
    assert calls.others == calls.calls


@pytest.mark.parametrize(
    "layer",
    [
        cd.GaussianDropout(0.3),
        cd.BernoulliDropout(0.3, shared_axes=(0,)),
        cd.UniformDropout(generator=torch.Generator().manual_seed(0)),
        cd.GaussianDropout(0.3, activation="relu"),
        cd.DropConnectLinear(8, 3),
        cd.DropConnectLinear(8, 3, masks="batch"),
        cd.FastDropoutLinear(8, 3, law=cd.Uniform()),
    ],
)
def test_draws_of_ours_are_counted_once(layer):
    model = nn.Sequential(nn.Linear(8, 8), layer)
    with DropoutCalls(model) as calls:
        model(X).sum().backward()
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=False, context_fn=cd.checkpoint_context)
    assert [(call.module, call.ours) for call in calls.calls] == [("1", True)] * 2
    with DropoutCalls(model) as calls:
        model.eval()(X)
    assert not calls.calls or isinstance(layer, cd.DropConnectLinear)


def test_a_pass_that_counts_leaves_no_trace():
    own = torch.Generator().manual_seed(4)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2), cd.UniformDropout(generator=own)).eval()
    model[1].train()
    x = torch.randn(5, 8)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator, of_the_layer = torch.get_rng_state(), own.get_state()
    calls = count_dropout(model, x)
    assert calls.sites == {"1": 1, "3": 1}
    assert [module.training for module in model.modules()] == [False, False, True, False, False]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(own.get_state(), of_the_layer)
    model(x)
    assert len(calls.calls) == 2  # it looks no more


def test_buffers_that_a_model_assigns_are_put_back(monkeypatch):
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("average", torch.zeros(8))
            self.register_buffer("first", None)

        def forward(self, x):
            self.average = 0.9 * self.average + 0.1 * x.mean((0, 1))
            self.first = x[0]
            self.register_buffer("last", x[-1])
            return x - self.average

    model = Averaging()
    average = model.average
    count_dropout(model, X)
    assert model.average is average
    assert torch.equal(average, torch.zeros(8))
    assert model.first is None
    assert "first" in model._buffers
    assert not hasattr(model, "last")
    # Without a look at torch's own table, what was None is not told from what was not there.
    monkeypatch.setattr(private, "_without", {"_buffers"})
    count_dropout(model, X)
    assert model.average is average
    assert not hasattr(model, "last")


def test_an_error_in_the_model_ends_the_watch():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout())
    with pytest.raises(RuntimeError):
        count_dropout(model, torch.ones(2, 3))
    calls = count_dropout(model, X)
    assert calls.sites == {"1": 1}


def test_what_was_counted_is_printed():
    model = nn.Sequential(nn.Dropout(0.2), Constant(), cd.UniformDropout(), nn.ReLU())
    calls = count_dropout(model, X)
    assert repr(calls) == "3 draws of dropout: 1 by contdrop in 2; 2 by torch in 0, 1"
    assert repr(count_dropout(nn.ReLU(), X)) == "0 draws of dropout"
    with DropoutCalls(model) as calls:
        F.dropout(X)
    assert repr(calls) == "1 draw of dropout: 1 by torch in no module"


def test_how_many_places_were_changed():
    model = nn.Sequential(nn.Dropout(0.2), Constant(), nn.Dropout(0.0))
    before = count_dropout(model, X)
    assert changed(before, before) == (0, 2)
    swap = cd.swap_dropout(model, "uniform")
    assert changed(before, count_dropout(model, X)) == (2, 3)
    swap.undo()
    cd.swap_dropout(model, None)
    assert changed(before, count_dropout(model, X)) == (1, 2)
