"""Contrast normalisation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def global_contrast(
    images: npt.NDArray[np.generic], scale: float = 1.0, least: float = 1e-8
) -> npt.NDArray[np.float32]:
    """Images without their mean, and all of one length.

    With an image as a vector x and the mean of its values m, it is ``scale * (x - m) / |x - m|``; as in pylearn2, with
    which the published network in network was trained (``scale`` 55). An image of one colour stays zero.

    Args:
        images: [N, ...], of any type.
        scale: The length.
        least: The least divisor.
    """
    flat = images.reshape(len(images), -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    lengths = np.sqrt(np.einsum("nd,nd->n", flat, flat)) / scale
    lengths[lengths < least] = 1.0
    flat /= lengths[:, np.newaxis]
    return flat.reshape(images.shape)
