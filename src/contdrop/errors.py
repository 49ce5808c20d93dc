"""Mistakes of the user."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Wrong usage or bad input. Its text is the one line that the user sees, and the exit code is 2."""


def suggest(word: str, known: Iterable[str]) -> str:
    """What the user may have meant by an unknown word."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
