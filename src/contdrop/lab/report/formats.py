"""Writers of tables as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv as _csv
import io
import json as _json
import math
import re
from collections.abc import Iterable

from ..._text import no_formula
from ..study import labels
from .cells import DOUBTFUL, MINUS, NONE, Cell, Table


def markdown(table: Table) -> str:
    r"""Return a GitHub Markdown table with its notes below; Markdown and HTML in texts is escaped.

    Example:
        >>> from contdrop.lab.report.cells import Cell, Table
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

    lines = [
        f"**{_markdown_text(table.title)}**",
        "",
        row(_markdown_text(heading) or " " for heading in table.headings),
        row("---" for _ in table.headings),
        *(row(_markdown_cell(cell) for cell in cells) for cells in table.rows),
    ]
    for note in table.notes:
        lines += ["", _markdown_text(note)]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    text = _markdown_text(cell.text)
    return f"**{text}**" if cell.bold and text else text


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
    columns = "l" + "".join("r" if _is_numeric(table, at) else "l" for at in range(1, len(table.headings)))
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}",
        r"\begin{table}[htbp]",
        r"\centering",
        r"\scriptsize\setlength{\tabcolsep}{3pt}" if many else r"\small",
        rf"\caption{{{_latex_text(table.title)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_row(_latex_text(heading) for heading in table.headings),
        r"\midrule",
        *(_latex_row(_latex_cell(cell) for cell in cells) for cells in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if table.notes:
        # In a box as wide as the column, for a table may be narrower than its notes.
        lines += [r"\par\smallskip", r"\parbox{\linewidth}{\footnotesize"]
        lines += [_latex_text(note) + r"\par" for note in table.notes]
        lines.append("}")
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


def _is_numeric(table: Table, column: int) -> bool:
    return any(isinstance(row[column].value, int | float) for row in table.rows)


def csv(table: Table) -> str:
    r"""Return comma-separated values as of RFC 4180, headings first, without the notes.

    Numbers have full precision and an ASCII minus. If the table has data for programs, these are written, each value in
    a column of its own. Text that a spreadsheet would take for a formula (= + - @, not a number) gets an apostrophe.

    Example:
        >>> from contdrop.lab.report.cells import Cell, Table
        >>> csv(Table("t", "", ("a", "b"), ((Cell("=1+1"), Cell("−0.33", -1 / 3)),)))
        "a,b\r\n'=1+1,-0.3333333333333333\r\n"
    """
    buffer = io.StringIO()
    writer = _csv.writer(buffer)
    if table.data:
        writer.writerow(table.data[0])
        for row in table.data:
            writer.writerow(no_formula(value) if isinstance(value, str) else _plain(value) for value in row.values())
        return buffer.getvalue()
    writer.writerow(no_formula(heading) for heading in table.headings)
    for cells in table.rows:
        writer.writerow(_csv_cell(cell) for cell in cells)
    return buffer.getvalue()


def _plain(value: float | None) -> str:
    """Format a number in full precision; empty for one that does not exist."""
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
