"""Where data sets are kept."""

from __future__ import annotations

import os
import pathlib
import shlex

from ...errors import UserError
from ...lab.extensions import DATA_VARIABLE as VARIABLE


def directory(option: pathlib.Path | str | None = None) -> pathlib.Path:
    """The option ``--data-dir`` if given, else ``$CONTDROP_DATA``, else "contdrop" in the user's cache directory."""
    try:
        chosen = option or os.environ.get(VARIABLE)
        if chosen:
            path = pathlib.Path(chosen).expanduser()
            if path.is_file():
                raise UserError(f"{'--data-dir' if option else VARIABLE}: expected a directory; {path} is a file")
            return path
        return cache()
    except RuntimeError as error:
        raise UserError(f"cannot tell where to keep data ({error}); set {VARIABLE} or give --data-dir") from error


def cache() -> pathlib.Path:
    """The folder "contdrop" in the user's cache directory."""
    place = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (place if place.is_absolute() else pathlib.Path.home() / ".cache") / "contdrop"


def use_directory(option: pathlib.Path | str | None) -> None:
    """Lets this process and those it starts look for data sets there; None changes nothing."""
    if option is not None:
        os.environ[VARIABLE] = str(directory(option).absolute())


def command(name: str, directory_used: pathlib.Path) -> str:
    """What to type to get a data set into the directory in use."""
    option = "" if directory_used == directory() else f" --data-dir {shlex.quote(str(directory_used))}"
    return f"contdrop data get {name}{option}"
