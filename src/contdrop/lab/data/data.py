"""Data of a study, their division into parts, and the batches of the training loop.

All random choices have seeds of their own, so that in a run all methods see the same examples, in the same order, with
the same augmentation. A batch of arrays in memory is one ``index_select`` per tensor.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor
from torch.utils.data import Subset

from ...errors import UserError, mistake
from ..training import random_streams
from . import fingerprints, inputs, splits
from .batch import map_leaves
from .inputs import Arrays, Examples, Items
from .loaders import BatchBuilder, Loaders, requests
from .splits import Positions

_ONCE = "data"  # the stage of what is drawn once for all runs
_COPIED_BYTES = 2**28  # a part of arrays up to this size is copied out, which saves an indirection per batch


@dataclass(frozen=True, eq=False)
class Data:
    """The data of a study.

    A part is ``(x, y)``, or any nesting of tuples, lists and dictionaries of equally long arrays (tensors, NumPy
    arrays, data frames, lists of numbers), or a map-style ``Dataset`` (anything with ``__len__`` and ``__getitem__``,
    such as a list of examples). Arrays keep their type. A dataset may be larger than memory.

    Args:
        train: Training data, from which ``validation`` and ``test`` are drawn if they are numbers.
        test: A part; or a fraction of ``train`` or a number of examples, drawn once for all runs.
        validation: A part; or a fraction of ``train`` as given, or a number of examples. By default a tenth.
        collate: Makes a batch of a list of items; ``torch.utils.data.default_collate`` if None.
        batches: Called in each epoch as ``batches(dataset, generator)`` with the run's training data, a
            ``torch.utils.data.Subset``; returns lists of positions in it, for example of examples of similar length.
        transform: ``transform(item, generator)`` returns the item to train on. It may draw from the generator, torch,
            NumPy or random: all are seeded by run, epoch and position.
        subset: Number of examples to train on, or fraction of ``train`` as given.
        groups: Group of each example of ``train``: an array, a key or attribute of ``train``, or a function of
            ``train``. Whole groups are drawn, so sizes are approximate.
        stratify: Divide each class in proportion; or an array of strata. By default this is done for classification if
            classes are known without reading the items and each has at least two examples.
        resplit: Draw validation data and subset anew for each run; else once. All methods share them in any case.
        loader_workers: Number of processes that prepare items while the model trains.
        version: Version of a dataset on disk, for its fingerprint, which covers its length and some of its items.
        name: Name of the data set in ``contdrop data``; the report shows samples of it.
        mark: Remark shown beside the title of every result, for example that the data are generated.
    """

    train: Any
    test: Any
    validation: Any = None
    _: KW_ONLY
    collate: Callable[[list[Any]], Any] | None = None
    batches: Callable[[Any, torch.Generator], Any] | None = None
    transform: Callable[[Any, torch.Generator], Any] | None = None
    subset: float | None = None
    groups: Any = None
    stratify: Any = "auto"
    resplit: bool = True
    loader_workers: int = 0
    version: str | None = None
    name: str = ""
    mark: str = ""

    def __post_init__(self) -> None:
        for name in ("collate", "batches", "transform"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise mistake(f"data: {name}", "a function", type(getattr(self, name)).__name__)
        if type(self.loader_workers) is not int or self.loader_workers < 0:
            raise mistake("data: loader_workers", "a whole number from 0", repr(self.loader_workers))


@dataclass(frozen=True, eq=False)
class Part:
    """Examples to train, validate or test on: those of a source at some positions, or all."""

    name: str
    source: Examples
    positions: Tensor
    loaders: Loaders

    def __len__(self) -> int:
        return len(self.positions)

    def order(self, seed: int | None, batch_size: int) -> list[Tensor]:
        """Return the batches of an epoch as positions in this part; without a seed, in the order of the data."""
        if seed is not None and self.has_own_batches:
            return self._own_order(seed)
        order = np.arange(len(self)) if seed is None else random_streams.permutation(len(self), seed)
        return list(torch.split(torch.from_numpy(order), batch_size))

    @property
    def has_own_batches(self) -> bool:
        return self.loaders.own_order is not None and self.name == "train"

    def _own_order(self, seed: int) -> list[Tensor]:
        assert self.loaders.own_order is not None
        where = "data: batches"
        found = list(self.loaders.own_order(self.dataset, torch.Generator().manual_seed(seed)))
        arrays = [np.asarray(batch) for batch in found]
        for number, array in enumerate(arrays):
            if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
                raise mistake(where, f"a list of positions as batch {number}, at least one", f"{found[number]!r:.80}")
            if array.min() < 0 or array.max() >= len(self):
                got = f"{array.min()} to {array.max()} in batch {number}"
                raise mistake(where, f"positions from 0 to {len(self) - 1}", got)
        if not arrays:
            raise mistake(where, "at least one list of positions", "none")
        return [torch.from_numpy(array.astype(np.int64)) for array in arrays]

    @functools.cached_property
    def dataset(self) -> Subset[Any]:
        """The examples of this part as a dataset."""
        whole: Any = self.source if isinstance(self.source, Arrays) else self.source.dataset
        return Subset(whole, self.positions.tolist())

    def batches(self, order: Sequence[Tensor], *, seed: int | None = None, skip: int = 0) -> Iterator[Any]:
        """Return the batches of an order from :meth:`order`, without the ``skip`` that an interruption was after.

        ``seed`` is that of the epoch's augmentation.
        """
        transformed = seed is not None and self.name == "train" and self.loaders.maker.transform is not None
        if isinstance(self.source, Arrays) and self.loaders.maker.collate is None and not transformed:
            nest, positions = self._arrays
            if positions is None:
                return _selected(nest, order[skip:])
            return _selected(nest, (positions.index_select(0, batch) for batch in order[skip:]))
        chosen = [self.positions.index_select(0, batch).numpy() for batch in order]
        wanted = requests(self.name, chosen, seed or 0, transformed=transformed)[skip:]
        return self.loaders.batches(wanted)

    @functools.cached_property
    def _arrays(self) -> tuple[Any, Tensor | None]:
        """Return tensors and the positions of this part in them; None if they are of this part alone."""
        assert isinstance(self.source, Arrays)
        share = len(self) / len(self.source)
        if share == 1:
            return self.source.nest, None
        if share * sum(tensor.nbytes for tensor in self.source.tensors) > _COPIED_BYTES:
            return self.source.nest, self.positions
        return next(_selected(self.source.nest, [self.positions])), None


def _selected(nest: Any, batches: Iterable[Tensor]) -> Iterator[Any]:
    if type(nest) is tuple and all(isinstance(leaf, Tensor) for leaf in nest):  # no recursion in the hot loop
        return (tuple([leaf.index_select(0, indices) for leaf in nest]) for indices in batches)
    return (map_leaves(operator.methodcaller("index_select", 0, indices), nest) for indices in batches)


@dataclass(frozen=True, eq=False)
class Parts:
    """Training, validation and test examples of one run."""

    train: Part
    validation: Part
    test: Part
    split: str  # fingerprint of the division
    groups: Positions | None = None  # of the test examples, if whole groups were drawn

    @property
    def sizes(self) -> dict[str, int]:
        return {part.name: len(part) for part in (self.train, self.validation, self.test)}


@dataclass(frozen=True, eq=False)
class PreparedData:
    """Checked data that can be divided for any run, from :func:`prepare`."""

    sources: dict[str, Examples]  # parts as given: train, and validation and test unless they are drawn from it
    drawn: dict[str, int]  # number of examples to draw from train for test, validation and subset
    strata: Tensor | None  # of the examples of train
    groups: Tensor | None
    resplit: bool  # draw anew for each run
    loaders: Loaders
    fingerprint: str  # of the content of all parts
    name: str = ""
    mark: str = ""

    @property
    def is_arrays(self) -> bool:
        return all(isinstance(source, Arrays) for source in self.sources.values())

    def share(self) -> PreparedData:
        """Move arrays to shared memory, so that no other process copies them."""
        arrays = [source for source in self.sources.values() if isinstance(source, Arrays)]
        tensors = [tensor for source in arrays for tensor in source.tensors]
        for tensor in [*tensors, self.strata, self.groups]:
            if tensor is not None:
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def parts(self, root_seed: int, stage: str, run: int) -> Parts:
        """Return the division of one run, the same for all methods."""
        positions = np.arange(len(self.sources["train"]))
        chosen: dict[str, Positions] = {}
        if "test" in self.drawn:
            seed = random_streams.seed(root_seed, _ONCE, 0, "test")
            leave = 1 + ("validation" in self.drawn)
            positions, chosen["test"] = self._divide(positions, None, self.drawn["test"], seed, leave)
        place = (stage, run) if self.resplit else (_ONCE, 0)
        seed = random_streams.seed(root_seed, *place, random_streams.SPLIT)
        train, validation = self._divide(positions, self.drawn.get("subset"), self.drawn.get("validation", 0), seed)
        digested = fingerprints.of_arrays(train, validation, *chosen.values())
        chosen |= {"train": train} | ({"validation": validation} if "validation" in self.drawn else {})
        test = chosen.get("test")
        groups = None if self.groups is None or test is None else self.groups.numpy()[test]
        parts = {}
        for name, source in self.loaders.maker.sources.items():
            own = chosen[name] if name in chosen else np.arange(len(source))
            parts[name] = Part(name, source, torch.from_numpy(own), self.loaders)
        return Parts(**parts, split=digested, groups=groups)

    def _divide(
        self, positions: Positions, train: int | None, held_out: int, seed: int, leave: int = 1
    ) -> tuple[Positions, Positions]:
        strata, groups = (
            None if codes is None else splits.codes(codes.numpy()[positions], len(positions), name)
            for name, codes in (("stratify", self.strata), ("groups", self.groups))
        )
        chosen = splits.divide(len(positions), train, held_out, seed, strata=strata, groups=groups, leave=leave)
        return positions[chosen[0]], positions[chosen[1]]


def prepare(data: Data, *, task: str | None) -> PreparedData:
    """Check the data as far as possible before a run, and their labels if there is a task."""
    if not isinstance(data, Data):
        raise UserError(
            f"expected data() to return lab.Data(train=(x, y), test=(x_test, y_test)); got {type(data).__name__}"
        )
    train = inputs.source(data.train, "train")
    sources, drawn = {"train": train}, {}
    for name, value in (("test", data.test), ("validation", 0.1 if data.validation is None else data.validation)):
        if splits.is_amount(value):
            drawn[name] = splits.count(value, len(train), name)
        else:
            sources[name] = inputs.source(value, name)
            inputs.check_alike(train, sources[name], ("train", name))
    if data.subset is not None:
        drawn["subset"] = splits.count(data.subset, len(train), "subset")
    _check_amounts(drawn, len(train))
    for name, source in sources.items():
        inputs.check_labels(source, name, task)
    groups = _groups(data, drawn, len(train))
    strata = _strata(data, train, task)
    strata = strata if drawn and groups is None else None
    by_part = {name: sources.get(name, train) for name in ("train", "validation", "test")}
    maker = BatchBuilder(by_part, data.collate, data.transform)
    loaders = Loaders(maker, data.loader_workers, data.batches)
    contents = [
        fingerprints.of_content(name, len(source), maker.items(name, source.sampled))
        if isinstance(source, Items)
        else fingerprints.of_content(name, source.nest)
        for name, source in sources.items()
    ]
    fingerprint = fingerprints.of_content(data.version, *contents)
    return PreparedData(sources, drawn, strata, groups, data.resplit, loaders, fingerprint, data.name, data.mark)


def _check_amounts(drawn: dict[str, int], available: int) -> None:
    if sum(drawn.values()) > available - ("subset" not in drawn):
        wanted = " and ".join(f"{number} for {name}" for name, number in drawn.items())
        rest = "" if "subset" in drawn else ", and none would be left to train on"
        raise mistake("data", f"no more than the {available} examples of train", wanted + rest)


def _groups(data: Data, drawn: dict[str, int], available: int) -> Tensor | None:
    groups, where = data.groups, "data: groups"
    if groups is None:
        return None
    if not drawn:
        raise UserError(f"{where}: nothing is drawn, as validation and test are given; leave groups out")
    if not (data.stratify is None or data.stratify is False or isinstance(data.stratify, str)):
        raise UserError("data: expected groups or stratify, not both; leave one out")
    if isinstance(groups, str):
        found = data.train.get(groups) if hasattr(data.train, "get") else getattr(data.train, groups, None)
        if found is None:
            raise mistake(where, "a key or an attribute of train", f"{groups!r}, which it does not have")
        groups = found
    elif callable(groups):
        groups = groups(data.train)
    codes = splits.codes(groups, available, "groups")
    wanted, number = 1 + len(drawn) - ("subset" in drawn), codes.max() + 1
    if number < wanted:
        raise mistake(where, f"at least {wanted} groups, one for each part", number)
    return torch.from_numpy(codes)


def _strata(data: Data, train: Examples, task: str | None) -> Tensor | None:
    wish, where = data.stratify, "data: stratify=True"
    if isinstance(wish, str) and wish != "auto":
        raise mistake("data: stratify", "'auto', True, False or an array of strata", repr(wish))
    if wish is None or wish is False or (isinstance(wish, str) and task != "classification"):
        return None
    if not isinstance(wish, (bool, str)):
        return torch.from_numpy(splits.codes(wish, len(train), "stratify"))
    classes = inputs.classes(train)
    if classes is None and wish is True:
        expected = "one whole number as the class of each example, in arrays or as dataset.targets"
        raise mistake(where, expected, "none", "give an array of strata")
    if classes is None:
        return None
    codes = splits.codes(classes, len(train), "stratify")
    sizes = np.bincount(codes)
    if sizes.min() < 2 and wish is True:
        got = f"1 of class {classes[codes == sizes.argmin()][0]}"
        raise mistake(where, "at least 2 examples of each class", got, "leave it out or say stratify=False")
    return torch.from_numpy(codes) if sizes.min() >= 2 else None
