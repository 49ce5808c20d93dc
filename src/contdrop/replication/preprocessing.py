"""Preprocessing of images with numpy, for the data functions of studies, and a cache for what takes minutes.

A cached file's name is a digest of everything that decides what is in it, so nothing in the cache is ever out of date,
and deleting it costs time only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from .._files import replacing
from ..errors import UserError
from .datasets import dataset
from .datasets.dataset import fingerprint

CACHE_VARIABLE = "CONTDROP_CACHE"

Arrays = Mapping[str, np.ndarray]

_UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile)


def cache_directory() -> pathlib.Path:
    """Return ``$CONTDROP_CACHE`` if set, else "computed" in the user's cache directory for contdrop."""
    chosen = os.environ.get(CACHE_VARIABLE)
    try:
        return pathlib.Path(chosen).expanduser() if chosen else dataset.cache_directory() / "computed"
    except RuntimeError as error:
        raise UserError(
            f"cannot tell where to keep what is computed ({error}); set {CACHE_VARIABLE} to a directory"
        ) from error


def cached(name: str, key: tuple[object, ...], compute: Callable[[], Arrays]) -> Arrays:
    """Return the result of ``compute``, from the cache if it is there.

    Args:
        name: What it is, for people who look into the directory.
        key: All that decides the result: fingerprints of inputs, parameters, a number for the version of the formula.
        compute: Makes the arrays.
    """
    digest = hashlib.sha256(repr((name, *key)).encode()).hexdigest()
    path = cache_directory() / f"{name}-{digest[:32]}.npz"
    # A missing or damaged file is made again; numpy verifies the checksums of its format.
    with contextlib.suppress(*_UNREADABLE), path.open("rb") as stored, np.load(stored, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}
    made = compute()
    # A cache that cannot be written, on a full disk or a read-only one, is no reason to fail.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **made)  # type: ignore[arg-type]  # older versions know no allow_pickle here
    return made


_LEAST = 1e-8  # length that contrast is divided by
_CHUNK = 5_000  # images in double precision at a time
_WHITENING_VERSION = 1  # of the formula of whitening and its arithmetic, for the cache


def global_contrast(images: npt.NDArray[np.generic], scale: float = 1.0) -> npt.NDArray[np.float32]:
    """Remove each image's mean and scale all images to one length.

    With an image as a vector x and the mean of its values m, it is ``scale * (x - m) / |x - m|``; as in pylearn2, with
    which the published network in network was trained (``scale`` 55). An image of one colour stays zero.

    Args:
        images: [N, ...], of any type.
        scale: The length.
    """
    flat = images.reshape(len(images), -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    lengths = np.sqrt(np.einsum("nd,nd->n", flat, flat)) / scale
    lengths[lengths < _LEAST] = 1.0
    flat /= lengths[:, np.newaxis]
    return flat.reshape(images.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Whitening:
    """ZCA whitening, a linear map of images after which pixels no longer covary; see :func:`fit_whitening`."""

    mean: npt.NDArray[np.float32]  # [D]
    matrix: npt.NDArray[np.float32]  # [D, D], symmetric

    def __call__(self, images: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        flat = images.reshape(len(images), -1).astype(np.float32)
        flat -= self.mean
        return (flat @ self.matrix).reshape(images.shape)


def fit_whitening(images: npt.NDArray[np.generic], eps: float = 0.1) -> Whitening:
    """Fit the whitening of these images, which should be those to train on.

    With the mean m and the covariance C = V diag(l) V' of the images as vectors, an image x becomes
    ``V diag((l + eps)^-1/2) V' (x - m)``, so that the covariance of the result is ``V diag(l / (l + eps)) V'``: with
    eps = 0 the identity on all directions in which the images vary.

    Args:
        images: [N, ...].
        eps: Added to the variances, so that directions that hardly vary are not blown up.
    """
    flat = images.reshape(len(images), -1)
    mean = flat.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((flat.shape[1],) * 2)
    for start in range(0, len(flat), _CHUNK):
        centred = flat[start : start + _CHUNK] - mean
        covariance += centred.T @ centred
    variances, directions = np.linalg.eigh(covariance / len(flat))
    # Rounding leaves directions without variance slightly positive or negative; divided by that they would be noise.
    nothing = variances[-1] * len(variances) * np.finfo(np.float64).eps
    shifted = variances + eps
    factors = np.where(shifted > nothing, 1 / np.sqrt(np.maximum(shifted, nothing)), 0.0)
    matrix = (directions * factors) @ directions.T
    return Whitening(mean.astype(np.float32), matrix.astype(np.float32))


def fitted_whitening(images: npt.NDArray[np.generic], eps: float = 0.1) -> Whitening:
    """Return :func:`fit_whitening` from the cache, by the content of the images."""
    key = _WHITENING_VERSION, fingerprint(images), eps
    return Whitening(**cached("zca", key, lambda: dataclasses.asdict(fit_whitening(images, eps))))
