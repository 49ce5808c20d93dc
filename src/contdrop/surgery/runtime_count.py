"""Dropout that a model draws in a forward pass, counted below torch's functions.

All dropout ends in a few operators of torch, whether a layer, a function or an attention kernel asks for it. A dispatch
mode sees these operators, and forward hooks tell which module runs.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from .._text import plural, some_of
from .._torch.private import TORCH_DROPOUTS, DispatchMode, argument, in_backward, own_buffers
from ..kernels import STREAM_BIAS
from .dropout_layers import restored_generators, switched

# Torch's operators that draw a mask, and others from which a mask may be made by hand.
_BERNOULLI = {"aten::bernoulli", "aten::bernoulli_"}
_DROPOUT = {"aten::native_dropout", "aten::_fused_dropout"}
_RECURRENT = {"aten::_cudnn_rnn", "aten::miopen_rnn"}
_RANDOM = {f"aten::{name}" for name in ("rand", "rand_like", "randn", "randn_like", "uniform_", "normal", "normal_")}
_OURS = {f"contdrop::{name}" for name in ("dropout", "keep_where", "dropconnect")}


class Call(NamedTuple):
    """One draw of dropout.

    Attributes:
        module: Name of the innermost running module; for the model itself, that of its class.
        operator: Operator that drew.
        rate: Drop rate, if the operator has it as an argument.
        ours: True for operators of contdrop.
    """

    module: str
    operator: str
    rate: float | None
    ours: bool


class DropoutCalls(DispatchMode):
    """Context manager that records every draw of dropout::

        with DropoutCalls(model) as calls:
            model(x)
        print(len(calls.ours), len(calls.others))

    Records torch's dropout operators, ``bernoulli_``, attention and recurrent operators with a rate above 0, random
    numbers from which a mask may be made by hand, and contdrop's operators; each draw of a forward pass once. A rate of
    exactly 0 or 1 draws nothing and is not seen, nor are compiled models.

    Attributes:
        calls: All draws, in order.
        layers: Names of the model's dropout layers.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
        self.layers = {self._names[id(module)] for module in model.modules() if isinstance(module, TORCH_DROPOUTS)}
        self._running: list[str] = []
        self._hooks: list[Any] = []

    @property
    def ours(self) -> list[Call]:
        return [call for call in self.calls if call.ours]

    @property
    def others(self) -> list[Call]:
        return [call for call in self.calls if not call.ours]

    @property
    def sites(self) -> Counter[str]:
        """Number of draws by module."""
        return Counter(call.module for call in self.calls)

    def __repr__(self) -> str:
        parts = [
            f"{len(drawn)} by {who} in {some_of(dict.fromkeys(call.module or 'no module' for call in drawn))}"
            for who, drawn in (("contdrop", self.ours), ("torch", self.others))
            if drawn
        ]
        return f"{plural(len(self.calls), 'draw')} of dropout" + (f": {'; '.join(parts)}" if parts else "")

    def __enter__(self) -> DropoutCalls:
        before = register_module_forward_pre_hook(self._begin)
        self._hooks = [before, register_module_forward_hook(self._end, always_call=True)]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._running.clear()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not in_backward() and (drawn := _drawn(op, args, kwargs)) is not None:
            # The name of the innermost running module.
            self.calls.append(Call(self._running[-1] if self._running else "", op.name(), *drawn))
        return op(*args, **kwargs)

    def _begin(self, module: torch.nn.Module, _: Any) -> None:
        if id(module) in self._names:
            self._running.append(self._names[id(module)])

    def _end(self, module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if id(module) in self._names and self._running:
            self._running.pop()


def _drawn(op: Any, args: Any, kwargs: Any) -> tuple[float | None, bool] | None:
    """Return the rate at which an operator drops, and whether it is contdrop's; None if it drops nothing."""
    name = op.name().partition(".")[0]
    if name in _OURS:
        # DropConnect masks its bias by a second operator.
        return None if argument(op, "stream", args, kwargs) == STREAM_BIAS else (None, True)
    if name in _BERNOULLI:
        keep = argument(op, "p", args, kwargs)
        return (1 - keep if isinstance(keep, float) else None), False
    if name in _RANDOM:
        return None, False
    rate = None
    if name in _DROPOUT and argument(op, "train", args, kwargs) is not False:
        rate = argument(op, "p", args, kwargs)
    elif name in _RECURRENT and argument(op, "train", args, kwargs):
        rate = argument(op, "dropout", args, kwargs)
    elif "attention" in name:
        rate = argument(op, "dropout_p", args, kwargs)
    return (rate, False) if rate else None


def count_dropout(model: torch.nn.Module, *inputs: Any, **named: Any) -> DropoutCalls:
    """Run a model once in training mode, and count the dropout it draws.

    Modes, buffers (such as the averages of batch normalisation) and generators are restored.

    Args:
        model: Any model.
        *inputs: Positional arguments of the model.
        **named: Keyword arguments of the model.

    Example:
        >>> count_dropout(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2)), torch.ones(2, 4))
        1 draw of dropout: 1 by torch in 1
    """
    return count_dropout_in(model, lambda: model(*inputs, **named))


def count_dropout_in(model: torch.nn.Module, run: Callable[[], object]) -> DropoutCalls:
    """Count the dropout of a model that ``run`` calls; see :func:`count_dropout`."""
    with _restored(model), torch.no_grad(), DropoutCalls(model) as calls:
        run()
    return calls


def changed(before: DropoutCalls, after: DropoutCalls) -> tuple[int, int]:
    """Return how many modules that drew dropout, before or after a change, draw none of torch's now; and their number.

    A module that draws contdrop's dropout, or none, was changed.
    """
    left = {call.module for call in after.others}
    # A layer of contdrop in place of another one has the same name.
    added = {call.module for call in after.ours if call.module in after.layers}
    places = {*before.sites, *left, *added}
    return len(places - left), len(places)


@contextlib.contextmanager
def _restored(model: torch.nn.Module) -> Iterator[None]:
    """Put the model into training mode; restore modes, buffers and generators at the end."""
    tables = [(module, own_buffers(module)) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with restored_generators(model.modules()), switched(model):
        try:
            model.train()
            yield
        finally:
            # A forward may have assigned other buffers to their names, or registered new ones.
            for module, table in tables:
                now = own_buffers(module)
                for name in now.keys() - table.keys():
                    delattr(module, name)
                for name, buffer in table.items():
                    if name not in now or now[name] is not buffer:
                        setattr(module, name, buffer)
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
