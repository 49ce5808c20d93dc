"""Results that take minutes to compute and follow from their inputs alone: kept on disk, by the content of the inputs.

A file's name is a digest of everything that decides what is in it, so nothing in the cache is ever out of date, and
deleting it costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import zipfile
from collections.abc import Callable, Mapping

import numpy as np

from .._files import replacing
from ..errors import UserError
from .datasets import dataset

VARIABLE = "CONTDROP_CACHE"

Arrays = Mapping[str, np.ndarray]


def directory() -> pathlib.Path:
    """Return ``$CONTDROP_CACHE`` if set, else "computed" in the user's cache directory for contdrop."""
    chosen = os.environ.get(VARIABLE)
    try:
        return pathlib.Path(chosen).expanduser() if chosen else dataset.cache_directory() / "computed"
    except RuntimeError as error:
        raise UserError(
            f"cannot tell where to keep what is computed ({error}); set {VARIABLE} to a directory"
        ) from error


def cached(name: str, key: tuple[object, ...], compute: Callable[[], Arrays]) -> Arrays:
    """Return the result of ``compute``, from the cache if it is there.

    Args:
        name: What it is, for people who look into the directory.
        key: All that decides the result: fingerprints of inputs, parameters, a number for the version of the formula.
        compute: Makes the arrays.
    """
    digest = hashlib.sha256(repr((name, *key)).encode()).hexdigest()
    path = directory() / f"{name}-{digest[:32]}.npz"
    found = _read(path)
    if found is not None:
        return found
    made = compute()
    # A cache that cannot be written, on a full disk or a read-only one, is no reason to fail.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **made)  # type: ignore[arg-type]  # older versions know no allow_pickle here
    return made


def _read(path: pathlib.Path) -> Arrays | None:
    """Read cached arrays; return None for a missing or damaged file (numpy verifies the format's checksums)."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
