"""Input data in one of two forms, checked before any training: arrays in memory, or a map-style dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from ...errors import mistake
from . import batch

_SAMPLED = 16  # items of a dataset that its fingerprint looks at
_HINT = "give (x, y), nested tuples or dicts of equally long arrays, or a Dataset with __len__ and __getitem__"


@dataclass(frozen=True, eq=False)
class Arrays:
    """Equally long tensors in any nesting, possibly in shared memory."""

    nest: Any

    def __len__(self) -> int:
        return batch.size_of(self.nest)

    def __getitem__(self, index: int) -> Any:
        """Return copies of one example, so that changes in place do not reach the data."""
        return batch.map_leaves(lambda leaf: leaf[index].clone(), self.nest)

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for _, leaf in batch.leaves(self.nest)]

    @property
    def labels(self) -> Any:
        return batch.find_target(self.nest)


@dataclass(frozen=True, eq=False)
class Items:
    """A map-style dataset, which is never read completely."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    @property
    def labels(self) -> Any:
        return _labels(self.dataset)

    @property
    def sampled(self) -> list[int]:
        """Positions of the items whose content is fingerprinted, the first and the last among them."""
        return sorted({int(index) for index in np.linspace(0, len(self) - 1, min(_SAMPLED, len(self)))})


Examples: TypeAlias = Arrays | Items


def source(value: Any, name: str) -> Examples:
    """Return a part that a user gives, checked."""
    where, kind = f"data: {name}", type(value).__name__
    is_indexed = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    if isinstance(value, (DataLoader, IterableDataset)) or (hasattr(value, "__iter__") and not is_indexed):
        fix = "give its dataset" if isinstance(value, DataLoader) else "give a Dataset with __len__ and __getitem__"
        raise mistake(where, "data that can be indexed by position", f"{kind}, which can only be iterated", fix)
    if type(value) is TensorDataset:
        value = value.tensors
    found: Examples
    if _is_dataset(value):
        if not hasattr(value, "__len__"):
            raise mistake(where, "a dataset that knows its length", kind, "give it __len__")
        found = Items(value)
    elif isinstance(value, (Tensor, tuple, list, Mapping)) or _is_array(value):
        found = Arrays(_nest(value, name))
        _check_lengths(found.nest, name)
    else:
        raise mistake(where, "data", kind, _HINT)
    if not len(found):
        raise mistake(where, "at least one example", "none")
    return found


def _is_dataset(value: Any) -> bool:
    if isinstance(value, Dataset):
        return True
    if isinstance(value, list):  # of examples; [x, y] is a nest of arrays, and [0, 1, 1] is an array
        return bool(value) and all(isinstance(item, (tuple, Mapping, str)) for item in value)
    is_nest = isinstance(value, (Tensor, tuple, Mapping, str, bytes)) or _is_array(value)
    return hasattr(value, "__getitem__") and not is_nest


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "to_numpy") or hasattr(value, "__array__")


def _nest(value: Any, name: str) -> Any:
    """Return the same nesting of tensors. A list of numbers, or of equally long lists of numbers, is one array."""
    if isinstance(value, Mapping):
        return {key: _nest(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, (tuple, list)) and not _is_numbers(value):
        parts = [_nest(part, f"{name}[{number}]") for number, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return _tensor(value, f"data: {name}")


def _is_numbers(value: Any) -> bool:
    first = value[0] if value else None
    return isinstance(first, (bool, int, float, str, np.generic)) or (
        isinstance(first, (tuple, list)) and _is_numbers(first) and isinstance(value, list)
    )


def _tensor(value: Any, where: str) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(_array(value, where))
    if tensor.layout != torch.strided or tensor.is_nested:
        raise mistake(where, "a dense tensor", "a sparse or nested one", "call to_dense() on it")
    if tensor.dim() == 0:
        raise mistake(where, "one value or row per example", "a single number")
    return tensor.detach().cpu().contiguous()


def _array(value: Any, where: str) -> np.ndarray:
    if isinstance(value, (bool, int, float, str)) or value is None:
        raise mistake(where, "an array", repr(value), _HINT)
    try:
        array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    except ValueError:
        fix = "pad them, or give a Dataset and collate="
        raise mistake(where, "rows of one length", "rows of several", fix) from None
    if array.dtype.kind in "US":
        fix = "number classes by numpy.unique(y, return_inverse=True)[1], or give a list of (text, label) and collate="
        raise mistake(where, "numbers", "text", fix)
    if array.dtype.kind not in "biufc":
        fix = "convert it, for example by numpy.asarray(x, dtype='float32')"
        raise mistake(where, "numbers", f"an array of {array.dtype}", fix)
    if array.ndim:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return array if array.flags.writeable else array.copy()


def _check_lengths(nest: Any, name: str) -> None:
    found = [(where, len(leaf)) for where, leaf in batch.leaves(nest, name)]
    if not found:
        raise mistake(f"data: {name}", "at least one array", "none", _HINT)
    first, expected = found[0]
    for where, length in found:
        if length != expected:
            got = f"{expected} examples in {first} and {length} in {where}"
            raise mistake(f"data: {name}", "equally long arrays", got)


def check_alike(one: Examples, other: Examples, names: tuple[str, str]) -> None:
    """Raise an error unless arrays of two parts have the same nesting and types."""
    if isinstance(one, Items) or isinstance(other, Items):
        return
    first, second = (
        {where: f"{leaf.dtype} with {leaf.dim()}" for where, leaf in batch.leaves(part.nest)} for part in (one, other)
    )
    if [*first] != [*second]:
        forms = (", ".join(f"{name}{where}" for where in part) for name, part in zip(names, (first, second)))
        raise mistake(f"data: {names[1]}", f"the same arrays as in {names[0]}", " against ".join(forms))
    for where, kind in first.items():
        if second[where] != kind:
            expected = f"{kind} dimensions, as in {names[0]}{where}"
            raise mistake(f"data: {names[1]}{where}", expected, second[where])


def check_labels(part: Examples, name: str, task: str | None) -> None:
    """Raise an error if a label is missing, as far as labels are known without reading the items."""
    labels = part.labels
    is_number = task is not None and isinstance(labels, Tensor) and labels.is_floating_point()
    if is_number and (rows := bad_rows(labels)):
        got = f"nan or infinity in {len(rows)} of {len(labels)}, first in example {rows[0]}"
        raise mistake(f"data: {name}", "a finite label for every example", got, "leave those out")


def bad_rows(values: Tensor) -> list[int]:
    """Return the rows with a number that is not finite."""
    found: list[int] = (~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero().flatten().tolist()
    return found


def classes(part: Examples) -> np.ndarray | None:
    """Return the class of each example, if classes are integers and known without reading the items; else None."""
    labels = part.labels
    if labels is None or isinstance(labels, Mapping):
        return None
    try:
        array = np.asarray(labels)
    except (ValueError, TypeError, RuntimeError):
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return array if array.shape == (len(part),) and array.dtype.kind in "biu" else None


def _labels(dataset: Any) -> Any:
    if isinstance(dataset, Subset):
        whole = _labels(dataset.dataset)
        return None if whole is None else np.asarray(whole)[np.asarray(dataset.indices)]
    named = (getattr(dataset, name, None) for name in ("targets", "labels"))
    return next((found for found in named if found is not None and not callable(found)), None)
