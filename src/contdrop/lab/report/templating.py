"""Templates: pages with a content security policy, and the notes and captions of tables and figures."""

from __future__ import annotations

import base64
import functools
import hashlib
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
import markupsafe

from ... import __version__
from ..._text import plural, visible
from ...errors import UserError
from ..analysis.metric_format import capital, moment
from ..study import labels
from . import style

_TEMPLATES = pathlib.Path(__file__).parent / "templates"


def render(template: str, **content: Any) -> str:
    """Render a template."""
    return _environment(is_html=True).get_template(template).render(version=__version__, **content)


def render_page(name: str, drawings: str, *, polls: bool = False, **content: Any) -> str:
    """Render a page with its script and the shared style sheet, extended by the style of its drawings.

    If it ``polls``, the script may ask the server that the page comes from.
    """
    sheet = markupsafe.Markup(f"{_read('page.css')}\n{drawings}\n")
    script = markupsafe.Markup(_read("theme.js") + _read(f"{name}.js"))
    return render(f"{name}.html", policy=_policy(sheet, script, polls), style=sheet, script=script, **content)


def dark_colours(names: Iterable[str]) -> str:
    """Return rules that give colors, named "rrggbb", their shade on a dark page, as custom properties."""
    dark = " ".join(f"--c-{name}: {style.dark('#' + name)};" for name in sorted(names))
    return (
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f'@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}'
    )


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def texts(name: str, *values: object, **more: object) -> tuple[str, ...]:
    """Return the notes or sentences of a macro in texts.txt: its lines that are not empty."""
    lines = str(getattr(_text_macros(), name)(*values, **more)).split("\n")
    return tuple(line.strip() for line in lines if line.strip())


def caption(name: str, *values: object, **more: object) -> str:
    """Return the sentences of a macro in texts.txt as a paragraph."""
    return " ".join(texts(name, *values, **more))


def listed(texts: Mapping[str, object], separator: str = ", ") -> str:
    """List methods, each with a text."""
    return separator.join(f"{labels.name_in_text(method)} {text}" for method, text in texts.items())


@functools.cache
def _environment(*, is_html: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=is_html,
        undefined=jinja2.StrictUndefined,
        finalize=_without_control if is_html else _on_one_line,
    )
    environment.filters |= {
        "called": lambda method, longest=60: labels.name_in_text(method, longest=longest),
        "capital": capital,
        "listed": listed,
        "moment": moment,
        "named": lambda method, longest=28: labels.display_name(method, longest=longest),
        "plural": plural,
        "shown": lambda method: labels.display_name(method, longest=10_000),
        "unbroken": _unbroken,
    }
    return environment


def _without_control(value: Any) -> Any:
    """Make control characters in texts from a store visible."""
    return value if isinstance(value, markupsafe.Markup) or not isinstance(value, str) else visible(value)


def _on_one_line(value: Any) -> Any:
    return value.replace("\n", " ") if isinstance(value, str) else value


@functools.cache
def _text_macros() -> Any:
    return _environment(is_html=False).get_template("texts.txt").module


def _unbroken(text: str) -> str:
    """Keep a number and its unit, and p and its value, on one line."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=\bp [=<]) (?=\d)", "\N{NO-BREAK SPACE}", text)


def _policy(style: str, script: str, polls: bool) -> str:
    """Return a content security policy that allows only this style and this script."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    connect = "connect-src 'self'; " if polls else ""
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        f"{connect}base-uri 'none'; form-action 'none'"
    )


INDEX = "index.html"
_GENERATOR = b'<meta name="generator" content="contdrop'


def check_directory(out: pathlib.Path) -> None:
    """Raise if the path is a file, or a directory with a page that contdrop did not write."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: expected a directory; {out} is a file")
    index = out / INDEX
    if index.exists() and _GENERATOR not in index.read_bytes()[:4000]:
        raise UserError(f"--out: {index} is not a report of contdrop, and stays as it is; choose another directory")
