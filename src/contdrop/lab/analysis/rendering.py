"""Sentences of verdicts, tables and figures from Jinja templates."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..._text import plural, visible
from ..study import labels
from .comparisons import includes_zero, is_equivalent, is_known, wilcoxon_rejects
from .metric_format import capital, mean_of, moment, names, ordinal, probability, tally

if TYPE_CHECKING:
    import jinja2

_VERDICT = pathlib.Path(__file__).parent / "templates" / "verdict.txt"


def texts(name: str, *values: object, file: pathlib.Path = _VERDICT, **more: object) -> tuple[str, ...]:
    """Return the sentences of a template's macro: its lines that are not empty."""
    lines = str(getattr(_macros(file), name)(*values, **more)).split("\n")
    return tuple(line.strip() for line in lines if line.strip())


def paragraph(name: str, *values: object, file: pathlib.Path = _VERDICT, **more: object) -> str:
    """Return the sentences of a template's macro as a paragraph."""
    return " ".join(texts(name, *values, file=file, **more))


def listed(texts: Mapping[str, object], separator: str = ", ") -> str:
    """List methods, each with a text."""
    return separator.join(f"{labels.name_in_text(method)} {text}" for method, text in texts.items())


@functools.cache
def environment(directory: pathlib.Path, *, is_html: bool) -> jinja2.Environment:
    """Return the environment of the templates in a directory, with filters for methods and numbers."""
    import jinja2  # takes a moment, which a worker that only trains need not wait
    import markupsafe

    def without_control(value: Any) -> Any:
        """Make control characters in texts from a store visible."""
        return value if isinstance(value, markupsafe.Markup) or not isinstance(value, str) else visible(value)

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(directory),
        autoescape=is_html,
        undefined=jinja2.StrictUndefined,
        finalize=without_control if is_html else _on_one_line,
    )
    found.filters |= {
        "called": lambda method, longest=60: labels.name_in_text(method, longest=longest),
        "capital": capital,
        "listed": listed,
        "mean_of": mean_of,
        "moment": moment,
        "named": lambda method, longest=28: labels.display_name(method, longest=longest),
        "names": names,
        "ordinal": ordinal,
        "plural": plural,
        "probability": probability,
        "shown": lambda method: labels.display_name(method, longest=10_000),
        "tally": lambda found: tally(found.wins, found.ties, found.losses),
        "unbroken": _unbroken,
        "zip": zip,
    }
    found.tests |= {
        "equivalent": is_equivalent,
        "known": is_known,
        "rejected_by_wilcoxon": wilcoxon_rejects,
        "spanning_zero": includes_zero,
    }
    return found


@functools.cache
def _macros(file: pathlib.Path) -> Any:
    return environment(file.parent, is_html=False).get_template(file.name).module


def _on_one_line(value: Any) -> Any:
    return value.replace("\n", " ") if isinstance(value, str) else value


def _unbroken(text: str) -> str:
    """Keep a number and its unit, and p and its value, on one line."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=\bp [=<]) (?=\d)", "\N{NO-BREAK SPACE}", text)
