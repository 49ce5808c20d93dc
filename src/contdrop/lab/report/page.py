"""The report: one self-contained HTML file, with tables and figures as files beside it.

Nothing on it is loaded from elsewhere, and its security policy forbids that; every text from the store is escaped by
the template. All files are written under a temporary name and renamed, so a reader never meets half a page.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from ..analysis.comparisons import OUTCOME_WORDS, outcome_of
from ..analysis.metric_format import Measure, capital, moment
from ..analysis.verdict import Analysis, Verdict, analyze
from ..extensions import extension
from ..stats import Comparison
from ..store.results import collect_all
from ..store.writer import Store
from ..study import labels
from . import figures, protocol, supplementary_tables, tables, templating
from .figures import drawing
from .page_files import FigurePool, PageFiles, write_text
from .protocol import THE_LAB, origin

_FAST_FORMATS = ("svg", "png")  # a PDF takes longer than all the rest
_MANY = 5  # experiments, of which PDFs are made only if asked for


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
        slow = pdf or (pdf is None and refresh is None and len(analyses) < _MANY)
        pool = FigurePool(alone=refresh is not None or len(analyses) == 1)
        try:
            templating.check_directory(out)
            files = PageFiles(out, drawing.FORMATS if slow else _FAST_FORMATS, pool)
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
            )
            write_text(out / templating.INDEX, page)
        except OSError as error:
            raise UserError(
                f"--out: cannot write {out}: {error.strerror or error}; choose another directory"
            ) from error
    return ReportFiles(
        out / templating.INDEX,
        tuple(files.tables),
        tuple(files.figures),
        tuple(each.verdict for each in analyses),
        sum(len(each.results.failed) for each in analyses),
    )


def _last_change(analyses: Sequence[Analysis]) -> str:
    """Return when a job last changed state, for the same store gives the same page; empty for imports."""
    jobs = (job for each in analyses for job in (*each.results.selection, *each.results.final))
    last = max((max(job.created, job.started or 0, job.ended or 0) for job in jobs), default=0)
    return f"as of {moment(last)}" if last else ""


def _content(
    store: Store, analyses: Sequence[Analysis], files: PageFiles, data_dir: pathlib.Path | None
) -> dict[str, Any]:
    everything = [each.results for each in analyses]
    names = [results.protocol.experiment for results in everything]
    experiments = [_experiment(store, analysis, files) for analysis in analyses]
    for number, (view, name) in enumerate(zip(experiments, names), 1):
        view |= {"anchor": f"e{number}", "ambiguous": names.count(name) > 1}
    overall_tables, overall_pictures = extension().overall(store, everything)
    ranks, across = supplementary_tables.ranks(everything), figures.across(everything)
    trained = [results.named_dataset for results in everything if origin(results) == THE_LAB]
    samples = [extension().samples(name, data_dir) for name in dict.fromkeys(trained) if name]
    methods = [labels.split(method) for results in everything for method in results.methods]
    return {
        "experiments": experiments,
        "overall_tables": [files.table(table, "all") for table in (*overall_tables, ranks) if table],
        "overall_pictures": [files.picture(picture, "all") for picture in (*overall_pictures, across) if picture],
        "samples": [files.picture(picture, "data") for picture in samples if picture],
        "is_published": any(map(extension().published_table, names)),
        "has_matched": any(label.name == "bernoulli-matched" for label in methods),
        "has_equal_strength": any(label.word == labels.MATCH for label in methods),
        "makers": {origin(results) for results in everything} or {THE_LAB},
    }


def _experiment(store: Store, analysis: Analysis, files: PageFiles) -> dict[str, Any]:
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
        **heading(analysis),
        "paper": record.description.get("paper") or "",
        "size": protocol.size(results),
        "tables": [files.table(table, *prefix) for table in evidence if table],
        "pictures": [files.picture(picture, *prefix) for picture in figures.figures(store, analysis)],
        "selections": files.table(selections, *prefix) if selections else None,
        "protocol": protocol.protocol(results),
        "tally": protocol.tally(results),
        "failures": files.table(failures, *prefix) if failures else None,
        "missing": protocol.missing(results),
        "origin": origin(results),
        "commands": protocol.commands(results, store.path.name),
    }


def heading(analysis: Analysis) -> dict[str, Any]:
    """Return name, verdict and forest plot of an experiment, with the words beside it."""
    results, measure = analysis.results, analysis.results.measure
    reference = labels.name_in_text(results.reference)
    return {
        "name": labels.printable(results.protocol.experiment),
        "title": protocol.title_of(results),
        "verdict": analysis.verdict,
        "words": OUTCOME_WORDS,
        "reference": reference,
        "metric": capital(measure.name),
        "unit": measure.in_unit,
        "sign": capital(measure.sign_rule(reference)),
        "forest": forest(analysis.comparisons, measure),
    }


def forest(comparisons: Mapping[str, Comparison], measure: Measure) -> dict[str, Any] | None:
    """Return the comparisons as rows of a forest plot, the strongest rival first; positions are from 0 to 100."""
    if not comparisons:
        return None
    rows = sorted(comparisons.items(), key=lambda item: -measure.sign * item[1].difference)
    first = rows[0][1]
    margin = first.margin
    shown = [0.0, *(found.difference for _, found in rows)]
    shown += [end for _, found in rows for ends in (found.interval, found.two_way) for end in _known(ends)]
    if margin is not None and margin < 2 * max(map(abs, shown)):
        shown += [-margin, margin]
    pad = 0.04 * (max(shown) - min(shown)) or 1.0
    left, right = min(shown) - pad, max(shown) + pad

    def place(value: float) -> float:
        return round(min(100.0, max(0.0, 100 * (value - left) / (right - left))), 2)

    def row(method: str, found: Comparison) -> dict[str, Any]:
        span = ", ".join(map(measure.signed, _known(found.interval)))
        return {
            "method": labels.display_name(method, longest=60),
            "outcome": outcome_of(found),
            "middle": place(found.difference),
            "interval": tuple(map(place, _known(found.interval))),
            "both": tuple(map(place, _known(found.two_way))),
            "text": measure.signed(found.difference) + (f"  [{span}]" if span else ""),
        }

    return {
        "confidence": f"{first.confidence:.0%}".replace("%", " %"),
        "both": any(_known(found.two_way) for _, found in rows),
        "margin": None if margin is None else f"±{measure.gap(margin)}",
        "band": None if margin is None else (place(-margin), round(place(margin) - place(-margin), 2)),
        "zero": place(0.0),
        "rows": [row(method, found) for method, found in rows],
    }


def _known(ends: tuple[float, float] | None) -> tuple[float, ...]:
    """Return the ends of an interval; empty if there is none."""
    return () if ends is None or math.isnan(ends[0]) else ends
