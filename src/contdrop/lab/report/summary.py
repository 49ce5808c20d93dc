"""An experiment on one page: what was compared, the verdict, the figures behind it, and how to get them again.

Everything has a greatest size, and the picture gets what is left of the sheet; so it is one page, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ... import __version__
from .. import labels
from ..analysis.outcomes import WORDS, outcome_of
from ..analysis.verdict import Verdict
from ..analysis.wording import called, capital
from ..results import Results
from ..stats import Comparison, summary
from . import colours, describing
from .figures.drawing import SIZE, SMALL, TINY, blank, styled, wrapped
from .figures.pairs import draw_into

_PAGE = 8.27, 11.69  # A4, in inches
_MARGIN = 0.7
_WIDTH = _PAGE[0] - 2 * _MARGIN
_MOST_METHODS = 12  # in the table
_LINE = 1.45 / 72  # inches between two lines, per point of their size
_ROW = 0.18, 0.6  # least and greatest height of a row of the picture
_AROUND = 1.1  # height of what is above and below its rows


def draw(results: Results, comparisons: Mapping[str, Comparison], found: Verdict, store: str) -> Figure:
    """The page of an experiment that has comparisons."""
    with styled():
        sheet = _Sheet()
        record = results.protocol
        sheet.write(f"{labels.printable(record.experiment)} · {describing.size(results)}", SMALL, faint=True)
        sheet.write(labels.printable(record.description.get("title") or record.experiment), 13, most=2, after=0.12)
        sheet.write(found.headline, 13, bold=True, most=2, after=0.06)
        sheet.write(" ".join(found.details), SIZE, most=4, after=0.06)
        for finding in found.findings[:2]:
            sheet.write(f"{finding.label}: {finding.text}", SMALL, most=5, after=0.05)
        sheet.down(0.08)
        for term, texts in describing.protocol(results):
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
    reference = called(results.reference, longest=20)
    sheet.row(
        ("Method", "runs", f"test {measure.heading}", f"{reference} minus it, 95 % interval", reference), head=True
    )
    for method in methods:
        values = summary(list(errors[method].values()))
        spread = f" ± {values.sd:{measure.form}}" if values.n > 1 else ""
        against = comparisons.get(method)
        gap, word = ("", "reference" if method == results.reference else "")
        if against is not None:
            low, high = against.interval
            gap = measure.signed(against.difference)
            gap += f" [{measure.signed(low)}, {measure.signed(high)}]" if low == low else ""
            word = WORDS[outcome_of(against)]
        value = f"{values.mean:{measure.form}}{spread}"
        sheet.row((labels.shown(method, longest=34), str(values.n), value, gap, word), bold=method == results.reference)
    left = len(errors) - len(methods)
    note = f"{capital(measure.sign_rule(called(results.reference)))}. Means ± standard deviation over runs."
    sheet.write(f"{note}{f' {left} more methods are on the page.' if left else ''}", TINY, faint=True, most=2)


def _last(sheet: _Sheet, results: Results, store: str) -> float:
    """What stands at the foot of the page; returns where that begins."""
    lines = [line for command in describing.commands(results, store).split("\n") for line in wrapped(
        command, TINY, _WIDTH, mono=True)][:4]  # fmt: skip
    begin = _PAGE[1] - _MARGIN - len(lines) * TINY * _LINE - 0.38
    foot = _Sheet(sheet.figure, begin)
    versions = sorted({job.versions["contdrop"] for job in results.finished if "contdrop" in job.versions})
    ran = f"Runs by contdrop {' and '.join(versions)}. " if versions else ""
    foot.write(f"{ran}Page by contdrop {__version__} from {labels.printable(store)}. To do it again:", TINY, faint=True)
    for line in lines:
        foot.write(line, TINY, mono=True)
    return begin


def _picture(sheet: _Sheet, results: Results, comparisons: Mapping[str, Comparison], end: float) -> None:
    """Run by run, of as many methods as there is room for."""
    room = end - sheet.y - 0.25
    methods = _methods(results, min(_MOST_METHODS, int((room - _AROUND) / _ROW[0])))
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

    def row(self, cells: Sequence[str], *, head: bool = False, bold: bool = False) -> None:
        for x, text, side in zip((0.0, 2.5, 3.75, 5.85, 6.0), cells, ("left", "right", "right", "right", "left")):
            self._put(x, text, SMALL, bold=bold, faint=head, side=side)
        self.y += SMALL * _LINE * 1.12
        if head:
            line = 1 - (self.y - 0.03) / _PAGE[1]
            ends = _MARGIN / _PAGE[0], 1 - _MARGIN / _PAGE[0]
            self.figure.add_artist(
                Line2D(ends, (line, line), color=colours.GRID, linewidth=0.8, transform=self.figure.transFigure)
            )

    def _put(
        self, x: float, text: str, size: float, *, bold: bool = False, faint: bool = False, mono: bool = False,
        side: str = "left",
    ) -> None:  # fmt: skip
        self.figure.text(
            (_MARGIN + x) / _PAGE[0], 1 - self.y / _PAGE[1], text, fontsize=size, ha=side, va="top",
            color=colours.FAINT if faint else colours.INK, fontweight="bold" if bold else "normal",
            family="DejaVu Sans Mono" if mono else "DejaVu Sans",
        )  # fmt: skip
