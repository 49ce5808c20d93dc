"""Tables as data, their numbers as text, and writers of Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv as _csv
import io
import json as _json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..._text import no_formula
from ..analysis.metric_format import Measure
from ..stats.paired import ENOUGH_RUNS, Summary
from ..store.results import Results
from ..study import labels

Value = float | int | str | None
NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
DOUBTFUL = "†"  # beside a p-value of too few runs


@dataclass(frozen=True)
class Cell:
    """Text of a cell, its sort key, and a mark for the best of its column."""

    text: str
    value: float | str | None = None
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table: headings, rows of cells, and notes that are always shown with it. ``name`` serves as a file name.

    ``data`` is for programs, where a cell says several things at once: rows of plain values by column.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    data: tuple[Mapping[str, Value], ...] = ()

    @property
    def numeric(self) -> list[bool]:
        """True for each column with numbers."""
        return [any(isinstance(row[at].value, float) for row in self.rows) for at in range(len(self.headings))]

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        rows: Sequence[Mapping[str, Cell]],
        notes: Sequence[str] = (),
        data: Iterable[Mapping[str, Value]] = (),
    ) -> Table:
        """Return a table of rows of cells by heading."""
        headings = tuple(rows[0]) if rows else ()
        return cls(name, title, headings, tuple(tuple(row.values()) for row in rows), tuple(notes), tuple(data))


def p_value(p: float | None) -> str:
    """Format a p-value as in the paper: 0.031, 9.1e-7.

    Example:
        >>> p_value(9.127e-7), p_value(0.0314), p_value(0.0)
        ('9.1e-7', '0.031', '<1e-300')
    """
    if p is None or math.isnan(p):
        return NONE
    if p >= 0.01:
        return f"{p:.3f}"
    if p < 1e-300:
        return "<1e-300"
    digits, _, exponent = f"{p:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


def signed(value: float, decimals: int = 2) -> str:
    """Format with a sign and a proper minus; a difference that rounds to 0 has no sign.

    Example:
        >>> signed(-0.254), signed(0.001)
        ('−0.25', '0.00')
    """
    if not math.isfinite(value):
        return NONE if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    text = f"{value:+.{decimals}f}".replace("-", MINUS)
    return text if float(f"{value:.{decimals}f}") else text[1:]


def name_cell(method: str) -> Cell:
    return Cell(labels.display_name(method, longest=10_000))


def method_cell(results: Results, method: str) -> Cell:
    """Return a method's display name with the parameters it was trained with."""
    variant = results.variants().get(method, method)
    if variant == method:
        return name_cell(method)
    same = labels.base(labels.without_factor(variant)[0]) == labels.base(method)
    return Cell(in_full(variant) if same else labels.printable(method))


def in_full(variant: str, name: Callable[..., str] = labels.display_name) -> str:
    """Return a method with its parameters, and the factor of the learning rate if it had one of its own.

    Example:
        >>> in_full("original@0.5")
        'Original dropout at 0.5 times the learning rate'
    """
    label, factor = labels.without_factor(variant)
    return name(label, longest=10_000) + (f" at {factor} times the learning rate" if factor else "")


def p_cell(p: float | None, runs: int = ENOUGH_RUNS) -> Cell:
    """Return a p-value, marked if it rests on too few runs; a single pair of runs has none."""
    if p is None or math.isnan(p) or runs == 1:
        return Cell(NONE)
    return Cell(p_value(p) + doubt(runs), p)


def mean_sd(summary: Summary, measure: Measure) -> str:
    mean = measure.written(summary.mean, summary.sd)
    return mean if math.isnan(summary.sd) else f"{mean} ± {measure.spread(summary.sd)}"


def count_cell(number: int) -> Cell:
    return Cell(str(number), float(number))


def doubt(runs: int) -> str:
    return f" {DOUBTFUL}" if 1 < runs < ENOUGH_RUNS else ""


def markdown(table: Table) -> str:
    r"""Return a GitHub Markdown table with its notes below; Markdown and HTML in texts is escaped.

    Example:
        >>> from contdrop.lab.report.formats import Cell, Table
        >>> print(markdown(Table("t", "A <b>", ("x|y", "z"), ((Cell("*1*"), Cell("2", 2.0, bold=True)),))))
        **A &lt;b&gt;**
        <BLANKLINE>
        | x\|y | z |
        | --- | --- |
        | \*1\* | **2** |
        <BLANKLINE>
    """

    def row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def bold(cell: Cell) -> str:
        text = _markdown_text(cell.text)
        return f"**{text}**" if cell.bold and text else text

    lines = [
        f"**{_markdown_text(table.title)}**",
        "",
        row(_markdown_text(heading) or " " for heading in table.headings),
        row("---" for _ in table.headings),
        *(row(map(bold, cells)) for cells in table.rows),
        *(f"\n{_markdown_text(note)}" for note in table.notes),
    ]
    return "\n".join(lines) + "\n"


def _markdown_text(text: str) -> str:
    text = labels.printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|$~#])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "“": "``", "”": "''", "…": r"\ldots{}", "\ufffd": "?",
    "±": r"$\pm$", "∞": r"$\infty$", "²": r"$^2$", MINUS: "$-$", NONE: "--", DOUBTFUL: r"\textdagger{}",
    labels.SIGMA: r"$\sigma$", labels.ALPHA: r"$\alpha$", "β": r"$\beta$",
}  # fmt: skip


def latex(table: Table) -> str:
    """Return a floating LaTeX table for booktabs; special characters are escaped, so any text compiles.

    Letters that neither ASCII nor this module's own list knows are left as they are: LaTeX wants a font for them.
    """
    many = len(table.headings) > 8
    columns = "l" + "".join("r" if is_numeric else "l" for is_numeric in table.numeric[1:])
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}",
        r"\begin{table}[htbp]",
        r"\centering",
        r"\scriptsize\setlength{\tabcolsep}{3pt}" if many else r"\small",
        rf"\caption{{{_latex_text(table.title)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_row(map(_latex_text, table.headings)),
        r"\midrule",
        *(_latex_row(map(_latex_cell, cells)) for cells in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if table.notes:  # in a box as wide as the column, for a table may be narrower than its notes
        lines += [r"\par\smallskip", r"\parbox{\linewidth}{\footnotesize"]
        lines += [*(_latex_text(note) + r"\par" for note in table.notes), "}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_row(cells: Iterable[str]) -> str:
    # The group keeps a cell that starts with a bracket from being read as the option of \\.
    return " & ".join(f"{{{cell}}}" if cell[:1] in ("[", "*") else cell for cell in cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text = _latex_text(cell.text)
    if not cell.bold:
        return text
    number, plus_minus, rest = text.partition(r" $\pm$")  # the paper's way: the mean alone is bold
    return rf"\textbf{{{number}}}{plus_minus}{rest}"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in labels.printable(text))


def csv(table: Table) -> str:
    r"""Return comma-separated values as of RFC 4180, headings first, without the notes.

    Numbers have full precision and an ASCII minus. If the table has data for programs, these are written, each value in
    a column of its own. Text that a spreadsheet would take for a formula (= + - @, not a number) gets an apostrophe.

    Example:
        >>> from contdrop.lab.report.formats import Cell, Table
        >>> csv(Table("t", "", ("a", "b"), ((Cell("=1+1"), Cell("−0.33", -1 / 3)),)))
        "a,b\r\n'=1+1,-0.3333333333333333\r\n"
    """
    rows: list[Iterable[str]] = [map(no_formula, table.headings), *(map(_csv_cell, cells) for cells in table.rows)]
    if table.data:
        rows = [table.data[0], *(map(_csv_value, row.values()) for row in table.data)]
    buffer = io.StringIO()
    _csv.writer(buffer).writerows(rows)
    return buffer.getvalue()


def _csv_value(value: Value) -> str:
    """Format a number in full precision; empty for one that does not exist."""
    if isinstance(value, str):
        return no_formula(value)
    return "" if value is None or not math.isfinite(value) else repr(value)


def json(table: Table) -> str:
    """Return title, notes and the data for programs; a number that does not exist is null.

    Example:
        >>> print(json(Table("t", "Title", (), (), ("A note.",), ({"p": 0.5, "sd": math.nan},))), end="")
        {
         "title": "Title",
         "notes": [
          "A note."
         ],
         "rows": [
          {
           "p": 0.5,
           "sd": null
          }
         ]
        }
    """
    rows = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in table.data
    ]
    content = {"title": table.title, "notes": list(table.notes), "rows": rows}
    return _json.dumps(content, indent=1, allow_nan=False) + "\n"


def _csv_cell(cell: Cell) -> str:
    text = cell.text.removesuffix(f" {DOUBTFUL}").replace(MINUS, "-")
    number = text.removesuffix(" %").replace(",", "")  # 1,234 is one to be read
    if isinstance(cell.value, int | float) and math.isfinite(cell.value) and _is_number(number):
        return repr(cell.value).removesuffix(".0")
    return text if _is_number(text) else no_formula(cell.text.replace(MINUS, "-"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


WRITERS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "Markdown": ("md", markdown),
    "LaTeX": ("tex", latex),
    "CSV": ("csv", csv),
    "JSON": ("json", json),
}  # with the ending of a file
