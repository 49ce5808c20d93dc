"""Templates: pages with a content security policy, and the notes and captions of tables and figures."""

from __future__ import annotations

import base64
import hashlib
import pathlib
from collections.abc import Iterable
from typing import Any

import markupsafe

from ... import __version__
from ...errors import UserError
from ..analysis import rendering
from . import style

_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_TEXTS = _TEMPLATES / "texts.txt"


def render(template: str, **content: Any) -> str:
    """Render a template."""
    return rendering.environment(_TEMPLATES, is_html=True).get_template(template).render(version=__version__, **content)


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
    """Return the notes or sentences of a macro in texts.txt."""
    return rendering.texts(name, *values, file=_TEXTS, **more)


def caption(name: str, *values: object, **more: object) -> str:
    """Return the sentences of a macro in texts.txt as a paragraph."""
    return rendering.paragraph(name, *values, file=_TEXTS, **more)


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
