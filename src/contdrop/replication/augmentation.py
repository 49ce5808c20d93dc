"""Augmentation of images: crop, scaling, rotation and flip in one resampling.

A study's ``transform`` draws the change of an image from run, epoch and position, the same for all methods; the study's
``forward`` applies it to a whole batch::

    changes = Affine(side=28)
    lab.Study(..., data=lambda: lab.Data(..., transform=changes.draw), forward=changes.forward)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..lab.study.study import Configuration


@dataclass(frozen=True)
class Affine(Configuration):
    """Random crop, scaling, rotation and flip.

    The paper's "15 % scaling and rotation" is read as factors from 0.85 to 1.15 and angles up to 15 degrees.

    Attributes:
        side: Side of the crop; images keep their size if None. Evaluation takes the central crop.
        scaling: Range of the factor, 1 - scaling to 1 + scaling.
        degrees: Range of the angle, -degrees to degrees.
        flip: Mirror half of the images.
    """

    kind: ClassVar[str] = "affine"

    side: int | None = None
    scaling: float = 0.15
    degrees: float = 15.0
    flip: bool = False

    def draw(self, item: tuple[Tensor, Any], generator: torch.Generator) -> tuple[Tensor, Tensor, Any]:
        """Draw the change of an image: return image, matrix [2, 3] and label."""
        image, label = item
        scale, angle, down, right, mirrored = torch.rand(5, generator=generator).tolist()
        factor = 1 + self.scaling * (2 * scale - 1)
        radians = math.radians(self.degrees * (2 * angle - 1))
        mirror = -1.0 if self.flip and mirrored < 0.5 else 1.0
        height, width = image.shape[-2:]
        room = (height - self._size(height), width - self._size(width))
        # Places are from -1 to 1 over the image: where in it a pixel of the result comes from.
        vertical, horizontal = room[0] * (2 * down - 1) / height, room[1] * (2 * right - 1) / width
        sizes = self._size(height) / height, self._size(width) / width
        cosine, sine = math.cos(radians) / factor, math.sin(radians) / factor
        matrix = [
            [mirror * cosine * sizes[1], -sine * sizes[0] * height / width, horizontal],
            [mirror * sine * sizes[1] * width / height, cosine * sizes[0], vertical],
        ]
        return image, torch.tensor(matrix), label

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        """Call the model with a batch, changed as drawn in training, else cropped in the middle."""
        divisors = (module.divisor for module in model.modules() if isinstance(module, Pixels))
        images = self.changed(batch[0], batch[1], next(divisors, 255.0)) if len(batch) == 3 else self.middle(batch[0])
        result: Tensor = model(images)
        return result

    def changed(self, images: Tensor, matrices: Tensor, divisor: float = 255.0) -> Tensor:
        """Return images [N, C, H, W] resampled bilinearly; beyond an edge the edge repeats.

        Whole numbers are divided by the divisor, as the model does with those that nothing is done to.
        """
        pixels = images if images.is_floating_point() else images.to(torch.float32).div_(divisor)
        number, channels, height, width = images.shape
        shape = [number, channels, self._size(height), self._size(width)]
        grid = F.affine_grid(matrices, shape, align_corners=False)
        return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)

    def middle(self, images: Tensor) -> Tensor:
        height, width = (self._size(side) for side in images.shape[-2:])
        top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
        return images[..., top : top + height, left : left + width]

    def _size(self, side: int) -> int:
        return side if self.side is None else self.side


class Pixels(nn.Module):
    """Turns images of whole numbers into float32 from 0 to 1, so that they are kept and handed on in a byte a pixel."""

    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, images: Tensor) -> Tensor:
        return images if images.is_floating_point() else images.to(torch.float32).div_(self.divisor)


@dataclass(frozen=True)
class Crop(Configuration):
    """Random crop and, for half of the images, mirror image; nothing is resampled, so images may differ in size."""

    kind: ClassVar[str] = "crop"

    side: int

    def draw(self, item: tuple[Any, Any], generator: torch.Generator) -> tuple[Tensor, Any]:
        """Crop an image [C, H, W], or one of an image and its mirror image [2, C, H, W]."""
        image, label = torch.as_tensor(item[0]), item[1]
        mirrored, down, right = torch.rand(3, generator=generator).tolist()
        if image.dim() == 4:
            image = image[int(mirrored < 0.5)]
        elif mirrored < 0.5:
            image = image.flip(-1)
        top, left = (int(place * (size - self.side + 1)) for place, size in zip((down, right), image.shape[-2:]))
        return image[..., top : top + self.side, left : left + self.side], label


def as_they_are(items: list[Any]) -> tuple[Any, Tensor]:
    """Collate images and labels: the images as one tensor if they are of one size, else as a list."""
    images = [torch.as_tensor(image) for image, _ in items]
    alike = all(image.shape == images[0].shape for image in images)
    return torch.stack(images) if alike else images, torch.tensor([int(label) for _, label in items])
