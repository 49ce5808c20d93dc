"""Layers of cuda-convnet's networks: locally connected, and normalised across maps or over a neighbourhood."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
        if x.shape[1:] != (self.in_channels, *self.size):
            expected = (self.in_channels, *self.size)
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
        """Both directions one after the other: a Gaussian is the product of two."""
        half = len(self.kernel) // 2
        rows = F.conv2d(planes, self.kernel.view(1, 1, -1, 1), padding=(half, 0))
        return F.conv2d(rows, self.kernel.view(1, 1, 1, -1), padding=(0, half))
