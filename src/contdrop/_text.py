"""Text that all parts of the package write or parse in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .errors import suggest


def plural(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> plural(1, "run"), plural(0, "run"), plural(1500, "epoch")
    ('1 run', '0 runs', '1,500 epochs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some_of(names: Iterable[str], most: int = 5) -> str:
    """List the first few names and count the others.

    >>> some_of(["a", "b"]), some_of("abcd", most=2)
    ('a, b', 'a, b and 2 more')
    """
    all_names = list(names)
    return ", ".join(all_names[:most]) + (f" and {len(all_names) - most} more" if len(all_names) > most else "")


def duration(seconds: float) -> str:
    """Format a duration with its two largest units.

    >>> [duration(s) for s in (0.4, 42, 185, 7500, 200000)]
    ['0 s', '42 s', '3 min 5 s', '2 h 5 min', '2 d 7 h']
    """
    whole = round(seconds)
    for size, larger, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {larger} {whole % size // part} {smaller}"
    return f"{whole} s"


def visible(text: str) -> str:
    r"""Replace control characters and those that change the direction of writing.

    >>> visible("a\x1b[2Jb\u202ec") == "a\ufffd[2Jb\ufffdc"
    True
    """
    return "".join(c if c.isprintable() or c == "\n" else " " if c.isspace() else "\ufffd" for c in text)


def printable(text: str) -> str:
    """Apply :func:`visible` and put the text on one line."""
    return " ".join(visible(text).split())


def no_formula(text: str) -> str:
    """Prefix text that a spreadsheet would take for a formula with an apostrophe.

    >>> no_formula("=1+1"), no_formula("none")
    ("'=1+1", 'none')
    """
    text = printable(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def parse_label(
    text: str, known: Mapping[str, Sequence[str]] | None = None, kind: str = "label"
) -> tuple[str, dict[str, float]]:
    """Read the text form of laws and methods, ``name`` or ``name:parameter=number,parameter=number``.

    >>> parse_label("gaussian:sigma=0.3", {"gaussian": ["sigma"]}, "law")
    ('gaussian', {'sigma': 0.3})

    Args:
        text: Text to parse.
        known: The parameters of every name; None allows any. Defaults are the caller's.
        kind: Noun for the names in messages.

    Raises:
        ValueError: If the text is malformed or contains an unknown name.
    """
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if known is not None and name not in known:
        raise ValueError(f"unknown {kind} {name!r} in {text!r}; {suggest(name, known)}")
    given: dict[str, float] = {}
    for item in rest.split(",") if rest.strip() else []:
        key, _, number = (part.strip() for part in item.partition("="))
        if known is not None and key not in known[name]:
            hint = suggest(key, known[name]) if known[name] else "it has none: leave it out"
            raise ValueError(f"{name} has no parameter {key!r} in {text!r}; {hint}")
        if key in given:
            raise ValueError(f"{key} is given twice in {text!r}")
        try:
            given[key] = float(number)
        except ValueError:
            raise ValueError(f"expected {key}=<number>, got {item.strip()!r} in {text!r}") from None
    if "variance" in given and "sigma" in given:
        raise ValueError(f"give sigma or variance, not both, in {text!r}")
    return name, given
