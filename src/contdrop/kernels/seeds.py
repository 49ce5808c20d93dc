"""Seeds of calls.

Each call draws one 64-bit seed on the CPU, from the caller's generator or torch's default one. So ``torch.manual_seed``
governs every mask on every device, and the ``randomness`` of ``torch.func.vmap`` decides whether examples share a seed.

Under torch.compile an operator of ours draws the seed, because the compiler replaces torch's random functions by its
own generator, and masks would differ from eager ones. The operator is registered with an effect: otherwise the compiler
merges two draws into one, and two layers silently share a mask. Versions of torch without effects break the graph at
the draw instead.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch import private
from .ops import LIBRARY

LIMIT = 2**63 - 1


def draw_seed(generator: torch.Generator | None) -> Tensor:
    """Draw the seed of one call: an int64 scalar tensor on the CPU."""
    if torch.compiler.is_compiling():
        return _draw_in_graph(generator)
    if generator is None:
        return torch.randint(LIMIT, (), device="cpu")
    return _own.draw(generator, ())


class _OwnGenerators(threading.local):
    """Draws from layers' own generators, recorded or replayed inside ``checkpoint_context``."""

    def __init__(self) -> None:
        self.recording: list[Tensor] | None = None
        self.replaying: Iterator[Tensor] | None = None

    def draw(self, generator: torch.Generator, size: Sequence[int]) -> Tensor:
        if self.replaying is not None:
            seed = next(self.replaying, None)
            if seed is None:
                raise RuntimeError(
                    "checkpoint_context: the function drew more seeds when it was run again than the first time"
                )
        elif private.in_backward():
            raise RuntimeError(
                "a dropout layer with a generator of its own ran again inside backward, where activation checkpointing "
                "restores only torch's default generators, so its mask would differ; call checkpoint(..., "
                "use_reentrant=False, context_fn=contdrop.checkpoint_context) or give the layer no generator"
            )
        else:
            seed = torch.randint(LIMIT, size, generator=generator, device="cpu")
        if self.recording is not None:
            self.recording.append(seed)
        return seed


_own = _OwnGenerators()
# The contexts of checkpoint_context that are open, in any thread; the fast path declines meanwhile.
contexts: list[object] = []


class _Seeds(contextlib.AbstractContextManager[None]):
    """Context that records the seeds of layers' own generators, or replays them."""

    def __init__(self, seeds: list[Tensor], *, replay: bool) -> None:
        self.seeds, self.replay = seeds, replay

    def __enter__(self) -> None:
        contexts.append(self)
        self.outer = _own.recording, _own.replaying
        if self.replay:
            _own.replaying = iter(self.seeds)
        else:
            _own.recording = self.seeds

    def __exit__(self, *_: object) -> None:
        contexts.remove(self)
        _own.recording, _own.replaying = self.outer
        if not self.replay and _own.recording is not None:
            _own.recording.extend(self.seeds)


def checkpoint_context() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Keep the masks of layers with their own generator under activation checkpointing.

    ``torch.utils.checkpoint.checkpoint`` runs a function again in backward. It restores torch's default generators, so
    layers without a generator need nothing. For the others::

        checkpoint(block, x, use_reentrant=False, context_fn=contdrop.checkpoint_context)
    """
    seeds: list[Tensor] = []
    return _Seeds(seeds, replay=False), _Seeds(seeds, replay=True)


# The operator for torch.compile.

# A graph cannot hold a torch.Generator, so it holds the generator's id.
_generators: weakref.WeakValueDictionary[int, torch.Generator] = weakref.WeakValueDictionary()


def _remember(generator: torch.Generator) -> int:
    _generators[id(generator)] = generator
    return id(generator)


private.mark_constant(_remember)


def _kernel(generator: int, size: list[int]) -> Tensor:
    if generator == 0:
        return torch.randint(LIMIT, size, device="cpu")
    if generator not in _generators:
        raise RuntimeError(
            "a compiled or exported dropout layer lost the generator it was traced with; compile or export it again"
        )
    return _own.draw(_generators[generator], size)


def _by_operator(generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return _operator(0, [])
    if _break_graph is not None:
        return _break_graph(generator)
    handle = id(generator)  # makes the compiled code check that it is still the same object
    _remember(generator)
    return _operator(handle, [])


def _between_graphs(generator: torch.Generator | None) -> Tensor:
    if torch.compiler.is_compiling():  # an export, which cannot break its graph
        raise RuntimeError(
            f"contdrop: torch {torch.__version__} cannot put a random draw of ours into a graph, so an exported model "
            "would use one mask for ever; export it in evaluation mode"
        )
    return draw_seed(generator)


_break_graph: Any = None
if not private.GENERATORS_IN_GRAPHS:
    _break_graph = torch.compiler.disable(_between_graphs)
_draw_in_graph: Callable[[torch.Generator | None], Tensor]
if private.DRAWS_IN_GRAPHS:
    LIBRARY.define("draw_seed(int generator, SymInt[] size) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    LIBRARY.impl("draw_seed", _kernel, "CompositeExplicitAutograd")
    _operator: Any = torch.ops.contdrop.draw_seed.default
    LIBRARY.impl("draw_seed", functools.partial(private.draw_under_vmap, _operator), "FuncTorchVmapMode")
    torch.library.register_fake(
        "contdrop::draw_seed", lambda _, size: torch.empty(size, dtype=torch.int64, device="cpu"), lib=LIBRARY
    )
    private.register_draw(LIBRARY, "contdrop::draw_seed", _operator)
    _draw_in_graph = _by_operator
else:
    _draw_in_graph = _break_graph
