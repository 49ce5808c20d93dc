"""The network for SVHN and NORB, cuda-convnet's layers-conv-local-11pct with a fully connected layer on top."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...lab.study.methods import Method
from .models import Initialization, Layered, Model

_WINDOW, _DEVIATION = 9, 2.25  # of local contrast, in pixels
_LEAST = 1e-4  # deviation, so that an even image stays even


class LocallyConnected2d(nn.Module):
    """A convolution whose kernels differ from place to place, with a bias of its own for each unit.

    With x padded by zeros, ``y[n, o, i, j] = b[i, j, o] + sum_{p, q, c} w[p, q, i, j, c, o] x[n, c, i + p, j + q]``.
    For each row of places and each (p, q) these are products of matrices, one for every place of the row, on memory as
    it lies: forward and backward take at most three times as long as a convolution of as many multiplications.

    Args:
        in_channels: Maps of the input.
        out_channels: Maps of the output.
        size: Height and width of both.
        kernel: Side of the kernels, an odd number; the input is padded so that the size stays.
    """

    def __init__(self, in_channels: int, out_channels: int, size: tuple[int, int], kernel: int = 3) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"LocallyConnected2d: expected an odd kernel; got {kernel}")
        self.in_channels, self.out_channels, self.size, self.kernel = in_channels, out_channels, size, kernel
        places = math.prod(size)
        self.weight = nn.Parameter(torch.empty(kernel**2, places, in_channels, out_channels))
        self.bias = nn.Parameter(torch.zeros(places * out_channels))
        bound = 1 / math.sqrt(in_channels * kernel**2)  # as torch's convolutions start
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        expected = (self.in_channels, *self.size)
        if x.shape[1:] != expected:
            raise ValueError(f"LocallyConnected2d: expected inputs [N, {expected}]; got {tuple(x.shape)}")
        units: Tensor = _Local.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return units


class _Local(torch.autograd.Function):
    """Inside, places come first: [H, W, N, C], so that what a row of kernels sees is one piece of memory."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        number, channels, height, width = x.shape
        side = math.isqrt(weight.shape[0])
        seen = F.pad(x, (side // 2,) * 4).permute(2, 3, 0, 1).contiguous()
        kernels = weight.view(side, side, height, width, channels, -1)
        units = bias.view(height, width, 1, -1).repeat(1, 1, number, 1)
        for i, p, q in itertools.product(range(height), range(side), range(side)):
            units[i].baddbmm_(seen[i + p, q : q + width], kernels[p, q, i])
        context.save_for_backward(seen, weight)
        return units.permute(2, 3, 0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen, weight = context.saved_tensors
        gradient = gradient.permute(2, 3, 0, 1).contiguous()
        height, width = gradient.shape[:2]
        side = math.isqrt(weight.shape[0])
        kernels = weight.view(side, side, height, width, *weight.shape[2:])
        of_kernels, of_seen = torch.empty_like(kernels), torch.zeros_like(seen)
        for i, p, q in itertools.product(range(height), range(side), range(side)):
            row = seen[i + p, q : q + width]
            torch.bmm(row.transpose(1, 2), gradient[i], out=of_kernels[p, q, i])
            of_seen[i + p, q : q + width].baddbmm_(gradient[i], kernels[p, q, i].transpose(1, 2))
        inner = of_seen[side // 2 : side // 2 + height, side // 2 : side // 2 + width]
        return inner.permute(2, 3, 0, 1), of_kernels.view_as(weight), gradient.sum(2).flatten()


class CrossMapNorm(nn.Module):
    """Local response normalisation over neighbouring maps (Krizhevsky et al., 2012).

    ``y_m = x_m / (1 + alpha / size * sum x_i^2)^beta`` over the ``size`` maps around m, those that there are.
    """

    def __init__(self, size: int = 9, alpha: float = 1e-3, beta: float = 0.75) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = size, alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        squares = x.square().movedim(1, -1)
        # A mean over a window of the last axis; a padded zero counts, as the divisor is the size in any case.
        flat = squares.reshape(-1, 1, squares.shape[-1])
        means = F.avg_pool1d(flat, self.size, 1, self.size // 2).view(squares.shape).movedim(-1, 1)
        return x * (1 + self.alpha * means).pow(-self.beta)


class LocalContrast(nn.Module):
    """Subtractive and divisive normalisation over a neighbourhood, each channel by itself (Jarrett et al., 2009).

    With ``mean`` the mean under a Gaussian window, cut off and reweighted at the edges: ``v = x - mean(x)``,
    ``s = sqrt(mean(v^2))``, ``y = v / max(s, c)``, c the mean of s over the channel. The paper does not say which
    window: 9x9 with a standard deviation of 2.25 is our choice.

    A layer and no step before training: images stay bytes until they are in a batch, which for SVHN saves 5 GB.
    """

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        offsets = torch.arange(_WINDOW, dtype=torch.float32) - _WINDOW // 2
        line = torch.exp(-(offsets**2) / (2 * _DEVIATION**2))
        self.register_buffer("kernel", line / line.sum(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        planes = x.reshape(-1, 1, *x.shape[-2:])
        inside = self._window(torch.ones_like(planes[:1]))
        centred = planes - self._window(planes) / inside
        deviations = (self._window(centred.square()) / inside).sqrt()
        floor = deviations.mean((2, 3), keepdim=True).clamp(min=_LEAST)
        return (centred / torch.maximum(deviations, floor)).view(x.shape)

    def _window(self, planes: Tensor) -> Tensor:
        """Apply a Gaussian window, one direction after the other."""
        half = len(self.kernel) // 2
        rows = F.conv2d(planes, self.kernel.view(1, 1, -1, 1), padding=(half, 0))
        return F.conv2d(rows, self.kernel.view(1, 1, 1, -1), padding=(0, half))


# The convolutions' and the hidden layer's are the paper's, the local layers' cuda-convnet's. The output layer's is our
# choice: the paper has 0.1 for every fully connected layer (docs/deviations.md).
_STDS = (
    *(("convolution1", 0.01), ("convolution2", 0.01), ("local3", 0.04), ("local4", 0.04)),
    *(("hidden1", 0.1), ("output", 0.01)),
)


@dataclass(frozen=True)
class ConvLocal(Model):
    """Two convolutions, two locally connected layers, and a hidden layer of ReLU units with the method.

    Attributes:
        image: Channels, height and width of the images.
        classes: Number of classes.
        maps: Of the two convolutions and the two local layers.
        hidden: Units with the method.
        local_contrast: Whether images are normalised over neighbourhoods first.
    """

    kind: ClassVar[str] = "conv-local"

    image: tuple[int, int, int] = (3, 28, 28)
    classes: int = 10
    maps: tuple[int, int, int, int] = (64, 64, 64, 32)
    hidden: int = 512
    local_contrast: bool = True
    initialisation: Initialization = field(default_factory=lambda: Layered(_STDS))

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        channels, height, width = self.image
        first, second, third, fourth = self.maps
        # Pooling by 3 with stride 2, rounded up, halves a side: 28 becomes 14 and 7, 48 becomes 24 and 12.
        size = height // 4, width // 4
        layers: dict[str, nn.Module] = {"contrast": LocalContrast()} if self.local_contrast else {}
        layers |= {
            "convolution1": nn.Conv2d(channels, first, 5, padding=2),
            "activation1": nn.ReLU(),
            "pooling1": nn.MaxPool2d(3, 2, ceil_mode=True),
            "normalisation1": CrossMapNorm(),
            "convolution2": nn.Conv2d(first, second, 5, padding=2),
            "activation2": nn.ReLU(),
            "normalisation2": CrossMapNorm(),
            "pooling2": nn.MaxPool2d(3, 2, ceil_mode=True),
            "local3": LocallyConnected2d(second, third, size),
            "activation3": nn.ReLU(),
            "local4": LocallyConnected2d(third, fourth, size),
            "activation4": nn.ReLU(),
            "flatten": nn.Flatten(),
        }
        return layers | self._head(method, fourth * size[0] * size[1], self.hidden, self.classes)
