"""An experiment on one page: what was compared, the verdict, the figures behind it, and how to get them again.

Everything has a greatest size, and the picture gets what is left of the sheet; so it is one page, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ... import __version__
from ..._text import plural
from ..analysis.outcomes import WORDS, outcome_of
from ..analysis.phrases import capital, name_in_text
from ..analysis.verdict import Verdict
from ..stats import Comparison, summary
from ..store.results import Results
from ..study import labels
from . import protocol, style
from .cells import mean_sd
from .figures.drawing import SIZE, SMALL, TINY, blank, fitting, short_names, styled, text_width, wrapped
from .figures.paired_differences import draw_into

_PAGE = 8.27, 11.69  # A4, in inches
_MARGIN = 0.7
_WIDTH = _PAGE[0] - 2 * _MARGIN
_MOST_METHODS = 12  # in the table
_GAP = 0.16  # inches between its columns
_NAMES = 1.9  # inches for names of methods; longer ones are cut
_LONGEST = 34  # characters of such a name
# Sizes of its text, each with the greatest width of headings in one line: the first that leaves room for names.
_LAYOUTS = (SMALL, 9.0), (SMALL, 1.5), (SMALL, 0.0), (TINY, 0.0), (6.5, 0.0)
_LINE = 1.45 / 72  # inches between two lines, per point of their size
_ROW = 0.18, 0.6  # least and greatest height of a row of the picture
_AROUND = 1.1  # height of what is above and below its rows
_LETTERS = int(_WIDTH * 72 / (0.6021 * TINY))  # in a line of a command: so wide are those of DejaVu Sans Mono
_MOST_LINES = 4  # of commands


def draw(results: Results, comparisons: Mapping[str, Comparison], found: Verdict, store: str) -> Figure:
    """The page of an experiment that has comparisons."""
    with styled():
        sheet = _Sheet()
        record = results.protocol
        sheet.write(f"{labels.printable(record.experiment)} · {protocol.size(results)}", SMALL, faint=True)
        sheet.write(labels.printable(record.description.get("title") or record.experiment), 13, most=2, after=0.12)
        sheet.write(found.headline, 13, bold=True, most=2, after=0.06)
        sheet.write(" ".join(found.details), SIZE, most=4, after=0.06)
        for finding in found.findings[:2]:
            sheet.write(f"{finding.label}: {finding.text}", SMALL, most=5, after=0.05)
        sheet.down(0.08)
        for term, texts in protocol.protocol(results):
            if term in ("Size", "Data", "Metric"):
                sheet.fact(term, texts[0])
        sheet.down(0.14)
        _table(sheet, results, comparisons, _methods(results, _MOST_METHODS))
        _picture(sheet, results, comparisons, _last(sheet, results, store))
        return sheet.figure


def _methods(results: Results, most: int) -> list[str]:
    """By their means, the best first; the reference always among them."""
    means = {method: summary(list(runs.values())).mean for method, runs in results.errors().items()}
    order = sorted(means, key=lambda method: results.measure.sign * means[method])
    kept = [results.reference, *(method for method in order if method != results.reference)][:most]
    return [method for method in order if method in kept]


def _table(sheet: _Sheet, results: Results, comparisons: Mapping[str, Comparison], methods: Sequence[str]) -> None:
    measure, errors = results.measure, results.errors()
    reference = name_in_text(results.reference, longest=20)
    head = "Method", "runs", f"test {measure.heading}", f"{reference} minus it, 95 % interval", reference
    rows = {method: _cells(results, method, comparisons.get(method)) for method in methods}
    size, widths = _layout(head, list(rows.values()))
    names = short_names(methods, longest=_LONGEST, size=size, width=widths[0], bold=True)
    sheet.head(head, size, widths)
    for method, row in rows.items():
        sheet.row((names[method], *row[1:]), size, widths, bold=method == results.reference)
    left = len(errors) - len(methods)
    note = f"{capital(measure.sign_rule(name_in_text(results.reference)))}. Means ± standard deviation over runs."
    more = f" {plural(left, 'more method')} {'is' if left == 1 else 'are'} on the page." if left else ""
    sheet.write(f"{note}{more}", TINY, faint=True, most=2)


def _cells(results: Results, method: str, against: Comparison | None) -> tuple[str, ...]:
    measure, values = results.measure, summary(list(results.errors()[method].values()))
    gap, word = ("", "reference" if method == results.reference else "")
    if against is not None:
        low, high = against.interval
        gap = measure.signed(against.difference)
        gap += f" [{measure.signed(low)}, {measure.signed(high)}]" if low == low else ""
        word = WORDS[outcome_of(against)]
    return labels.display_name(method, longest=_LONGEST), str(values.n), mean_sd(values, measure), gap, word


def _layout(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """The size of the table's text, and the widths of its columns; methods get what the others leave."""
    names, *columns = zip(*rows)
    for size, longest in _LAYOUTS:
        widths = [
            max(text_width(cells, size, bold=True), min(longest, text_width([title], size)), _word(title, size))
            for title, cells in zip(head[1:], columns)
        ]
        left = _WIDTH - sum(widths) - _GAP * len(widths)
        if left >= max(min(_NAMES, text_width(names, size, bold=True)), text_width(head[:1], size)):
            break
    return size, [left, *widths]


def _word(title: str, size: float) -> float:
    """Width of the longest word of a heading, within limits: a longer one is cut."""
    return min(1.2, text_width(title.split(), size) + 0.01)


def _last(sheet: _Sheet, results: Results, store: str) -> float:
    """What stands at the foot of the page; returns where that begins."""
    lines = [line for command in protocol.commands(results, store).split("\n") for line in _broken(command)]
    if len(lines) > _MOST_LINES or any("…" in line for line in lines):
        lines = [*lines[: _MOST_LINES - 1], "… (the whole command is on the page)"]
    begin = _PAGE[1] - _MARGIN - len(lines) * TINY * _LINE - 0.38
    foot = _Sheet(sheet.figure, begin)
    versions = sorted({job.versions["contdrop"] for job in results.finished if "contdrop" in job.versions})
    ran = f"Runs by contdrop {' and '.join(versions)}. " if versions else ""
    foot.write(f"{ran}Page by contdrop {__version__} from {labels.printable(store)}. To do it again:", TINY, faint=True)
    for line in lines:
        foot.write(line, TINY, mono=True)
    return begin


def _broken(command: str) -> list[str]:
    """Its lines: broken at spaces, and after commas in lists that are longer than a line."""
    lines = [""]
    for piece in re.findall(r"[^ ,]*[ ,]|[^ ,]+", command):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > _LETTERS:
            lines.append("")
        lines[-1] += piece
    return [each for line in lines for each in wrapped(line, TINY, _WIDTH, mono=True)]


def _picture(sheet: _Sheet, results: Results, comparisons: Mapping[str, Comparison], end: float) -> None:
    """Run by run, of as many methods as there is room for."""
    room = end - sheet.y - 0.25
    methods = _methods(results, max(0, min(_MOST_METHODS, int((room - _AROUND) / _ROW[0]))))
    if len(methods) > 1:
        height = min(room, _AROUND + _ROW[1] * max(3, len(methods)))
        draw_into(sheet.figure, results, comparisons, methods, (_MARGIN, sheet.y + 0.1, _WIDTH, height))


class _Sheet:
    """A page that is written from the top."""

    def __init__(self, figure: Figure | None = None, y: float = _MARGIN) -> None:
        self.figure = figure or blank(_PAGE[1], _PAGE[0])
        self.y = y

    def down(self, inches: float) -> None:
        self.y += inches

    def write(
        self, text: str, size: float, *, bold: bool = False, faint: bool = False, mono: bool = False, most: int = 1,
        after: float = 0.0,
    ) -> None:  # fmt: skip
        """A paragraph of so many lines at most."""
        for line in wrapped(text, size, _WIDTH, bold=bold, mono=mono, most=most):
            self._put(0.0, line, size, bold=bold, faint=faint, mono=mono)
            self.y += size * _LINE
        self.y += after

    def fact(self, term: str, text: str) -> None:
        self._put(0.0, term, SMALL, faint=True)
        for line in wrapped(text, SMALL, _WIDTH - 0.9, most=2):
            self._put(0.9, line, SMALL)
            self.y += SMALL * _LINE

    def head(self, titles: Sequence[str], size: float, widths: Sequence[float]) -> None:
        """Headings in lines, the last ones side by side, with a rule below."""
        lines = [wrapped(title, size, width, most=3) for title, width in zip(titles, widths)]
        most = max(map(len, lines))
        for row in zip(*([""] * (most - len(each)) + each for each in lines)):
            self.row(row, size, widths, faint=True)
        rule = 1 - (self.y - 0.03) / _PAGE[1]
        ends = _MARGIN / _PAGE[0], 1 - _MARGIN / _PAGE[0]
        self.figure.add_artist(
            Line2D(ends, (rule, rule), color=style.GRID, linewidth=0.8, transform=self.figure.transFigure)
        )

    def row(
        self, cells: Sequence[str], size: float, widths: Sequence[float], *, bold: bool = False, faint: bool = False
    ) -> None:
        """Words to the left and numbers to the right of their columns."""
        x = 0.0
        for text, width, is_number in zip(cells, widths, (False, True, True, True, False)):
            shown, side = fitting(text, size, width, bold=bold), "right" if is_number else "left"
            self._put(x + width * is_number, shown, size, bold=bold, faint=faint, side=side)
            x += width + _GAP
        self.y += size * _LINE * 1.12

    def _put(
        self, x: float, text: str, size: float, *, bold: bool = False, faint: bool = False, mono: bool = False,
        side: str = "left",
    ) -> None:  # fmt: skip
        self.figure.text(
            (_MARGIN + x) / _PAGE[0], 1 - self.y / _PAGE[1], text, fontsize=size, ha=side, va="top",
            color=style.FAINT if faint else style.INK, fontweight="bold" if bold else "normal",
            family="DejaVu Sans Mono" if mono else "DejaVu Sans",
        )  # fmt: skip
