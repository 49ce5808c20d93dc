"""Taking single files out of a tar archive: only what is asked for, and no name in it decides where it is written."""

from __future__ import annotations

import pathlib
import tarfile
from collections.abc import Collection, Iterator

from ..._text import printable
from .download import UnavailableError
from .idx import LIMIT


def members(archive: pathlib.Path, wanted: Collection[str], title: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of each wanted file, in the order of the archive, one in memory at a time.

    Args:
        archive: The file.
        wanted: Paths in the archive.
        title: What to call it in an error.

    Raises:
        UnavailableError: It cannot be read, or lacks a file, or one is larger than any data file is.
    """
    left = set(wanted)
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                file = tar.extractfile(entry) if entry.name in left and entry.isreg() else None
                if file is None:
                    continue
                content = file.read(LIMIT + 1)
                if len(content) <= LIMIT:
                    left.remove(entry.name)
                    yield entry.name, content
    # tarfile raises anything, up to ValueError and IndexError, about headers that make no sense.
    except Exception as error:
        said = printable(str(error)[:200]) or type(error).__name__
        raise UnavailableError(f"{title} is no archive that can be read ({said})") from error
    if left:
        raise UnavailableError(f"{title} has no {min(left)} of at most {LIMIT:,} bytes")
