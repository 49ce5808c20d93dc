"""Published weights: files read without executing anything, networks that start from them, features by them.

A Caffe model is a NetParameter message in Protocol Buffers' wire format. Of the message only names and blobs are read
(caffe.proto: layers of the old kind, V1LayerParameter, are field 2 with the name in field 4 and blobs in field 6, those
of the new kind field 100 with the name in 1 and blobs in 7). A blob has its values in field 5, packed, and its shape in
field 7 or, the old way, in fields 1 to 4. The file is mapped, not read: what is allocated are objects for layers and
blobs, whose number is bounded, and no length in the file is trusted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..._files import reading
from ..._text import printable, some_of
from ...errors import UserError, suggest
from ...lab.study.methods import Method, parse
from ...lab.study.study import Configuration
from .. import datasets
from ..datasets import dataset
from ..datasets.dataset import Dataset, Images, fingerprint
from ..networks import Model
from ..networks.models import MAPS, SIDE, VGG, convolutions, last_maps, published_nin
from ..preprocessing import Whitening, cached, fitted_whitening, global_contrast

Array = npt.NDArray[np.float32]
Blobs = tuple[Array, ...]
Layers = dict[str, Blobs]


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
    """
    wanted = {
        name: [part for part in (module.weight, module.bias) if part is not None]
        for name, module in _layers(network, found).items()
    }
    both = [name for name in wanted if name in found]
    if not both:
        raise UserError(f"{title}: expected layers such as {', '.join([*wanted][:3])}; got {some_of(found, 3)}")
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
    layers = {}
    for name, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            # The full name, or without its container and the trailing "linear".
            layers[name if name in found else name.removesuffix(".linear").rpartition(".")[2]] = module
    return layers


def _check(layer: str, wanted: list[tuple[int, ...]], found: list[tuple[int, ...]], title: str) -> None:
    if len(wanted) != len(found) or any(_core(a) != _core(b) for a, b in zip(wanted, found)):
        expected, got = (" and ".join("x".join(map(str, shape)) for shape in shapes) for shapes in (wanted, found))
        raise UserError(f"{title}: layer {layer}: expected weights of {expected}; got {got or 'none'}")


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading ones, but for a single one."""
    return tuple(itertools.dropwhile(lambda size: size == 1, shape)) or (1,)


_TORCH = (b"PK\x03\x04", b"\x80\x02")  # since version 1.6, and before


def read(path: pathlib.Path) -> Layers:
    """Return weights and biases by layer, from a Caffe model or from a state_dict that torch saved."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of weights; it is {'a directory' if path.is_dir() else 'not there'}")
    with path.open("rb") as file:
        start = file.read(4)
    return _of_torch(path) if start.startswith(_TORCH) else _read_caffe(path)


def _of_torch(path: pathlib.Path) -> Layers:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises its own kinds, and those of zip files and pickles
        reason = printable(str(error).split(". ")[0])[:120]
        raise UserError(f"{path}: damaged, or more than the tensors of a state_dict ({reason})") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    plain = {
        str(key): tensor.detach().to(torch.float32).numpy()
        for key, tensor in (found.items() if isinstance(found, dict) else ())
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.is_floating_point()
    }
    layers: Layers = {}
    for key, weight in plain.items():
        layer, _, part = key.rpartition(".")
        bias = plain.get(f"{key.removesuffix('weight')}bias")
        if part == "weight":
            layers[layer] = (weight,) if bias is None else (weight, bias)
    if not layers:
        raise UserError(f"{path}: expected a state_dict, tensors called layer.weight and layer.bias; it has none such")
    return layers


_MOST_FIELDS = 100_000  # in the whole file: published models have some thousands
_MOST_DIMENSIONS = 8
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}  # wire types; of fixed ones, the number of bytes

# The kinds of layer messages, by their field numbers: those of a layer's name and of its blobs.
_KINDS = {2: (4, 6), 100: (1, 7)}


class _BrokenError(Exception):
    """Not this format; the text says where."""


def _read_caffe(path: pathlib.Path) -> Layers:
    """Return the blobs of each layer as views of the file, which are loaded when they are used."""
    try:
        with reading(path):
            content = np.memmap(path, np.uint8, mode="r")
    except ValueError:
        raise UserError(f"{path}: expected a Caffe model; it is empty") from None
    try:
        layers = _Reader(content).layers()
    except _BrokenError as problem:
        raise UserError(f"{path}: damaged or no Caffe model: {problem}") from problem
    if not layers:
        raise UserError(f"{path}: expected a Caffe model with weights; it has none: is it a .prototxt?")
    return layers


class _Reader:
    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self._content = content
        self._bytes = content.data  # a single byte of an array takes ten times as long
        self._fields = 0

    def layers(self) -> Layers:
        found: Layers = {}
        for number, value in self._message(slice(0, len(self._content))):
            if number in _KINDS and isinstance(value, slice):
                name, blobs = self._layer(value, *_KINDS[number])
                if not blobs:
                    continue
                if name in found:
                    raise _BrokenError(f"two layers are called {name!r}")
                found[name] = blobs
        return found

    def _layer(self, message: slice, of_name: int, of_blob: int) -> tuple[str, Blobs]:
        name, blobs = "", []
        for number, value in self._message(message):
            if number == of_name and isinstance(value, slice):
                name = printable(bytes(self._bytes[value][:100]).decode(errors="replace"))
            elif number == of_blob and isinstance(value, slice):
                blobs.append(self._blob(value, name))
        return name, tuple(blobs)

    def _blob(self, message: slice, layer: str) -> Array:
        old: dict[int, int] = {}
        shape: list[int] | None = None
        values: Array | None = None
        for number, value in self._message(message):
            if number in (1, 2, 3, 4) and isinstance(value, int):
                old[number] = value
            elif number == 7 and isinstance(value, slice):
                shape = self._shape(value)
            elif number == 5 and isinstance(value, slice) and not (value.stop - value.start) % 4 and values is None:
                values = self._content[value].view("<f4")
            elif number in (5, 8):
                raise _BrokenError(f"layer {layer!r} has values that are not packed numbers of single precision")
        sizes = tuple(old.get(number, 1) for number in (1, 2, 3, 4)) if shape is None else tuple(shape)
        count = 0 if values is None else len(values)
        if values is None or math.prod(sizes) != count or max(sizes, default=0) >= 2**31:
            shown = "x".join(map(str, sizes))[:80]
            raise _BrokenError(f"layer {layer!r} has {count:,} values where its shape {shown} asks for others")
        return values.reshape(sizes)

    def _shape(self, message: slice) -> list[int]:
        found: list[int] = []
        for number, value in self._message(message):
            if number == 1 and isinstance(value, int):
                found.append(value)
            elif number == 1 and isinstance(value, slice):  # packed
                at = value.start
                while at < value.stop and len(found) <= _MOST_DIMENSIONS:
                    size, at = self._varint(at, value.stop)
                    found.append(size)
        if len(found) > _MOST_DIMENSIONS:
            raise _BrokenError(f"a shape has more than {_MOST_DIMENSIONS} dimensions")
        return found

    def _message(self, message: slice) -> Iterator[tuple[int, int | slice | None]]:
        """Yield the number and the value of each field: whole numbers, places of bytes, and None for what is fixed."""
        at, end = message.start, message.stop
        while at < end:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise _BrokenError(f"it has more than {_MOST_FIELDS:,} fields")
            key, first = self._varint(at, end)
            value: int | slice | None = None
            if key & 7 == _BYTES:
                length, first = self._varint(first, end)
                at = first + length
                value = slice(first, at)
            elif key & 7 in _FIXED:
                at = first + _FIXED[key & 7]
            elif key & 7 == _VARINT:
                value, at = self._varint(first, end)
            else:
                raise _BrokenError(f"byte {at:,} starts a field of no known type")
            if at > end:
                raise _BrokenError(f"the field at byte {first:,} would end {at - end:,} bytes after what it is in")
            yield key >> 3, value

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Decode a varint of up to 64 bits, seven per byte; return its value and the offset after it."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise _BrokenError(f"it ends in the middle of a number, at byte {at:,}")
            byte = self._bytes[at]
            value |= (byte & 127) << shift
            at += 1
            if byte < 128:
                return value, at
        raise _BrokenError(f"a number of more than ten bytes ends at byte {at:,}")


CONTRAST, EPS = 55.0, 0.1  # of global contrast and whitening; with others the network errs far more often
NIN_FEATURES = MAPS * SIDE * SIDE
# Versions of the computation, for the cache; of the convolutions that have no published weights, the seed.
_NIN_VERSION, _VGG_VERSION, _VGG_SEED = 1, 1, 0


def nin_whitening(found: Dataset) -> Whitening:
    """Fit the whitening on the training images, as for the published network."""
    return fitted_whitening(global_contrast(found.train_images, CONTRAST), EPS)


def nin_whitened(images: Images, fitted: Whitening) -> Array:
    """Prepare images as the network expects them."""
    return fitted(global_contrast(images, CONTRAST))


def nin_features(found: Dataset, weights: pathlib.Path, part: str) -> Array:
    """Return the published network's last maps [N, 640] of ``part``, "train" or "test"; computed once and cached."""
    layers = read(weights)
    with torch.device("meta"):  # without its numbers: what is kept already is looked at too
        refuse_lacking(lacking(nn.Sequential(OrderedDict(convolutions())), layers), str(weights))

    def compute(images: Images) -> Array:
        network = nn.Sequential(OrderedDict(convolutions()))
        assign(network, layers, str(weights))
        fitted = nin_whitening(found)
        return _in_batches(250, images, lambda part: network(torch.from_numpy(nin_whitened(part, fitted))).flatten(1))

    return _kept("nin", part, found, compute, _NIN_VERSION, layers, CONTRAST, EPS)


def is_vgg_here() -> bool:
    """Return True if the published weights are here; otherwise the convolutions are random."""
    return find("vgg16").path().is_file()


def vgg_maps(found: Dataset, part: str) -> Array:
    """Return maps [N, 2, 512, H / 32, W / 32] of ``part``, "train" or "test": of images and their mirror images."""
    path = find("vgg16").path()
    layers = read(path) if path.is_file() else {}
    if layers:
        with torch.device("meta"):  # without its numbers: what is kept already is looked at too
            network = VGG(hidden=1, classes=2)(parse("none"))
        refuse_lacking(lacking(network.get_submodule("convolutions"), layers), str(path))
    layers = {name: arrays for name, arrays in layers.items() if name.startswith("conv")}

    def compute(images: Images) -> Array:
        network = VGG(hidden=1, classes=2)(parse("none"))
        generator = torch.Generator().manual_seed(_VGG_SEED)
        for layer in network.get_submodule("convolutions").children():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, generator=generator)
        if layers:
            assign(network, layers, str(path))

        def maps(part: Images) -> Tensor:
            pixels = torch.from_numpy(part)
            return torch.stack([last_maps(network, each) for each in (pixels, pixels.flip(3))], 1)

        return _in_batches(10, images, maps)

    return _kept("vgg", part, found, compute, _VGG_VERSION, layers)


@torch.inference_mode()
def _in_batches(size: int, images: Images, forward: Callable[[Images], Tensor]) -> Array:
    return np.concatenate([forward(images[start : start + size]).numpy() for start in range(0, len(images), size)])


def _kept(
    name: str,
    part: str,
    found: Dataset,
    compute: Callable[[Images], Array],
    version: int,
    layers: Layers,
    *settings: float,
) -> Array:
    """Return what is computed of the images of a part, from the cache if it is there."""
    images = found.train_images if part == "train" else found.test_images
    of_weights = [fingerprint(*layers[layer]) for layer in sorted(layers)]
    key = (version, found.fingerprint, of_weights, *settings)
    (outputs,) = cached(f"{name}-{part}", key, lambda: {"outputs": compute(images)}).values()
    return outputs


def error_on_test_images(weights: pathlib.Path, directory: pathlib.Path | None = None) -> float:
    """Return the published network's error on the test images of CIFAR-10, in per cent."""
    found = datasets.load("cifar-10", directory)
    maps = nin_features(found, weights, "test").reshape(-1, MAPS, SIDE * SIDE)
    return float(100 * (maps.mean(2).argmax(1) != found.test_labels).mean())


@dataclasses.dataclass(frozen=True)
class Published:
    """Weights by name.

    Attributes:
        name: Also of the folder in the data directory.
        title: In a line.
        files: Its name there, or others by which it may be there; the first is the owner's.
        offered: Where its owner offers it, and what of it is known.
        network: Builds the network that they are of.
        data: The data set that its error is known on.
        error: Its published error there, in per cent.
        measure: Computes that error, of a file and with data from a directory.
    """

    name: str
    title: str
    files: tuple[str, ...]
    offered: str
    network: Callable[[], nn.Module]
    data: str = ""
    error: float | None = None
    measure: Callable[[pathlib.Path, pathlib.Path | None], float] | None = None

    @property
    def parameters(self) -> int:
        """Number of the network's parameters, without building it in memory."""
        return sum(parameter.numel() for parameter in self.outline().parameters())

    def outline(self) -> nn.Module:
        """Build the network on the meta device, without values."""
        with torch.device("meta"):
            return self.network()

    def path(self, directory: pathlib.Path | None = None) -> pathlib.Path:
        """Return the path of the file that is there, or of the owner's file if none is."""
        paths = [dataset.data_directory(directory) / self.name / name for name in self.files]
        return next((path for path in paths if path.is_file()), paths[0])

    def here(self, directory: pathlib.Path | None = None) -> pathlib.Path:
        """Return the file's path; raise UserError, with the place that offers it, if it is missing."""
        path = self.path(directory)
        if not path.is_file():
            raise UserError(f"{self.name}: the weights are missing; put {path.name} into {path.parent}: {self.offered}")
        return path


PUBLISHED = (
    Published(
        name="nin-cifar10",
        title="Network in Network, CIFAR-10, Caffe model zoo",
        files=("cifar10_nin.caffemodel",),
        offered="the Caffe model zoo lists it as Network in Network, CIFAR10 model",
        network=published_nin,
        data="cifar-10",
        error=10.4,
        measure=error_on_test_images,
    ),
    Published(
        name="vgg16",
        title="VGG-16, configuration D, ILSVRC-2012",
        # The second has the convolutions alone; tools/vgg16_convolutions.py makes it.
        files=("VGG_ILSVRC_16_layers.caffemodel", "vgg16-convolutions.pt"),
        offered="its authors offer it at https://www.robots.ox.ac.uk/~vgg/research/very_deep/",
        network=lambda: VGG()(parse("bernoulli")),
    ),
)


def find(name: str) -> Published:
    known = {published.name: published for published in PUBLISHED}
    if name not in known:
        raise UserError(f"unknown weights {name!r}; {suggest(name.lower().replace('_', '-'), known)}")
    return known[name]


@dataclasses.dataclass(frozen=True)
class Pretrained(Configuration):
    """A study's model that starts from published weights; layers that the published network does not have are random.

    Attributes:
        model: Builds the network.
        weights: Their name, see ``contdrop weights list``.
    """

    kind: ClassVar[str] = "pretrained"

    model: Model
    weights: str

    def __call__(self, method: Method) -> nn.Module:
        published = find(self.weights)
        path = published.here()
        network, found = self.model(method), read(path)
        left, expected = assign(network, found, str(path)).left, lacking(published.outline(), found)
        refuse_lacking([name for name in left if name in expected], str(path))
        return network
