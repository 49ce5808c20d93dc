"""Files of weights: read them, and copy them into a network with every shape checked."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..._text import printable
from ...errors import UserError
from . import caffe
from .caffe import Layers


@dataclasses.dataclass(frozen=True)
class Assigned:
    """Outcome for each layer.

    Attributes:
        layers: Layers that got their weights, with the shape of those.
        left: Layers of the network that the file does not have: they stay as they were.
        unused: Layers of the file that the network does not have.
    """

    layers: dict[str, tuple[int, ...]]
    left: tuple[str, ...]
    unused: tuple[str, ...]


@torch.no_grad()
def assign(network: nn.Module, found: Layers, title: str) -> Assigned:
    """Copy weights and biases into the layers of the same names, if all that are there fit; others stay random.

    Shapes have to be equal up to dimensions of size one, which Caffe adds in front.

    Args:
        network: Gets them.
        found: By layer, weights and biases.
        title: What to call the file in an error.

    Raises:
        UserError: A shape is another one, or no layer is in both. Nothing has been changed then.
    """
    wanted = {
        name: [part for part in (module.weight, module.bias) if part is not None]
        for name, module in _layers(network, found).items()
    }
    both = [name for name in wanted if name in found]
    if not both:
        raise UserError(f"{title}: expected layers such as {', '.join([*wanted][:3])}; got {_some(found)}")
    for name in both:
        _check(name, [tuple(part.shape) for part in wanted[name]], [array.shape for array in found[name]], title)
    for name in both:
        for part, array in zip(wanted[name], found[name]):
            part.copy_(torch.tensor(array).reshape(part.shape))
    return Assigned(
        {name: tuple(wanted[name][0].shape) for name in both},
        tuple(name for name in wanted if name not in found),
        tuple(name for name in found if name not in wanted),
    )


def lacking(network: nn.Module, found: Layers) -> tuple[str, ...]:
    """Return the layers of a network that a file does not have."""
    return tuple(name for name in _layers(network, found) if name not in found)


def refuse_lacking(layers: Sequence[str], title: str) -> None:
    """Raise UserError if there are missing layers, which would be random and pass for published ones."""
    if layers:
        raise UserError(
            f"{title}: expected weights of every layer of the published network; got none of {', '.join(layers)}, "
            "which would be random; put the whole file there"
        )


def _layers(network: nn.Module, found: Layers) -> dict[str, nn.Conv2d | nn.Linear]:
    """Return the network's layers by their names in a file."""
    modules = network.named_modules()
    return {_called(name, found): module for name, module in modules if isinstance(module, (nn.Conv2d, nn.Linear))}


def _called(module: str, found: Layers) -> str:
    """Return a layer's name in a file: the full name, or without its container and the trailing "linear"."""
    return module if module in found else module.removesuffix(".linear").rpartition(".")[2]


def _check(layer: str, wanted: list[tuple[int, ...]], found: list[tuple[int, ...]], title: str) -> None:
    if len(wanted) != len(found) or any(_core(a) != _core(b) for a, b in zip(wanted, found)):
        expected, got = (" and ".join("x".join(map(str, shape)) for shape in shapes) for shapes in (wanted, found))
        raise UserError(f"{title}: layer {layer}: expected weights of {expected}; got {got or 'none'}")


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading ones."""
    start = next((at for at, size in enumerate(shape) if size != 1), max(len(shape) - 1, 0))
    return shape[start:] if math.prod(shape) != 1 else (1,)


def _some(found: Layers) -> str:
    names = [*found]
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


_TORCH = (b"PK\x03\x04", b"\x80\x02")  # since version 1.6, and before


def read(path: pathlib.Path) -> Layers:
    """Return weights and biases by layer, from a Caffe model or from a state_dict that torch saved.

    Raises:
        UserError: It is neither, or damaged, or would execute something.
    """
    if not path.is_file():
        raise UserError(f"{path}: expected a file of weights; it is {'a directory' if path.is_dir() else 'not there'}")
    with path.open("rb") as file:
        start = file.read(4)
    return _of_torch(path) if start.startswith(_TORCH) else caffe.read(path)


def _of_torch(path: pathlib.Path) -> Layers:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises its own kinds, and those of zip files and pickles
        reason = printable(str(error).split(". ")[0])[:120]
        raise UserError(f"{path}: damaged, or more than the tensors of a state_dict ({reason})") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    layers: dict[str, dict[str, Any]] = {}
    for key, tensor in found.items() if isinstance(found, dict) else ():
        layer, _, part = str(key).rpartition(".")
        is_plain = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.is_floating_point()
        if is_plain and part in ("weight", "bias"):
            layers.setdefault(layer, {})[part] = tensor.detach().to(torch.float32).numpy()
    whole = {name: (parts["weight"], parts.get("bias")) for name, parts in layers.items() if "weight" in parts}
    if not whole:
        raise UserError(f"{path}: expected a state_dict, tensors called layer.weight and layer.bias; it has none such")
    return {name: tuple(part for part in parts if part is not None) for name, parts in whole.items()}
