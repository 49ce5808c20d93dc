"""Swap and undo on ten architectures leave nothing behind, and what is out of reach is listed, all of it."""

import logging
from collections import Counter

import pytest
import torch

import contdrop as cd
from architectures import ARCHITECTURES
from contdrop.errors import UserError
from contdrop.lab.study.apply_method import apply
from contdrop.surgery import changed, count_dropout

logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture(params=ARCHITECTURES)
def built(request):
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[request.param]()
    return model.train(), inputs


def outputs(model, inputs):
    model.eval()
    with torch.no_grad():
        found = model(**inputs)
    model.train()
    return found if isinstance(found, torch.Tensor) else found.logits


@pytest.mark.parametrize("law", ["gaussian:sigma=0.3", "uniform", None])
def test_swap_and_undo_leave_nothing_behind(built, law):
    model, inputs = built
    modules = list(model.named_modules(remove_duplicate=False))
    state = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    evaluated, drawn = outputs(model, inputs), count_dropout(model, **inputs).calls
    swap = cd.swap_dropout(model, law)
    assert swap.replaced
    assert torch.equal(outputs(model, inputs), evaluated)
    assert list(model.state_dict()) == list(state)
    count_dropout(model, **inputs)
    swap.undo()
    assert torch.equal(outputs(model, inputs), evaluated)
    after = list(model.named_modules(remove_duplicate=False))
    assert [name for name, _ in after] == [name for name, _ in modules]
    assert all(now is then for (_, now), (_, then) in zip(after, modules))
    assert list(model.state_dict()) == list(state)
    for name, value in model.state_dict(keep_vars=True).items():
        assert value is state[name][0]
        assert torch.equal(value, state[name][1])
    assert count_dropout(model, **inputs).calls == drawn


@pytest.mark.parametrize("law", ["gaussian:sigma=0.3", None])
def test_what_is_out_of_reach_is_listed_and_nothing_else_is(built, law):
    model, inputs = built
    before = count_dropout(model, **inputs)
    swap = cd.swap_dropout(model, law)
    calls = count_dropout(model, **inputs)
    listed = Counter(each.name for each in swap.unreachable)
    # Every draw is by a layer that was put in, or by a place in the list; and every place in the list draws.
    assert {call.module for call in calls.ours} <= swap.replaced.keys()
    assert {call.module for call in calls.others} == listed.keys()
    rates = {each.name: each.rate for each in swap.unreachable}
    for call in calls.others:
        assert call.rate == pytest.approx(rates[call.module], abs=1e-6)
    if law is None:
        assert not calls.ours
    else:
        assert len(calls.calls) >= len(before.calls)
        drew = {call.module for call in before.calls} - listed.keys()
        assert drew <= {call.module for call in calls.ours}


def test_matched_strength_leaves_rates_as_they_were(built):
    model, inputs = built
    before = count_dropout(model, **inputs)
    applied = apply("bernoulli:match", model)
    after = count_dropout(model, **inputs)
    assert Counter(after.sites) == Counter(before.sites)
    rates = {call.module: call.rate for call in before.calls}
    assert all(call.rate == pytest.approx(rates[call.module]) for call in after.others)
    sites = len(before.sites)
    assert changed(before, after) == (sites - len(applied.unreachable), sites)
    for name, noise in applied.noise.items():
        if name in rates:
            assert noise["relative_variance"] == pytest.approx(rates[name] / (1 - rates[name]))


# torch's own transformer and T5 have linear, ReLU and dropout in a row, but in Python code that torch.fx cannot follow.
@pytest.mark.parametrize("method", ["adaptive", "dropconnect", "fast"])
def test_methods_that_do_not_fit_are_refused(built, method):
    model, _ = built
    modules = list(model.modules())
    with pytest.raises(UserError) as error:
        apply(method, model)
    assert str(error.value).startswith(f"{method}:")
    assert "expected a linear layer, ReLU or sigmoid, and dropout that follow each other" in str(error.value)
    assert "\n" not in str(error.value)
    assert all(now is then for now, then in zip(model.modules(), modules))
