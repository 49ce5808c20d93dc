"""Writer of the measured tables and the picture of docs/speed.md, from a run of ``contdrop bench``.

With the name of a file that ``contdrop bench --json`` has printed, writes from that; without, runs the benchmark first.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

from contdrop.cli.options import save_plot
from contdrop_bench import plot, sheets
from contdrop_bench.results import Report
from contdrop_bench.sections import LARGE, SMALL
from contdrop_bench.sheets import Sheet

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- measured by benchmarks/write_docs.py -->", "<!-- end of what is measured -->"
NEW_PAGE = f"""# Speed

How this is measured, and how to measure it on another machine: [benchmarks](../benchmarks/README.md).

{BEGIN}
{END}
"""


def markdown(sheet: Sheet) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(cells)} |"

    headings = tuple(heading.replace("\n", " ") for heading in sheet.headings)
    rule = "|---|" + "---:|" * (len(headings) - 1)
    note = f"\n\n{sheet.note}" if sheet.note else ""
    return f"### {sheet.title}\n\n" + "\n".join([line(headings), rule, *map(line, sheet.rows)]) + note


def measured(report: Report, picture: str) -> str:
    """Return the text between the markers."""
    tables = []
    sizes = sheets.shapes(report)
    if sizes:
        tables.append(sheets.by_size(report))
        tables += [sheets.elementwise(report, shape) for shape in (LARGE, SMALL) if shape in sizes]
    for name in ("types", "memory", "step", "dropconnect"):
        if getattr(report, name):
            tables.append(getattr(sheets, name)(report))
    tables.append(sheets.goals(report))
    image = [f"![Forward and backward time per element against size]({picture})"] if sizes else []
    where = "  \n".join(sheets.environment(report))
    return "\n\n".join([where, f"```\n{report.settings['command']}\n```", *image, *map(markdown, tables)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=pathlib.Path, help="output of `contdrop bench --json`")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs" / "speed.md", help="default: %(default)s")
    options = parser.parse_args()
    page: pathlib.Path = options.page
    picture = page.parent / "images" / "speed.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    if options.results:
        report = Report.from_dict(json.loads(options.results.read_text()))
        if report.elementwise:
            save_plot(plot.draw(report), picture)
    else:
        command = [sys.executable, "-m", "contdrop.cli", "bench", "--json", "--plot", str(_short(picture))]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        report = Report.from_dict(json.loads(run.stdout))
    text = page.read_text() if page.exists() else NEW_PAGE
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        parser.error(f"expected the lines {BEGIN!r} and {END!r} in {page}")
    page.write_text(f"{before}{begin}\n{measured(report, 'images/speed.png')}\n\n{end}{after}")


def _short(path: pathlib.Path) -> pathlib.Path:
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


if __name__ == "__main__":
    main()
