"""Files of weights: which format they are in, and how each is read."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from ..._text import printable
from ...errors import UserError
from . import caffe
from .caffe import Layers

_TORCH = (b"PK\x03\x04", b"\x80\x02")  # since version 1.6, and before


def read(path: pathlib.Path) -> Layers:
    """By layer, its weights and, if it has them, biases: of a Caffe model, or of a state_dict that torch saved.

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
