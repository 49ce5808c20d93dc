"""Dropout that is not a layer: found by reading, and counted by watching."""

import dataclasses
import functools
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import contdrop as cd
from architectures import Constant, WithAttributes
from contdrop.surgery import count_dropout, unreachable


def helper(x, rate, training):
    return torch.nn.functional.dropout(x, p=rate, training=training)


def of_a_module(module, x):
    return F.dropout(x, module.options.rate, module.training)


class Forwards:
    """Ways to draw, or not; each becomes the forward of a class."""

    def default(self, x):
        return F.dropout(x, training=self.training)

    def attribute(self, x):
        return torch.dropout(x, self.p, self.training)

    def configured(self, x):
        return F.dropout(x, p=self.options.rate if self.training else 0.0)

    def variable(self, x):
        rate = self.dropout_rate if self.training else 0.0
        return F.dropout(x, rate)

    def by_helper(self, x):
        return helper(x, 0.15, self.training)

    def handed_on(self, x):
        return of_a_module(self, x)

    def by_hand(self, x):
        return x * (torch.rand_like(x) > self.drop_prob) / (1 - self.drop_prob)

    def in_place(self, x):
        return x * x.new_empty(len(x), 1, 1).bernoulli_(0.9)

    def attention(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.drop.p if self.training else 0.0)

    def in_a_list(self, x):
        return self.layers[0](x)

    def other_name(this, x):  # noqa: N805
        return F.dropout(x, this.p, this.training)

    def normal(self, x):
        return x * torch.normal(1.0, 0.5, x.shape)

    def filled_normal(self, x):
        return x * torch.empty_like(x).normal_(1, 0.5)

    def filled_uniform(self, x):
        return x * x.new_empty(x.shape).uniform_()

    def randn(self, x):
        return x * (1 + torch.randn(x.shape))

    def sampled(self, x):
        return x * torch.distributions.Bernoulli(0.7).sample(x.shape)

    def sampled_later(self, x):
        noise = torch.distributions.Normal(torch.ones_like(x), 0.3)
        return x * noise.rsample()

    def held(self, x):
        return self.masked(x)

    def held_and_told(self, x):
        return self.masked(x, self.p, self.training)

    def off(self, x):
        x = F.dropout(x, 0.3, training=False)
        x = F.dropout(x, 0.0, self.training)
        x = F.dropout(x, self.dropout_rate, self.training)
        if self.drop.p > 0:
            x = self.drop(x)
        return x

    def called_settings(self, x):
        return self.options(x)

    def named_like_the_function(self, x, rand=torch.relu):  # as in the adapters of peft
        dropout = self.parts["adapter"]
        return rand(dropout(x))

    def initialized(self, x):  # random numbers that are no mask: parameters that are made at the first call
        if not self.ready:
            nn.init.normal_(self.weight)
            nn.init.uniform_(self.bias)
            self.weight.data.normal_()
        return F.linear(x, self.weight, self.bias)


def module(forward, **attributes):
    return type(forward, (WithAttributes,), {"forward": vars(Forwards)[forward]})(**attributes)


class ByMethod(WithAttributes):
    def forward(self, x):
        return self._masked(x, rate=self.p)

    def _masked(self, x, rate=0.0):
        return F.dropout(x, rate, self.training)


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


class Computed(WithAttributes):
    @property
    def rate(self):
        raise AssertionError("nobody asked for it")

    def forward(self, x):
        return F.dropout(x, self.rate if self.told else 0.3, self.training)


class Settings(NamedTuple):
    rate: float


@dataclasses.dataclass(slots=True)
class SlottedSettings:
    rate: float


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


X = torch.ones(2, 4, 8)
SETTINGS = (types.SimpleNamespace, Settings, SlottedSettings, LookedUpSettings)
MODULES = [
    (Constant(), 0.3),
    (module("default"), 0.5),
    (module("attribute", p=0.1), 0.1),
    *[(module("configured", options=kind(rate=0.2)), 0.2) for kind in SETTINGS],
    (module("variable", dropout_rate=0.25), 0.25),
    (module("by_helper"), 0.15),
    (ByMethod(p=0.35), 0.35),
    (module("handed_on", options=types.SimpleNamespace(rate=0.2)), 0.2),
    (module("by_hand", drop_prob=0.4), 0.4),
    (ByParent(), 0.3),
    (ByParentOfOld(), 0.3),
    (ByNameOfParent(p=0.35), 0.35),
    (module("other_name", p=0.1), 0.1),
    (Computed(told=False), None),
    *[(module(name), None) for name in ("in_place", "normal", "filled_normal", "filled_uniform", "randn")],
    *[(module(name), None) for name in ("sampled", "sampled_later")],
    (module("held", masked=F.dropout), 0.5),
    (module("held", masked=functools.partial(F.dropout, p=0.2)), 0.2),
    (module("held_and_told", masked=F.dropout, p=0.3), 0.3),
    (module("held_and_told", masked=torch.dropout, p=0.3), 0.3),
    (module("attention", drop=nn.Dropout(0.2)), 0.2),
    (module("in_a_list", layers=[nn.Dropout(0.2)]), 0.2),
    (Own(0.2), 0.2),
    (OwnRate(0.2), None),
    (module("in_a_list", layers=[OwnRate(0.2)]), None),
    (nn.LSTM(8, 8, 3, dropout=0.2, batch_first=True), 0.2),
    (nn.GRU(8, 8, 2, dropout=0.2, bidirectional=True), 0.2),
]


@pytest.mark.parametrize(("drawing", "rate"), MODULES, ids=lambda value: type(value).__name__)
def test_what_is_drawn_is_listed(drawing, rate):
    model = nn.Sequential(nn.Dropout(0.0), drawing)
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
    "quiet",
    [
        module("off", dropout_rate=0.0, drop=nn.Dropout(0.2)),
        nn.LSTM(8, 8, 1, batch_first=True),
        nn.LSTM(8, 8, 2, batch_first=True),
        module("by_hand", drop_prob=0.0),
        module("attribute", p=0.0),
        module("attribute", p=None),
        module("held_and_told", masked=F.dropout, p=0.0),
        module("held", masked=torch.relu),
        module("held", masked=nn.ReLU()),
        module("initialized"),
        module("called_settings", options=LookedUpSettings(rate=0.2)),
        module("named_like_the_function", parts=nn.ModuleDict({"adapter": nn.Dropout(0.2)})),
        Own(0.0),
    ],
)
def test_what_is_off_is_not_listed(quiet):
    assert unreachable(nn.Sequential(quiet)) == []


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


def parametrize_identity(layer):
    return nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())


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
    ((_, what, rate),) = unreachable(torch.fx.symbolic_trace(Constant()))
    assert (what, rate) == ("functional dropout (dropout)", 0.3)


def test_our_own_function_is_listed():
    class Ours(WithAttributes):
        def forward(self, x):
            return cd.functional.dropout(x, self.law)

    assert unreachable(Ours(law=cd.Uniform())) == [("Ours", "functional dropout (dropout)", None)]


def test_layers_that_are_more_than_a_mask_are_listed_with_their_rate():
    found = unreachable(nn.Sequential(cd.DropConnectLinear(2, 2), cd.AdaptiveDropout()))
    assert found == [("0", "masks of DropConnectLinear", 0.5), ("1", "masks of AdaptiveDropout", None)]
    rates = {}
    for law in (cd.Bernoulli(keep=0.0), cd.Bernoulli(keep=0.75), cd.Gaussian(sigma=0.0)):
        found = unreachable(torch.nn.Sequential(cd.DropConnectLinear(4, 4, law=law), torch.nn.Dropout()))
        rates[str(law)] = [each.rate for each in found]
    assert list(rates.values()) == [[1.0], [pytest.approx(0.25)], []]
