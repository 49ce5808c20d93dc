"""Usage errors and hints for unknown words."""

import difflib
from collections.abc import Iterable

_MOST = 10  # names in one line


class UserError(Exception):
    """A usage error: a wrong option, a bad file. Its text is one line; the exit code is 2."""


def mistake(where: str, expected: str, got: object, fix: str = "") -> UserError:
    """Return the usual error in one line: what was expected, what was given, and what to do.

    >>> str(mistake("--runs", "a whole number", 1.5, "leave it out"))
    '--runs: expected a whole number; got 1.5; leave it out'
    """
    return UserError(f"{where}: expected {expected}; got {got}{fix and '; '}{fix}")


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the most similar known one, or all known ones.

    >>> suggest("gausian", ["bernoulli", "gaussian"]), suggest("x", ["bernoulli", "gaussian"])
    ("did you mean 'gaussian'?", 'known: bernoulli, gaussian')
    """
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(names[:_MOST]) or 'none'}{', ...' if len(names) > _MOST else ''}"
