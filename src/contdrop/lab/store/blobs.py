"""Files beside a store for large checkpoints and weights, because a value in SQLite is limited to 10^9 bytes.

The database has a reference: the file's name, size and SHA-256. A file is complete and on disk before its reference is
committed, and the file that it replaces is removed afterwards. So a process that is killed in between leaves a file too
many, which :meth:`BlobDirectory.remove` finds by its job, and never one too few.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import pathlib
from collections.abc import Sequence
from typing import Any

from ..._files import TEMPORARY, replacing
from ...errors import UserError

LARGE = 2**24  # bytes; larger contents become files
CHECKPOINT, WEIGHTS = ".checkpoint", ".weights"  # ends of names
_MAGIC = b"contdrop file 1\n"

Buffer = bytes | memoryview


def beside(store: pathlib.Path, ending: str) -> pathlib.Path:
    """Return the path of another file of a store."""
    return store.with_name(store.name + ending)


class BlobDirectory:
    """Directory of a store's files, made when the first is written."""

    def __init__(self, store: pathlib.Path) -> None:
        self.directory = beside(store, "-files")

    @staticmethod
    def owner(key: str) -> str:
        """Return the start of a job's key, with which the names of its files start."""
        return key[:32]

    def put(self, key: str, end: str, parts: Sequence[Buffer]) -> bytes:
        """Write a file that belongs to a job, and return the reference to it."""
        path = self.directory / (self.owner(key) + end)
        digest, size = hashlib.sha256(), 0
        try:
            self.directory.mkdir(exist_ok=True)
            with replacing(path, durable=True) as temporary, temporary.open("wb") as file:
                for part in parts:
                    digest.update(part)
                    size += file.write(part)
        except OSError as error:
            raise UserError(
                f"cannot write {path}: {error.strerror}; make room or change its permissions, then give the same "
                "command again: nothing is lost"
            ) from error
        return _MAGIC + json.dumps({"name": path.name, "size": size, "sha256": digest.hexdigest()}).encode()

    def get(self, reference: bytes) -> Buffer | None:
        """Return the content that a reference stands for; None if the file is gone, or is not what was written."""
        stated = _stated(reference)
        path = self.directory / pathlib.PurePath(stated["name"]).name
        try:
            with path.open("rb") as file:
                if path.stat().st_size == stated["size"]:
                    content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                    return content if hashlib.sha256(content).hexdigest() == stated["sha256"] else None
        except OSError:
            pass
        return None

    def remove(self, key: str, *, keep: bytes = b"") -> None:
        """Remove a job's checkpoints, complete or not, except the one that the reference ``keep`` names."""
        kept = _stated(keep)["name"] if is_reference(keep) else None
        for path, owner in self.checkpoints():
            if owner == self.owner(key) and path.name != kept:
                path.unlink(missing_ok=True)

    def checkpoints(self) -> list[tuple[pathlib.Path, str]]:
        """Return every checkpoint, complete or not, with its owner."""
        found = sorted(self.directory.iterdir()) if self.directory.is_dir() else []
        return [(path, self.owner(path.name.lstrip("."))) for path in found if path.suffix in (CHECKPOINT, TEMPORARY)]


def is_reference(content: bytes) -> bool:
    """Return True if the database has a reference to a file instead of the content itself."""
    return content.startswith(_MAGIC)


def _stated(reference: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reference.removeprefix(_MAGIC))
    return found
