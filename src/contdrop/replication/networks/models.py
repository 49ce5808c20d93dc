"""The networks and their initial weights: fully connected, convolutional, Network in Network, and VGG-16."""

from __future__ import annotations

import abc
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._torch.checks import check_choice
from ...choices import SCALES, Activation, Scale
from ...errors import mistake
from ...lab.study.methods import Method, check_scale, law_of, masked_linear
from ...lab.study.study import Configuration
from ...laws import Bernoulli
from ...nn import Dropout
from ..augmentation import Pixels

ACTIVATIONS = ("relu", "sigmoid")


class Initialization(Configuration, abc.ABC):
    """Distribution of initial weights; biases start at zero."""

    @torch.no_grad()
    def apply(self, network: nn.Module, generator: torch.Generator) -> None:
        """Set all parameters, in the network's order: the same numbers for networks that differ in method only."""
        for name, parameter in network.named_parameters():
            if parameter.dim() < 2:
                parameter.zero_()
            else:
                self._draw(parameter, generator, name.partition(".")[0])

    @abc.abstractmethod
    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None: ...


@dataclass(frozen=True)
class Normal(Initialization):
    """Weights from N(0, std^2)."""

    kind: ClassVar[str] = "normal"

    std: float = 0.01

    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None:
        weight.normal_(0, self.std, generator=generator)


@dataclass(frozen=True)
class Glorot(Initialization):
    """Weights uniform within +- gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010, equation 16).

    Caffe's filler called "xavier" is another one: uniform within +- sqrt(3 / fan_in).

    Attributes:
        gain: 4 for sigmoid units in the authors' MNIST code, as their derivative at 0 is a quarter of tanh's.
        zero_output: Whether the weights of the output layer are zero at first.
    """

    kind: ClassVar[str] = "glorot"

    gain: float = 1.0
    zero_output: bool = False

    def apply(self, network: nn.Module, generator: torch.Generator) -> None:
        super().apply(network, generator)
        if self.zero_output:
            nn.init.zeros_([parameter for parameter in network.parameters() if parameter.dim() > 1][-1])

    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None:
        nn.init.xavier_uniform_(weight, gain=self.gain, generator=generator)


@dataclass(frozen=True)
class Layered(Initialization):
    """Weights from N(0, std^2), with a std for each layer by its name."""

    kind: ClassVar[str] = "layered"

    stds: tuple[tuple[str, float], ...]

    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None:
        weight.normal_(0, dict(self.stds)[layer], generator=generator)


def hidden_layer(
    method: Method, in_features: int, out_features: int, *, activation: Activation, scale: Scale, reads_hidden: bool
) -> nn.Module:
    """Return a linear layer with activation and method; parameters are ``linear.weight`` and ``linear.bias``.

    ``reads_hidden``: the inputs are units of a hidden layer with the method, whose fast dropout is drawn here.
    """
    check_choice("hidden_layer", "activation", activation, ACTIVATIONS)
    if method.follows_the_model:
        raise mistake(str(method), "a model with dropout layers of its own", "one that has none", "leave it out")
    check_scale(method, scale)
    if method.name.startswith(("dropconnect", "adaptive")):
        masked = masked_linear(method, activation, scale, in_features=in_features, out_features=out_features)
        return nn.Sequential(OrderedDict(linear=masked))
    linear = output_layer(method, in_features, out_features, scale=scale, reads_hidden=reads_hidden)
    layers: dict[str, nn.Module] = {"linear": linear, "activation": nn.ReLU() if activation == "relu" else nn.Sigmoid()}
    if method.name != "fast" and method != Method("none"):
        is_fused = activation == "relu"  # one pass for both
        layers["dropout"] = Dropout(law_of(method), scale=scale, activation="relu" if is_fused else None)
        if is_fused:
            del layers["activation"]
    return nn.Sequential(OrderedDict(layers))


def output_layer(
    method: Method, in_features: int, out_features: int, *, scale: Scale, reads_hidden: bool = True
) -> nn.Linear:
    """Return the layer that makes the logits: linear, unless the method acts on its inputs (fast)."""
    if method.name == "fast" and reads_hidden:
        return masked_linear(method, "relu", scale, in_features=in_features, out_features=out_features)
    return nn.Linear(in_features, out_features)


@dataclass(frozen=True, kw_only=True)
class Model(Configuration, abc.ABC):
    """A network without its method: a frozen dataclass that, called with a method, gives the network with it.

    Networks take images [N, C, H, W], as whole numbers of which ``divisor`` is the largest or in floating point, and
    return logits [N, classes]. Names, shapes and order of their parameters do not depend on the method; the last weight
    is that of the output layer.

    Attributes:
        scale: "paper" or "inverted": how masks are scaled; see :mod:`contdrop.lab.study.methods`.
        input_keep: Probability of keeping a pixel. The paper says nothing of it; Hinton et al. report results with and
            without, and the authors' MNIST code has 0.8.
        whole_inputs: Names of the methods that see all pixels whatever ``input_keep`` is.
        initialisation: Weights at the start.
        divisor: What a pixel that is a whole number is divided by.
    """

    scale: Scale = "inverted"
    input_keep: float = 1.0
    whole_inputs: tuple[str, ...] = ()
    initialisation: Initialization = field(default_factory=Normal)
    divisor: float = 255.0

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_choice(owner, "scale", self.scale, SCALES)
        if not 0 < self.input_keep <= 1 or not self.divisor > 0:
            raise ValueError(
                f"{owner}: expected 0 < input_keep <= 1 and divisor > 0; got {self.input_keep} and {self.divisor}"
            )

    def __call__(self, method: Method) -> nn.Module:
        """Build the network, with the method on its hidden layers.

        Its weights follow from the seed of torch's default generator, not from what was drawn since: building one
        method's layers may draw more than building another's.
        """
        layers: dict[str, nn.Module] = {"pixels": Pixels(self.divisor)}
        if self.input_keep < 1 and method.name not in self.whole_inputs:
            layers["input"] = Dropout(Bernoulli(keep=self.input_keep), scale=self.scale)
        network = nn.Sequential(OrderedDict(layers | self._layers(method)))
        self.initialisation.apply(network, torch.Generator().manual_seed(torch.initial_seed()))
        return network

    @abc.abstractmethod
    def _layers(self, method: Method) -> dict[str, nn.Module]:
        """Return the layers after the conversion to floating point, in order."""

    def _head(self, method: Method, inputs: int, hidden: int, classes: int) -> dict[str, nn.Module]:
        """Return the last layers of most networks: hidden ReLU units with the method, and the output layer."""
        return {
            "hidden1": hidden_layer(method, inputs, hidden, activation="relu", scale=self.scale, reads_hidden=False),
            "output": output_layer(method, hidden, classes, scale=self.scale),
        }


@dataclass(frozen=True)
class MLP(Model):
    """A fully connected network, such as the paper's 784-800-800-10 (Table I).

    Attributes:
        widths: Numbers of inputs, of units in each hidden layer, and of classes.
        activation: "relu" or "sigmoid", of the hidden layers.
    """

    kind: ClassVar[str] = "mlp"

    widths: tuple[int, ...] = (784, 800, 800, 10)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(f"MLP: expected at least two widths, each at least 1; got {self.widths}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"MLP: expected activation to be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")

    @property
    def hidden_layers(self) -> tuple[str, ...]:
        """Names of the modules that put out the activations, after dropout, of each hidden layer."""
        return tuple(f"hidden{number}" for number in range(1, len(self.widths) - 1))

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        for name, before, units in zip(self.hidden_layers, self.widths, self.widths[1:]):
            layers[name] = hidden_layer(
                method, before, units, activation=self.activation, scale=self.scale, reads_hidden=len(layers) > 1
            )
        layers["output"] = output_layer(method, *self.widths[-2:], scale=self.scale, reads_hidden=len(layers) > 1)
        return layers


@dataclass(frozen=True)
class CNN(Model):
    """Convolutions, each with ReLU and 2x2 max-pooling, then a hidden layer of ReLU units with the method, and softmax.

    The paper's Tables II and III give maps and hidden units; kernel size and pooling are those of Caffe's LeNet,
    without padding.

    Attributes:
        maps: Number of feature maps of each convolution.
        kernel: Side of the kernels.
        hidden: Units in the fully connected hidden layer.
        classes: Number of classes.
        image: Channels, height and width of the images.
    """

    kind: ClassVar[str] = "cnn"

    maps: tuple[int, ...] = (32, 64)
    kernel: int = 5
    hidden: int = 150
    classes: int = 10
    image: tuple[int, int, int] = (1, 28, 28)

    def __post_init__(self) -> None:
        super().__post_init__()
        height, width = self._size_after_convolutions()
        if height < 1 or width < 1:
            raise ValueError(
                f"CNN: nothing is left of images {self.image} after {len(self.maps)} convolutions with kernels of side "
                f"{self.kernel} and 2x2 pooling; use larger images, a smaller kernel or fewer maps"
            )

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        layers: dict[str, nn.Module] = {"layout": ChannelsLast()}
        channels = self.image[0]
        for number, maps in enumerate(self.maps, 1):
            layers[f"convolution{number}"] = nn.Conv2d(channels, maps, self.kernel)
            # The maximum of rectified values is the rectified maximum, with the same gradient: rectify a quarter.
            layers[f"pooling{number}"] = nn.MaxPool2d(2)
            layers[f"activation{number}"] = nn.ReLU()
            channels = maps
        height, width = self._size_after_convolutions()
        layers["flatten"] = nn.Flatten()
        return layers | self._head(method, channels * height * width, self.hidden, self.classes)

    def _size_after_convolutions(self) -> tuple[int, int]:
        _, height, width = self.image
        for _ in self.maps:
            height, width = ((side - self.kernel + 1) // 2 for side in (height, width))
        return height, width


class ChannelsLast(nn.Module):
    """Lays images out in memory as [N, H, W, C], with which the CPU's convolutions take two thirds of the time."""

    def forward(self, x: Tensor) -> Tensor:
        _, channels, _, width = x.shape
        if channels > 1:
            return x.contiguous(memory_format=torch.channels_last)
        # With one channel the two layouts are the same numbers in memory, and only the strides tell which is meant.
        return x.contiguous().as_strided(x.shape, (x.shape[1:].numel(), 1, width, 1))


# Of each stage of Network in Network, its convolutions as in the Caffe model zoo: name, maps and side of the kernel.
# All are padded to keep the size of a map.
_STAGES = (
    (("conv1", 192, 5), ("cccp1", 160, 1), ("cccp2", 96, 1)),
    (("conv2", 192, 5), ("cccp3", 192, 1), ("cccp4", 192, 1)),
    (("conv3", 192, 3), ("cccp5", 192, 1), ("cccp6", 10, 1)),
)
MAPS, SIDE = 10, 8  # what the last convolution puts out


def convolutions() -> dict[str, nn.Module]:
    """Return the layers from images [N, 3, 32, 32] to rectified maps [N, 10, 8, 8]."""
    layers: dict[str, nn.Module] = {"layout": ChannelsLast()}
    channels = 3
    for number, stage in enumerate(_STAGES, 1):
        for name, maps, kernel in stage:
            layers[name] = nn.Conv2d(channels, maps, kernel, padding=kernel // 2)
            layers[f"relu_{name}"] = nn.ReLU(inplace=True)
            channels = maps
        if number == 1:
            layers["pool1"] = nn.MaxPool2d(3, 2, ceil_mode=True)
        elif number == 2:
            layers["pool2"] = nn.AvgPool2d(3, 2, ceil_mode=True)
    return layers


def published_nin() -> nn.Sequential:
    """Return the network as it was published, without its dropout: a class's logit is the mean of its map."""
    return nn.Sequential(OrderedDict(convolutions() | {"pool3": nn.AvgPool2d(SIDE), "flatten": nn.Flatten()}))


@dataclass(frozen=True)
class NIN(Model):
    """The convolutions of the published network, and in the place of its last pooling a hidden layer with the method.

    Attributes:
        hidden: Units with the method.
        divided: What the last maps are divided by: about their root mean square over the training images, with the
            published weights. As they come, training at the paper's rate does not get anywhere.
    """

    kind: ClassVar[str] = "nin"

    hidden: int = 128
    divided: float = 33.0
    initialisation: Initialization = field(default_factory=Glorot)

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        layers = convolutions() | {"flatten": nn.Flatten(), "divided": _Divided(self.divided)}
        return layers | self._head(method, MAPS * SIDE * SIDE, self.hidden, MAPS)


class _Divided(nn.Module):
    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        return x / self.divisor


# Configuration D of VGG (Simonyan and Zisserman, 2015): of each stage, the maps of its convolutions.
_D = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_MEANS = (103.939, 116.779, 123.68)  # blue, green, red


@dataclass(frozen=True)
class VGG(Model):
    """Stages of 3x3 convolutions, each with ReLU and 2x2 max-pooling; two hidden layers with the method; softmax.

    Layers are called as in the published Caffe model, whose weights expect blue, green and red from 0 to 255 without
    their means: the layer ``means`` makes that of the images.

    Attributes:
        stages: Of each, the maps of its convolutions.
        hidden: Units of each hidden layer.
        side: Of the images in training.
    """

    kind: ClassVar[str] = "vgg"

    stages: tuple[tuple[int, ...], ...] = _D
    hidden: int = 4096
    classes: int = 1000
    side: int = 224
    divisor: float = 1.0

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        convolutions: OrderedDict[str, nn.Module] = OrderedDict()
        channels = 3
        for number, stage in enumerate(self.stages, 1):
            for place, maps in enumerate(stage, 1):
                convolutions[f"conv{number}_{place}"] = nn.Conv2d(channels, maps, 3, padding=1)
                convolutions[f"relu{number}_{place}"] = nn.ReLU(inplace=True)
                channels = maps
            convolutions[f"pool{number}"] = nn.MaxPool2d(2)
        inputs = channels * (self.side // 2 ** len(self.stages)) ** 2
        before: dict[str, nn.Module] = {"means": _Means(), "convolutions": nn.Sequential(convolutions)}
        return before | _dense(method, inputs, self.hidden, self.classes, self.scale)


@dataclass(frozen=True)
class VGGHead(Model):
    """The fully connected layers of :class:`VGG` alone, on what its convolutions make of images.

    Attributes:
        maps: Of the last convolution.
        side: Of these maps in training.
        hidden: Units of each hidden layer.
        classes: Number of classes.
    """

    kind: ClassVar[str] = "vgg-head"

    maps: int = 512
    side: int = 7
    hidden: int = 4096
    classes: int = 1000

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        return _dense(method, self.maps * self.side**2, self.hidden, self.classes, self.scale)


def _dense(method: Method, inputs: int, hidden: int, classes: int, scale: Scale) -> dict[str, nn.Module]:
    first, second = (
        hidden_layer(method, size, hidden, activation="relu", scale=scale, reads_hidden=after)
        for size, after in ((inputs, False), (hidden, True))
    )
    last = output_layer(method, hidden, classes, scale=scale)
    return {"flatten": nn.Flatten(), "fc6": first, "fc7": second, "fc8": last}


class _Means(nn.Module):
    """Red, green and blue from 0 to 255 to blue, green and red without their means."""

    means: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("means", torch.tensor(_MEANS).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images.flip(1) - self.means


@torch.no_grad()
def dense_probabilities(network: nn.Module, images: Tensor) -> Tensor:
    """Return class probabilities [N, classes] of uncropped images, at least as large as in training.

    The hidden layers see every window of the last maps that is as large as those in training, as if they were
    convolutions; logits are averaged over the windows, and probabilities over the image and its mirror image.

    Args:
        network: Built by :class:`VGG`, with any method, or by :class:`VGGHead`.
        images: [N, 3, H, W]; or maps of images and of their mirror images, [N, 2, C, H, W].
    """
    both = images.unbind(1) if images.dim() == 5 else (last_maps(network, images), last_maps(network, images.flip(3)))
    return (_probabilities(network, both[0]) + _probabilities(network, both[1])) / 2


def last_maps(network: nn.Module, images: Tensor) -> Tensor:
    """Return the last maps of a :class:`VGG`'s convolutions for images [N, 3, H, W]."""
    for name in ("pixels", "means", "convolutions"):
        images = network.get_submodule(name)(images)
    return images


def dense_forward(model: nn.Module, batch: Any) -> Tensor:  # its name is a part of keys
    """Return the logits of crops in training, else the logarithm of :func:`dense_probabilities`.

    Images of one batch may differ in size; they are a list then.
    """
    images = batch[0]
    if model.training:
        logits: Tensor = model(images)
        return logits
    several = [images] if isinstance(images, Tensor) else [image[None] for image in images]
    found = torch.cat([dense_probabilities(model, each) for each in several])
    return found.clamp(min=torch.finfo(found.dtype).tiny).log()


def _probabilities(network: nn.Module, maps: Tensor) -> Tensor:
    dense = [network.get_submodule(name) for name in ("fc6", "fc7", "fc8")]
    inputs = dense[0].get_submodule("linear").in_features
    assert isinstance(inputs, int)
    side = math.isqrt(inputs // maps.shape[1])
    windows = F.unfold(maps, side).transpose(1, 2)  # [N, windows, inputs]
    logits = windows.reshape(-1, inputs)
    for layer in dense:
        logits = layer(logits)
    return logits.view(len(maps), windows.shape[1], -1).mean(1).softmax(1)
