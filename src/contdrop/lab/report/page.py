"""The report: one self-contained HTML file, with tables and figures as files beside it.

Nothing on it is loaded from elsewhere, and its security policy forbids that; every text from the store is escaped by
the template. All files are written under a temporary name and renamed, so a reader never meets half a page.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import markupsafe

from ..._files import replacing
from ...errors import UserError
from ..analysis.comparisons import BETTER, OUTCOME_WORDS, WORSE
from ..analysis.phrases import capital, moment
from ..analysis.verdict import Analysis, Verdict, analyze
from ..extensions import extension
from ..store.results import Results, collect_all
from ..store.writer import Store
from ..study import labels
from . import figures, formats, protocol, supplementary_tables, tables, templating
from .cells import ELSEWHERE, THE_LAB, Table, origin
from .figure_pool import FigurePool
from .figures import drawing
from .svg import InlineFigures, forest
from .templating import INDEX

_FAST_FORMATS = ("svg", "png")  # a PDF takes longer than all the rest
_MANY = 5  # experiments, of which PDFs are made only if asked for
_WIDE = 6.5  # inches: a picture that is wider gets the whole width


@dataclass(frozen=True)
class ReportFiles:
    """Paths of the files written, the verdicts, and the number of failed jobs."""

    index: pathlib.Path
    tables: tuple[pathlib.Path, ...]
    figures: tuple[pathlib.Path, ...]
    verdicts: tuple[Verdict, ...]  # one per experiment
    failed: int  # jobs in the store


def write(
    store_path: pathlib.Path,
    out: pathlib.Path,
    *,
    data_dir: pathlib.Path | None = None,
    margin: float | None = None,
    refresh: int | None = None,
    pdf: bool | None = None,
    analyses: Sequence[Analysis] | None = None,
) -> ReportFiles:
    """Write the report on a store.

    Args:
        store_path: The store.
        out: Directory for the page; it is created if needed.
        data_dir: Directory of the data sets, for sample images; the default directory if None.
        margin: The smallest difference that matters, in the unit of the metric, if chosen after the fact.
        refresh: Interval in seconds at which an open page reloads itself; figures are then not written as PDF.
        pdf: Whether figures are written as PDF too; if None, for fewer than five experiments.
        analyses: The experiments to report on, already analyzed; everything in the store if None.

    Raises:
        UserError: There is no store, its runs are not paired, or the directory cannot be used; nothing was written.
    """
    with Store(store_path) as store, store.snapshot():
        if analyses is None:
            analyses = [analyze(results, margin) for results in collect_all(store)]
        try:
            templating.check_directory(out)
            for directory in (out / "tables", out / "figures"):
                directory.mkdir(parents=True, exist_ok=True)
            slow = pdf or (pdf is None and refresh is None and len(analyses) < _MANY)
            pool = FigurePool(alone=refresh is not None or len(analyses) == 1)
            files = _Files(out, drawing.FORMATS if slow else _FAST_FORMATS, pool)
            content = _content(store, analyses, files, data_dir)
            files.embed()
            titles = [each["title"] for each in content["experiments"]]
            page = templating.render_page(
                "page",
                f"{files.inline.rules()}\n{templating.dark_colours(files.inline.colours)}",
                **content,
                title=titles[0] if len(titles) == 1 else f"{len(titles)} experiments" if titles else "Nothing yet",
                as_of=_last_change(analyses),
                store=labels.printable(store_path.name),
                refresh=refresh,
                words=OUTCOME_WORDS,
            )
            _write_text(out / INDEX, page)
        except OSError as error:
            raise UserError(
                f"--out: cannot write {out}: {error.strerror or error}; choose another directory"
            ) from error
    return ReportFiles(
        out / INDEX,
        tuple(files.tables),
        tuple(files.figures),
        tuple(each.verdict for each in analyses),
        sum(len(each.results.failed) for each in analyses),
    )


def _write_text(path: pathlib.Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")


class _Files:
    """Writer of tables and figures that records what the page shows of each."""

    def __init__(self, out: pathlib.Path, formats: Sequence[str], pool: FigurePool) -> None:
        self.out, self.formats, self._pool = out, formats, pool
        self.tables: list[pathlib.Path] = []
        self.figures: list[pathlib.Path] = []
        self.inline = InlineFigures()
        self._taken: set[str] = set()
        self._views: list[tuple[pathlib.Path, str, dict[str, Any]]] = []  # of pictures: the SVG, its words, its place

    def _name(self, *parts: str) -> str:
        """Return an unused file name for a text."""
        text = "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in parts)[:100] or "unnamed"
        name, number = text, 2
        while name in self._taken:
            name, number = f"{text}-{number}", number + 1
        self._taken.add(name)
        return name

    def table(self, table: Table, *prefix: str) -> dict[str, Any]:
        name = self._name(*prefix, table.name)
        written = []
        for kind, ending, writer in (
            ("Markdown", "md", formats.markdown),
            ("LaTeX", "tex", formats.latex),
            ("CSV", "csv", formats.csv),
            *([("JSON", "json", formats.json)] if table.data else []),
        ):
            path = self.out / "tables" / f"{name}.{ending}"
            _write_text(path, writer(table))
            self.tables.append(path)
            written.append((kind, f"tables/{path.name}"))
        return {**_shown(table), "files": written}

    def picture(self, picture: figures.Picture, *prefix: str) -> dict[str, Any]:
        name, directory, formats = self._name(*prefix, picture.name), self.out / "figures", self.formats
        self._pool.do(lambda: figures.save(picture.draw(), directory, name, formats))
        paths = [directory / f"{name}.{ending}" for ending in formats]
        self.figures += paths
        view = {
            "title": picture.title,
            "caption": picture.caption,
            "files": [(path.suffix[1:].upper(), f"figures/{path.name}") for path in paths],
        }
        (svg,) = (path for path in paths if path.suffix == ".svg")
        self._views.append((svg, picture.alt, view))
        return view

    def embed(self) -> None:
        """Embed the figures into their views, once all are drawn."""
        self._pool.finish()
        for number, (path, alt, view) in enumerate(self._views):
            svg = path.read_text(encoding="utf-8")
            width = re.search(r'<svg [^>]*width="([\d.]+)pt"', svg)
            view["drawing"] = markupsafe.Markup(self.inline.embed(svg, f"f{number}", alt))
            view["wide"] = width is not None and float(width[1]) > 72 * _WIDE


def _shown(table: Table) -> dict[str, Any]:
    numeric = [any(isinstance(row[column].value, float) for row in table.rows) for column in range(len(table.headings))]
    return {
        "title": table.title,
        "headings": list(zip(table.headings, numeric)),
        "rows": [list(zip(row, numeric)) for row in table.rows],
        "notes": table.notes,
    }


# ---- the content


def _content(
    store: Store, analyses: Sequence[Analysis], files: _Files, data_dir: pathlib.Path | None
) -> dict[str, Any]:
    everything = [each.results for each in analyses]
    names = [results.protocol.experiment for results in everything]
    experiments = []
    for number, analysis in enumerate(analyses, 1):
        view = _experiment(store, analysis, files)
        experiments.append(
            {**view, "anchor": f"e{number}", "ambiguous": names.count(view["name"]) > 1, "parts": _parts(view, number)}
        )
    overall = extension().overall(store, everything)
    ranks, across = supplementary_tables.ranks(everything), figures.across(everything)
    ours = [results.named_dataset for results in everything if origin(results) == THE_LAB]
    samples = [picture for name in dict.fromkeys(ours) if name and (picture := extension().samples(name, data_dir))]
    return {
        "experiments": experiments,
        "overall_tables": [files.table(table, "all") for table in (*overall.tables, ranks) if table],
        "overall_pictures": [files.picture(picture, "all") for picture in (*overall.pictures, across) if picture],
        "samples": [files.picture(picture, "data") for picture in samples],
        "terms": list(_terms(everything)),
        "makers": {origin(results) for results in everything} or {THE_LAB},
    }


def _terms(everything: Sequence[Results]) -> Iterator[tuple[str, str]]:
    """Yield terms of the tables and method names, with their explanations."""
    if any(extension().published_table(results.protocol.experiment) for results in everything):
        means = "One-sided, in the form of the paper: the paired t-test's and Wilcoxon's, of “the reference is better”."
        yield "p-value-T, p-value-W", means
    methods = [labels.split(method) for results in everything for method in results.methods]
    if any(label.name == "bernoulli-matched" for label in methods):
        yield (
            "Equal noise",
            "Matched Bernoulli switches units on or off with as much relative noise, Var(m) / E[m]², as the Gaussian "
            "has. Any gain of the Gaussian beyond it comes from the shape of its noise.",
        )
    if any(label.word == labels.MATCH for label in methods):
        yield (
            "Of equal strength",
            "With as much relative noise, Var(m) / E[m]², as the model's own dropout has, or as near to that as the "
            "law can come; the column “Noise” says which.",
        )


def _parts(view: dict[str, Any], number: int) -> list[tuple[str, str]]:
    """Return the entries of an experiment in the table of contents."""
    parts = [("tables", "Results")] if view["tables"] else []
    parts += [("figures", "Figures")] if view["pictures"] else []
    parts += [("protocol", "Protocol"), ("runs", "Failed and missing"), ("commands", "Reproduction")]
    return [(f"e{number}-{anchor}", text) for anchor, text in parts]


def _experiment(store: Store, analysis: Analysis, files: _Files) -> dict[str, Any]:
    results = analysis.results
    record = results.protocol
    prefix = (record.experiment, record.preset)
    selections, failures = supplementary_tables.selections(results), supplementary_tables.failures(results)
    evidence = (
        tables.comparison(analysis) if results.errors() else None,
        tables.differences(analysis),
        supplementary_tables.secondary_metrics(results),
        supplementary_tables.uncertainty(results),
        supplementary_tables.mcnemar(results, store),
        supplementary_tables.lowest_epochs(results, store),
    )
    return {
        "name": labels.printable(record.experiment),
        "title": labels.printable(record.description.get("title") or record.experiment),
        "paper": record.description.get("paper") or "",
        "size": protocol.size(results),
        "verdict": analysis.verdict,
        "chip": chip(analysis.verdict),
        **compared(analysis),
        "tables": [files.table(table, *prefix) for table in evidence if table],
        "pictures": [files.picture(picture, *prefix) for picture in figures.figures(store, analysis)],
        "selections": files.table(selections, *prefix) if selections else None,
        "protocol": protocol.protocol(results),
        "tally": protocol.tally(results),
        "failures": files.table(failures, *prefix) if failures else None,
        "missing": protocol.missing(results),
        "elsewhere": origin(results) == ELSEWHERE,
        "again": protocol.again(results),
        "commands": protocol.commands(results, store.path.name),
    }


def compared(analysis: Analysis) -> dict[str, Any]:
    """Return the forest plot of the comparisons and the words beside it."""
    measure, reference = analysis.results.measure, labels.name_in_text(analysis.results.reference)
    return {
        "reference": reference,
        "metric": capital(measure.name),
        "unit": f", in{measure.gap_unit}" if measure.gap_unit else "",
        "sign": capital(measure.sign_rule(reference)),
        "forest": forest(analysis.comparisons, measure),
    }


def chip(found: Verdict) -> str:
    """Return the verdict in a few words."""
    counts = {kind: list(found.outcomes.values()).count(kind) for kind in OUTCOME_WORDS}
    total = len(found.outcomes)
    if found.outcome == "none":
        return "no verdict"
    if found.outcome in (BETTER, WORSE):
        return f"{OUTCOME_WORDS[found.outcome]} than {counts[found.outcome]} of {total}"
    return OUTCOME_WORDS.get(found.outcome, found.outcome)


def _last_change(analyses: Sequence[Analysis]) -> str:
    """Return when a job last changed state, for the same store gives the same page; empty for imports."""
    jobs = (job for each in analyses for job in (*each.results.selection, *each.results.final))
    last = max((max(job.created, job.started or 0, job.ended or 0) for job in jobs), default=0)
    return "" if not last else f"as of {moment(last)}"
