"""Files of a report: tables, figures that are drawn by other processes, and their copies within the page."""

from __future__ import annotations

import gc
import html
import multiprocessing
import os
import pathlib
import re
import sys
import threading
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from typing import Any

import markupsafe

from ..._files import replacing
from . import figures, formats

Task = Callable[[], object]
_AT_ONCE = 4  # tasks of a child: to make one costs as much as a small figure
_WIDE = 6.5  # inches: a picture that is wider gets the whole width


class PageFiles:
    """Writer of tables and figures that records what the page shows of each; figures in these ``endings``."""

    def __init__(self, out: pathlib.Path, endings: Sequence[str], pool: FigurePool) -> None:
        self.tables: list[pathlib.Path] = []
        self.figures: list[pathlib.Path] = []
        self.inline = InlineFigures()
        self._out, self._endings, self._pool = out, endings, pool
        self._taken: set[str] = set()
        self._views: list[tuple[pathlib.Path, str, dict[str, Any]]] = []  # of figures: the SVG, its words, its place
        for directory in ("tables", "figures"):
            (out / directory).mkdir(parents=True, exist_ok=True)

    def _name(self, *parts: str) -> str:
        """Return an unused file name for a text."""
        text = "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in parts)[:100] or "unnamed"
        name, number = text, 2
        while name in self._taken:
            name, number = f"{text}-{number}", number + 1
        self._taken.add(name)
        return name

    def table(self, table: formats.Table, *prefix: str) -> dict[str, Any]:
        name, files = self._name(*prefix, table.name), []
        for kind, (ending, write) in formats.WRITERS.items():
            if kind != "JSON" or table.data:
                path = self._out / "tables" / f"{name}.{ending}"
                write_text(path, write(table))
                self.tables.append(path)
                files.append((kind, f"tables/{path.name}"))
        return {"table": table, "files": files}

    def picture(self, picture: figures.Picture, *prefix: str) -> dict[str, Any]:
        name, directory, endings = self._name(*prefix, picture.name), self._out / "figures", self._endings
        self._pool.do(lambda: figures.save(picture.draw(), directory, name, endings))
        files = [(ending.upper(), f"figures/{name}.{ending}") for ending in endings]
        self.figures += [self._out / path for _, path in files]
        view = {"title": picture.title, "caption": picture.caption, "files": files}
        self._views.append((directory / f"{name}.svg", picture.alt, view))
        return view

    def embed(self) -> None:
        """Embed the figures into their views, once all are drawn."""
        self._pool.finish()
        for number, (path, alt, view) in enumerate(self._views):
            svg = path.read_text(encoding="utf-8")
            width = re.search(r'<svg [^>]*width="([\d.]+)pt"', svg)
            view["drawing"] = markupsafe.Markup(self.inline.embed(svg, f"f{number}", alt))
            view["wide"] = width is not None and float(width[1]) > 72 * _WIDE


def write_text(path: pathlib.Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")


class FigurePool:
    """Process pool for tasks that write files; it runs them in order where forking is unsafe, or if ``alone``."""

    def __init__(self, *, alone: bool) -> None:
        # A child is a fork of this process, which only Linux and a process without other threads of ours can rely on.
        forks = sys.platform == "linux" and threading.active_count() == 1
        # More than processors, so that some are left to do while this process does what comes last.
        self._most = 2 * (os.cpu_count() or 1) if forks and not alone else 0
        self._warm = False
        self._next: list[Task] = []
        self._running: list[tuple[Any, list[Task]]] = []

    def do(self, task: Task) -> None:
        if not self._most or not self._warm:
            _draw([task])  # the first one here, for what it loads, fonts among it, every child then has
            self._warm = True
            return
        self._next.append(task)
        if len(self._next) == _AT_ONCE:
            self._begin()

    def _begin(self) -> None:
        while len(self._running) >= self._most:
            self._wait()
        child = multiprocessing.get_context("fork").Process(target=_draw_quietly, args=(self._next,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which NumPy has, and knows how to fork
            child.start()
        self._running.append((child, self._next))
        self._next = []

    def finish(self) -> None:
        if self._next:
            self._begin()
        while self._running:
            self._wait()

    def _wait(self) -> None:
        child, tasks = self._running.pop(0)
        child.join()
        if child.exitcode:
            _draw(tasks)  # here, where the error can be reported


def _draw(tasks: list[Task]) -> None:
    """Run tasks without garbage collection.

    A figure is tens of thousands of objects that are all in use until it is drawn; to look for unused ones among them,
    again and again, takes a fifth of the time. A child process would also copy all memory that it looks at.
    """
    for task in tasks:
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            task()
        finally:
            if is_enabled:
                gc.enable()


def _draw_quietly(tasks: list[Task]) -> None:
    os.nice(5)  # the parent goes first: what it has read, others draw
    gc.disable()
    try:
        _draw(tasks)
    except BaseException:
        os._exit(1)


_DROPPED = {"metadata", "style", "title", "script", "foreignObject"}
_LINKS = {"{http://www.w3.org/1999/xlink}href", "href"}
_REFERENCE = re.compile(r"url\(#([^)\s]+)\)")
_COLOUR = re.compile(r"#([0-9a-f]{6})\b")
_HARMLESS = re.compile(r"[\w\s:;#%.,'()+-]*")


class InlineFigures:
    """Converter of SVG files to elements of a page under its security policy, and collector of their style sheet.

    Style attributes would need a policy that allows any, so they become classes; colors become custom properties with
    the light colors as fallback, so that a dark page can set others.
    """

    def __init__(self) -> None:
        self.colours: set[str] = set()  # as "rrggbb"
        self._classes: dict[str, str] = {}  # names by the style they stand for

    def embed(self, svg: str, prefix: str, alt: str) -> str:
        """Return an SVG file of matplotlib as an element; the prefix makes its identifiers unique on the page."""
        root = ElementTree.fromstring(svg)
        for size in ("width", "height"):
            root.attrib.pop(size, None)
        root.attrib |= {"role": "img", "aria-label": alt, "class": "drawing"}
        return "".join(self._write(root, prefix))

    def rules(self) -> str:
        """Return the style rules of all embedded figures."""
        styles = {name: _COLOUR.sub(r"var(--c-\1, #\1)", style) for style, name in self._classes.items()}
        return "\n".join(f".{name} {{ {style} }}" for name, style in styles.items())

    def _write(self, element: ElementTree.Element, prefix: str) -> list[str]:
        tag = element.tag.rpartition("}")[2]
        if tag in _DROPPED:
            return []
        attributes = "".join(self._attribute(name, value, prefix) for name, value in element.attrib.items())
        parts = [f"<{tag}{attributes}>", html.escape(element.text or "")]
        for child in element:
            parts += [*self._write(child, prefix), html.escape(child.tail or "")]
        return [*parts, f"</{tag}>"]

    def _attribute(self, name: str, value: str, prefix: str) -> str:
        if name in _LINKS:
            name, value = "href", f"#{prefix}-{value[1:]}" if value.startswith("#") else value
            if not value.startswith(("#", "data:image/png;base64,")):
                return ""
        elif name == "style":
            name, value = "class", self._class(value)
        elif name == "id":
            value = f"{prefix}-{value}"
        elif name.lower().startswith("on") or "}" in name:
            return ""
        else:
            value = _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
        return f' {name}="{html.escape(value)}"'

    def _class(self, style: str) -> str:
        style = style.strip().rstrip(";")
        if not _HARMLESS.fullmatch(style):  # not what matplotlib writes
            return ""
        self.colours |= set(_COLOUR.findall(style))
        return self._classes.setdefault(style, f"d{len(self._classes)}")
