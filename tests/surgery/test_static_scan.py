"""Dropout that is not a layer: found by reading, and counted by watching."""

import functools
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import contdrop as cd
from contdrop.surgery import count_dropout, unreachable


def helper(x, rate, training):
    return torch.nn.functional.dropout(x, p=rate, training=training)


def of_a_module(module, x):
    return F.dropout(x, module.options.rate, module.training)


class Functional(nn.Module):
    """A module whose forward is the given function."""

    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


class Constant(Functional):
    def forward(self, x):
        return F.dropout(x, 0.3, self.training)


class Default(Functional):
    def forward(self, x):
        return F.dropout(x, training=self.training)


class Attribute(Functional):
    def forward(self, x):
        return torch.dropout(x, self.p, self.training)


class Configured(Functional):
    def forward(self, x):
        return F.dropout(x, p=self.options.rate if self.training else 0.0)


class Variable(Functional):
    def forward(self, x):
        rate = self.dropout_rate if self.training else 0.0
        return F.dropout(x, rate)


class ByHelper(Functional):
    def forward(self, x):
        return helper(x, 0.15, self.training)


class ByMethod(Functional):
    def forward(self, x):
        return self._masked(x, rate=self.p)

    def _masked(self, x, rate=0.0):
        return F.dropout(x, rate, self.training)


class HandedOn(Functional):
    def forward(self, x):
        return of_a_module(self, x)


class ByHand(Functional):
    def forward(self, x):
        return x * (torch.rand_like(x) > self.drop_prob) / (1 - self.drop_prob)


class InPlace(Functional):
    def forward(self, x):
        return x * x.new_empty(len(x), 1, 1).bernoulli_(0.9)


class Attention(Functional):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.drop.p if self.training else 0.0)


class InAList(Functional):
    def forward(self, x):
        return self.layers[0](x)


class Own(nn.Dropout):
    def forward(self, x):
        return F.dropout(x, self.p, self.training)


class ByParent(Constant):
    def forward(self, x):
        return super().forward(x).relu()


class ByParentOfOld(Constant):
    def forward(self, x):
        return super(ByParentOfOld, self).forward(x).relu()  # noqa: UP008


class ByNameOfParent(ByMethod):
    def forward(self, x):
        return ByMethod._masked(self, x, rate=self.p)


class OtherName(Functional):
    def forward(this, x):  # noqa: N805
        return F.dropout(x, this.p, this.training)


class Computed(Functional):
    @property
    def rate(self):
        raise AssertionError("nobody asked for it")

    def forward(self, x):
        return F.dropout(x, self.rate if self.told else 0.3, self.training)


class Normal(Functional):
    def forward(self, x):
        return x * torch.normal(1.0, 0.5, x.shape)


class FilledNormal(Functional):
    def forward(self, x):
        return x * torch.empty_like(x).normal_(1, 0.5)


class FilledUniform(Functional):
    def forward(self, x):
        return x * x.new_empty(x.shape).uniform_()


class Randn(Functional):
    def forward(self, x):
        return x * (1 + torch.randn(x.shape))


class Sampled(Functional):
    def forward(self, x):
        return x * torch.distributions.Bernoulli(0.7).sample(x.shape)


class SampledLater(Functional):
    def forward(self, x):
        noise = torch.distributions.Normal(torch.ones_like(x), 0.3)
        return x * noise.rsample()


class Held(Functional):
    def forward(self, x):
        return self.masked(x)


class HeldAndTold(Functional):
    def forward(self, x):
        return self.masked(x, self.p, self.training)


class Settings(NamedTuple):
    rate: float


class SlottedSettings:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class LookedUpSettings(dict):
    def __getattr__(self, name):
        return self[name]


class OwnRate(nn.Dropout):
    @property
    def p(self):
        raise AssertionError("nobody asked for it")

    @p.setter
    def p(self, rate):
        self.rate = rate

    def forward(self, x):
        return F.dropout(x, self.rate, self.training)


class Never(Functional):
    """Dropout that is off, or used for something else."""

    def forward(self, x):
        x = F.dropout(x, 0.3, training=False)
        x = F.dropout(x, 0.0, self.training)
        x = F.dropout(x, self.dropout_rate, self.training)
        if self.drop.p > 0:
            x = self.drop(x)
        return x


class Initialised(Functional):
    """Random numbers that are no mask: parameters that are made at the first call."""

    def forward(self, x):
        if not self.ready:
            nn.init.normal_(self.weight)
            nn.init.uniform_(self.bias)
            self.weight.data.normal_()
        return F.linear(x, self.weight, self.bias)


X = torch.ones(2, 4, 8)


MODULES = [
    (Constant(), 0.3),
    (Default(), 0.5),
    (Attribute(p=0.1), 0.1),
    *[(Configured(options=kind(rate=0.2)), 0.2) for kind in (types.SimpleNamespace, Settings)],
    *[(Configured(options=kind(rate=0.2)), 0.2) for kind in (SlottedSettings, LookedUpSettings)],
    (Variable(dropout_rate=0.25), 0.25),
    (ByHelper(), 0.15),
    (ByMethod(p=0.35), 0.35),
    (HandedOn(options=types.SimpleNamespace(rate=0.2)), 0.2),
    (ByHand(drop_prob=0.4), 0.4),
    (InPlace(), None),
    (ByParent(), 0.3),
    (ByParentOfOld(), 0.3),
    (ByNameOfParent(p=0.35), 0.35),
    (OtherName(p=0.1), 0.1),
    (Computed(told=False), None),
    (Normal(), None),
    (FilledNormal(), None),
    (FilledUniform(), None),
    (Randn(), None),
    (Sampled(), None),
    (SampledLater(), None),
    (Held(masked=F.dropout), 0.5),
    (Held(masked=functools.partial(F.dropout, p=0.2)), 0.2),
    (HeldAndTold(masked=F.dropout, p=0.3), 0.3),
    (HeldAndTold(masked=torch.dropout, p=0.3), 0.3),
    (Attention(drop=nn.Dropout(0.2)), 0.2),
    (InAList(layers=[nn.Dropout(0.2)]), 0.2),
    (Own(0.2), 0.2),
    (OwnRate(0.2), None),
    (InAList(layers=[OwnRate(0.2)]), None),
    (nn.LSTM(8, 8, 3, dropout=0.2, batch_first=True), 0.2),
    (nn.GRU(8, 8, 2, dropout=0.2, bidirectional=True), 0.2),
]


@pytest.mark.parametrize(("module", "rate"), MODULES, ids=lambda value: type(value).__name__)
def test_what_is_drawn_is_listed(module, rate):
    model = nn.Sequential(nn.Dropout(0.0), module)
    swap = cd.swap_dropout(model, "bernoulli", match="variance")
    calls = count_dropout(model, X)
    assert {call.module for call in calls.others} <= {each.name for each in swap.unreachable} | {""}
    assert calls.others
    assert not calls.ours
    ((name, what, found),) = swap.unreachable
    assert name == "1"
    assert found == (None if rate is None else pytest.approx(rate))
    assert what


@pytest.mark.parametrize(
    "module",
    [
        Never(dropout_rate=0.0, drop=nn.Dropout(0.2)),
        nn.LSTM(8, 8, 1, batch_first=True),
        nn.LSTM(8, 8, 2, batch_first=True),
        ByHand(drop_prob=0.0),
        Attribute(p=0.0),
        Attribute(p=None),
        HeldAndTold(masked=F.dropout, p=0.0),
        Held(masked=torch.relu),
        Held(masked=nn.ReLU()),
        Initialised(),
        Own(0.0),
    ],
)
def test_what_is_off_is_not_listed(module):
    assert unreachable(nn.Sequential(module)) == []


def test_multihead_attention():
    model = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
    assert unreachable(model) == [("MultiheadAttention", "attention probabilities", 0.1)]
    assert unreachable(nn.MultiheadAttention(8, 2)) == []
    for need_weights in (True, False):
        (call,) = count_dropout(model, X, X, X, need_weights=need_weights).calls
        assert call.module == "MultiheadAttention"
        assert call.rate == pytest.approx(0.1)


def test_the_class_below_parametrizations_is_read():
    model = nn.Sequential(parametrize_identity(Weighted()), parametrize_identity(nn.Linear(8, 8)))
    assert unreachable(model) == [("0", "functional dropout (dropout)", 0.3)]
    assert [call.module for call in count_dropout(model, X).others] == ["0"]


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x):
        return F.dropout(F.linear(x, self.weight), 0.3, self.training)


def parametrize_identity(module):
    return nn.utils.parametrize.register_parametrization(module, "weight", nn.Identity())


def test_no_code_of_the_model_is_run():
    """A property may be a parametrization that counts its calls, keep what it gives, or raise."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
            self.gain = nn.Parameter(torch.zeros(3))
            self.drop = nn.Dropout(0.5)
            self.many = [Raising()]

        @functools.cached_property
        def total(self):
            return self.gain.sum()

        @property
        def dropout_table(self):
            raise RuntimeError("call prepare() first")

        def forward(self, x):
            x = F.linear(x, self.linear.weight) * self.total * self.dropout_table
            return self.drop(x) + self.many[0].p

    class Raising:
        @property
        def p(self):
            raise RuntimeError("no rate")

    model = Model()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert cd.swap_dropout(model, "gaussian").unreachable == []
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert "total" not in vars(model)


def test_code_without_source():
    scope = {"nn": nn, "F": F, "torch": torch}
    exec(
        "class Made(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.dropout_rate = 0.2\n"
        "    def forward(self, x):\n        return F.dropout(x, self.dropout_rate, self.training)\n",
        scope,
    )
    assert unreachable(scope["Made"]()) == [("Made", "functional dropout (rate self.dropout_rate)", 0.2)]


def test_traced_models():
    class Net(nn.Module):
        def forward(self, x):
            return F.dropout(x.relu(), 0.3, True)

    traced = torch.fx.symbolic_trace(Net())
    ((_, what, rate),) = unreachable(traced)
    assert (what, rate) == ("functional dropout (dropout)", 0.3)


def test_our_own_layers_that_are_more_than_a_mask_are_listed():
    found = unreachable(nn.Sequential(cd.DropConnectLinear(2, 2), cd.AdaptiveDropout()))
    assert found == [("0", "masks of DropConnectLinear", 0.5), ("1", "masks of AdaptiveDropout", None)]


def test_layers_that_are_more_than_a_mask_are_listed_with_their_rate():
    rates = {}
    for law in (cd.Bernoulli(keep=0.0), cd.Bernoulli(keep=0.75), cd.Gaussian(sigma=0.0)):
        found = unreachable(torch.nn.Sequential(cd.DropConnectLinear(4, 4, law=law), torch.nn.Dropout()))
        rates[str(law)] = [each.rate for each in found]
    assert list(rates.values()) == [[1.0], [pytest.approx(0.25)], []]
