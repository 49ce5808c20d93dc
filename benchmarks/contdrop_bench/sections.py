"""The sections of the benchmark: each takes its measurements and returns them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import contdrop as cd

from . import contestants, environment
from .contestants import BERNOULLI, GAUSSIAN, LAWS, NN_DROPOUT, Contestant, Inputs, InTorch
from .results import BOTH, STEP, Report, Saved, Timing
from .timing import Call, interleave

# The name of a stage and the number of its rounds; gives what is to be called after every round.
Stage = Callable[[str, int], contextlib.AbstractContextManager[Callable[[], None]]]

SECTIONS = ("elementwise", "types", "memory", "step", "dropconnect")
SMALL, LARGE = (128, 800), (1024, 4096)
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAIN = "no dropout"
DOUBLED = "x * 2"
BATCH, LAYERS = 100, (784, 800, 800, 10)
DROPCONNECT = (100, 800, 800)  # examples, outputs, inputs
FUSED = {BERNOULLI: f"{BERNOULLI}, relu inside", GAUSSIAN: f"{GAUSSIAN}, relu inside"}
MATERIALISED = {BERNOULLI: "torch, masks stored, Bernoulli(0.5)", GAUSSIAN: "torch, masks stored, Gaussian(0.3)"}

_MANY = 10**7  # from here on a call takes so long that fewer rounds have to do


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to measure."""

    sections: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    rounds: int
    steps: int
    compiled: bool

    @property
    def few_rounds(self) -> int:
        return max(1, self.rounds // 3)

    @property
    def stages(self) -> int:
        return len(self.sections) - 1 + len(self.sizes) if "elementwise" in self.sections else len(self.sections)


def elementwise(settings: Settings, who: list[Contestant], stage: Stage) -> list[Timing]:
    """Forward and forward+backward in float32, at every size."""
    timings = []
    for shape in settings.sizes:
        inputs = Inputs.of(shape)
        calls = {(one.name, passes): call for one in who for passes, call in one.passes(inputs).items()}
        rounds = settings.few_rounds if inputs.x.numel() >= _MANY else settings.rounds
        with stage(f"elementwise {shape_text(shape)}", rounds) as after_round:
            times = interleave(calls, rounds, after_round=after_round)
        timings += [Timing(name, shape, "float32", passes, tuple(s)) for (name, passes), s in times.items()]
    return timings


def types(settings: Settings, stage: Stage) -> list[Timing]:
    """Forward+backward in every type, all in the same rounds."""
    who = [contestants.layer(BERNOULLI), contestants.layer(GAUSSIAN), contestants.nn_dropout()]
    calls = {}
    for dtype in TYPES:
        inputs = Inputs.of(LARGE, dtype)
        calls.update({(one.name, str(dtype).removeprefix("torch.")): one.passes(inputs)[BOTH] for one in who})
    with stage(f"types {shape_text(LARGE)}", settings.rounds) as after_round:
        times = interleave(calls, settings.rounds, after_round=after_round)
    return [Timing(name, LARGE, dtype, BOTH, tuple(seconds)) for (name, dtype), seconds in times.items()]


def memory(who: list[Contestant], stage: Stage) -> list[Saved]:
    """Bytes that autograd holds between forward and backward."""
    in_torch = [one for one in who if isinstance(one, InTorch)]
    inputs = Inputs.of(LARGE)
    found = []
    with stage(f"memory {shape_text(LARGE)}", len(in_torch)) as after_round:
        for one in in_torch:
            found.append(Saved(one.name, LARGE, saved_bytes(one.make(inputs), inputs.x)))
            after_round()
    return found


def saved_bytes(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Bytes that the graph of a function's result keeps for backward, each storage counted once.

    Autograd's hooks report what is saved by its own means. What a node written in Python holds as an attribute they
    cannot see, so the graph is searched for it: tensors, and whole numbers, which count eight bytes.
    """
    storages: dict[int, int] = {}
    numbers = 0

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = function(x)
    for node in _nodes(y.grad_fn):
        for value in _saved(getattr(node, "__dict__", {})):
            if isinstance(value, Tensor):
                pack(value)
            else:
                numbers += 8
    return sum(storages.values()) + numbers


def _nodes(last: Any) -> Iterator[Any]:
    """All nodes of a graph but those that accumulate the gradients of leaves."""
    found, waiting = set(), [last]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found and type(node).__name__ != "AccumulateGrad":
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node


def _saved(value: Any) -> Iterator[Tensor | int]:
    if isinstance(value, Tensor) or type(value) is int:
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _saved(item)


def step(settings: Settings, stage: Stage) -> list[Timing]:
    """A whole step of training 784-800-800-10 by SGD, alternating between the networks."""
    relu = torch.nn.ReLU
    makers: dict[str, Callable[[], list[torch.nn.Module]]] = {
        PLAIN: lambda: [relu()],
        DOUBLED: lambda: [relu(), _Doubled()],
        NN_DROPOUT: lambda: [relu(), torch.nn.Dropout(0.5)],
        BERNOULLI: lambda: [relu(), cd.Dropout(LAWS[BERNOULLI])],
        GAUSSIAN: lambda: [relu(), cd.Dropout(LAWS[GAUSSIAN])],
        FUSED[BERNOULLI]: lambda: [cd.Dropout(LAWS[BERNOULLI], activation="relu")],
        FUSED[GAUSSIAN]: lambda: [cd.Dropout(LAWS[GAUSSIAN], activation="relu")],
    }
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, LAYERS[0], generator=generator)
    target = torch.randint(LAYERS[-1], (BATCH,), generator=generator)
    calls = {name: _training_step(make, x, target) for name, make in makers.items()}
    with stage("training step", settings.steps) as after_round:
        times = interleave(calls, settings.steps, shortest=0.0, after_round=after_round)
    return [Timing(name, (BATCH, LAYERS[0]), "float32", STEP, tuple(seconds)) for name, seconds in times.items()]


class _Doubled(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def _training_step(unit: Callable[[], list[torch.nn.Module]], x: Tensor, target: Tensor) -> Call:
    first, second, third = (torch.nn.Linear(i, o) for i, o in itertools.pairwise(LAYERS))
    network = torch.nn.Sequential(first, *unit(), second, *unit(), third)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def call() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return call


def dropconnect(settings: Settings, stage: Stage) -> list[Timing]:
    """A mask of weights per example, forward+backward: contdrop against masks stored in memory."""
    examples, outputs, inputs = DROPCONNECT
    x = torch.randn(examples, inputs, requires_grad=True)
    gradient = torch.ones(examples, outputs)
    calls: dict[str, Call] = {}
    for name, mask in ((BERNOULLI, _bernoulli_masks), (GAUSSIAN, _gaussian_masks)):
        linear = cd.DropConnectLinear(inputs, outputs, law=LAWS[name])
        leaves = (x, linear.weight, linear.bias)
        calls[name] = _forward_backward(linear, leaves, gradient)
        calls[MATERIALISED[name]] = _forward_backward(_materialised(linear, mask), leaves, gradient)
    with stage("DropConnect " + shape_text(DROPCONNECT), settings.few_rounds) as after_round:
        times = interleave(calls, settings.few_rounds, after_round=after_round)
    return [Timing(name, DROPCONNECT, "float32", BOTH, tuple(seconds)) for name, seconds in times.items()]


def _forward_backward(function: Callable[[Tensor], Tensor], leaves: tuple[Any, ...], gradient: Tensor) -> Call:
    return lambda: torch.autograd.grad(function(leaves[0]), leaves, gradient)


def _bernoulli_masks() -> Tensor:
    return torch.bernoulli(torch.full(DROPCONNECT, 0.5)).mul_(2)


def _gaussian_masks() -> Tensor:
    return torch.randn(DROPCONNECT).mul_(0.3).add_(0.5).clamp_(0, 1).mul_(2)


def _materialised(linear: torch.nn.Linear, masks: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.bmm(masks() * linear.weight, x.unsqueeze(2)).squeeze(2) + linear.bias


def shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def measure(settings: Settings, stage: Stage, command: str) -> Report:
    """Measure the chosen sections; the report names the ``command``, so that anyone can repeat it."""
    asked = {
        "command": command,
        "sections": list(settings.sections),
        "sizes": [list(shape) for shape in settings.sizes],
        "rounds": settings.rounds,
        "steps": settings.steps,
        "compiled": settings.compiled,
        "freed_memory_kept": environment.keep_freed_memory(),
    }
    report = Report(environment.describe(), asked, left_out={})
    who: list[Contestant] = []
    if {"elementwise", "memory"} & set(settings.sections):
        who, report.left_out = contestants.elementwise(settings.compiled)
    others = environment.Others()
    for section in settings.sections:
        if section == "elementwise":
            report.elementwise = elementwise(settings, who, stage)
        elif section == "types":
            report.types = types(settings, stage)
        elif section == "memory":
            report.memory = memory(who, stage)
        elif section == "step":
            report.step = step(settings, stage)
        else:
            report.dropconnect = dropconnect(settings, stage)
    report.environment["others"] = others.share()
    return report
