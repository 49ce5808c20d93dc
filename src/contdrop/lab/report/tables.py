"""Main tables of a result: :func:`overview`, :func:`comparison` and :func:`differences`.

Means are over all finished runs of a method; comparisons of two methods over the runs that both have finished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter

from .. import stats
from ..analysis.caveats import falls_short
from ..analysis.margin import planned_margin
from ..analysis.verdict import Analysis
from ..extensions import PublishedTable, extension
from ..stats.paired import ENOUGH_RUNS
from ..stats.significance import RESOLUTION
from ..store.results import Results
from ..study import amendments, labels
from .formats import (
    DOUBTFUL,
    NONE,
    Cell,
    Table,
    Value,
    count_cell,
    doubt,
    mean_sd,
    method_cell,
    p_cell,
    p_value,
    signed,
)
from .protocol import size_of, title_of
from .templating import texts

_SPREAD = 3  # decimals of the standard deviation of percentages, as in the paper


def overview(analysis: Analysis) -> Table:
    """Return mean and spread of every method, its paired difference from the reference and the deciding p-value."""
    results, comparisons, measure = analysis.results, analysis.comparisons, analysis.results.measure
    called = labels.name_in_text(results.reference, longest=40)
    noise = {job.method: job.results.get("relative_variance") for job in results.finished}
    decimals, has_noise = _decimals(comparisons), any(each is not None for each in noise.values())
    rows = [
        {
            "Method": method_cell(results, method),
            f"Test {measure.heading}": Cell(mean_sd(found, measure), found.mean, is_best),
            **_against(called, comparisons.get(method), decimals),
            **({"Noise": _noise(method, noise[method])} if has_noise else {}),
            "Runs": count_cell(found.n),
        }
        for method, (found, is_best) in _summaries(results).items()
    ]
    data = _data(analysis, ("difference", "t_p_two_sided_holm"))
    return Table.of("comparison", title_of(results), rows, _notes("means", analysis, has_noise), data)


def _against(called: str, found: stats.Comparison | None, decimals: int) -> dict[str, Cell]:
    difference, p = Cell(""), Cell("")
    if found is not None:
        interval = _interval(found.interval, decimals)
        between = "" if interval.value is None else f" {interval.text}"
        difference = Cell(signed(found.difference, decimals) + between, found.difference)
        p = p_cell(found.t_p_two_sided_holm, found.runs)
    return {f"{called} minus it [95 % interval]": difference, "p, two-sided (Holm)": p}


def _noise(method: str, noise: float | None) -> Cell:
    names = {labels.ORIGINAL: "the model's", labels.OWN: ""}
    without = names.get(labels.split(method).name, "by unit")
    return Cell(without if noise is None else f"{noise:.3f}", noise)


def comparison(analysis: Analysis) -> Table:
    """Return the table in its published layout, with the published figures beside ours; else the overview."""
    results, comparisons = analysis.results, analysis.comparisons
    theirs = extension().published_table(results.protocol.experiment)
    if theirs is None:
        return overview(analysis)
    heading = f"{results.measure.heading} (p-value-T/p-value-W)"
    rows = []
    for method, (found, is_best) in _summaries(results).items():
        against = comparisons.get(method)
        t_p, wilcoxon_p = (against.t_p, against.wilcoxon_p) if against and against.runs > 1 else (None, None)
        text = _as_published(found.mean, found.sd, t_p, wilcoxon_p, theirs.decimals)
        text += doubt(against.runs) if against else ""
        rows.append(
            {
                "Method": method_cell(results, method),
                f"Test {heading}": Cell(text, found.mean, is_best),
                f"The paper: {heading}": _published_cell(theirs, method),
                "Runs": count_cell(found.n),
            }
        )
    runs, epochs = (results.protocol.description.get(f"paper_{what}") for what in ("runs", "epochs"))
    runs = runs or theirs.runs
    notes = _notes("means", analysis, False, theirs, runs, epochs, falls_short(results, runs, epochs))
    return Table.of("comparison", title_of(results), rows, notes, _data(analysis, ("t_p", "wilcoxon_p"), theirs))


def _published_cell(theirs: PublishedTable, method: str) -> Cell:
    found = theirs.results.get(method)
    if found is None:
        return Cell(NONE)
    text = _as_published(found.mean, found.sd, found.t_p, found.wilcoxon_p, theirs.decimals)
    return Cell(text, found.mean, found.mean == min(theirs.means.values()))


def _as_published(mean: float, sd: float, t_p: float | None, wilcoxon_p: float | None, decimals: int) -> str:
    """Format as in the paper, for example "1.35 ± 0.049 (3.1e-17/9.1e-7)"."""
    spread = "" if math.isnan(sd) else f" ± {sd:.{_SPREAD}f}"
    tests = "" if t_p is None or wilcoxon_p is None else f" ({p_value(t_p)}/{p_value(wilcoxon_p)})"
    return f"{mean:.{decimals}f}{spread}{tests}"


def _summaries(results: Results) -> dict[str, tuple[stats.Summary, bool]]:
    """Return the summary of each method, and if it has the best mean."""
    found = {method: stats.summary(list(runs.values())) for method, runs in results.errors().items()}
    sign = results.measure.sign
    best = sign * min((sign * each.mean for each in found.values()), default=0.0)
    return {method: (each, math.isclose(each.mean, best, rel_tol=RESOLUTION)) for method, each in found.items()}


def _named(results: Results, method: str) -> dict[str, Value]:
    return {
        "method": labels.printable(method),
        "variant": labels.printable(results.variants().get(method, method)),
    }


def _data(
    analysis: Analysis, names: tuple[str, ...], theirs: PublishedTable | None = None
) -> tuple[dict[str, Value], ...]:
    """Return rows for programs, with these fields of the comparisons."""
    results, comparisons = analysis.results, analysis.comparisons
    published = theirs.results if theirs else {}
    printed = ("mean", "sd", "t_p", "wilcoxon_p") if theirs else ()
    return tuple(
        {
            **_named(results, method),
            "runs": found.n,
            "mean": found.mean,
            "sd": found.sd,
            "pairs": getattr(comparisons.get(method), "runs", None),
            **{name: getattr(comparisons.get(method), name, None) for name in names},
            **{f"paper_{name}": getattr(published.get(method), name, None) for name in printed},
        }
        for method, (found, _) in _summaries(results).items()
    )


def _notes(name: str, analysis: Analysis, *values: object) -> tuple[str, ...]:
    """Return the notes of a table, with those on the limits of its p-values."""
    found = texts(name, analysis, size_of(analysis.results), *values)
    return found + texts("limits", analysis, ENOUGH_RUNS, DOUBTFUL)


def differences(analysis: Analysis) -> Table | None:
    """Return every method against the reference with intervals, tests and effect; None without a comparison."""
    results, comparisons = analysis.results, analysis.comparisons
    if not comparisons:
        return None
    decimals, called = _decimals(comparisons), labels.display_name(results.reference, longest=40)
    title = f"{title_of(results)}: {called} against each method"
    rows = [_difference_row(method_cell(results, method), found, decimals) for method, found in comparisons.items()]
    data = [_difference_data(results, method, found) for method, found in comparisons.items()]
    margin, is_planned = next(iter(comparisons.values())).margin, planned_margin(results) is not None
    is_moved = amendments.has_moved(results.protocol.description, "margin")
    return Table.of("differences", title, rows, _notes("differences", analysis, margin, is_planned, is_moved), data)


def _decimals(comparisons: Mapping[str, stats.Comparison]) -> int:
    """Return decimals that show two digits of the smallest spread, or of the smallest difference without one."""
    spreads = [found.sd for found in comparisons.values() if found.sd > 0]
    smallest = min(spreads or [abs(found.difference) for found in comparisons.values() if found.difference], default=1)
    means = max((abs(found.reference.mean) for found in comparisons.values()), default=1.0)
    most = 8 - min(0, math.floor(math.log10(means or 1.0)))  # of values that are small themselves, more
    return 2 if smallest >= 0.1 else min(most, 1 - math.floor(math.log10(smallest)))


def _difference_row(method: Cell, found: stats.Comparison, decimals: int) -> dict[str, Cell]:
    wins = f"{found.wins}/{found.ties}/{found.losses}"
    detectable = NONE if math.isnan(found.minimum_detectable) else f"{found.minimum_detectable:.{decimals}f}"
    return {
        "Method": method,
        "Difference": Cell(signed(found.difference, decimals), found.difference),
        "95 % interval": _interval(found.interval, decimals),
        "Runs and examples": _interval(found.two_way or (math.nan, math.nan), decimals),
        "Simultaneous": _interval(found.simultaneous, decimals),
        "p (t)": p_cell(found.t_p_two_sided, found.runs),
        "Holm (t)": p_cell(found.t_p_two_sided_holm, found.runs),
        "p (W)": p_cell(found.wilcoxon_p_two_sided, found.runs),
        "Holm (W)": p_cell(found.wilcoxon_p_two_sided_holm, found.runs),
        "Effect d": Cell(signed(found.effect), _finite(found.effect)),
        "Wins/ties/losses": Cell(wins, found.superiority),
        "Detectable": Cell(detectable, _finite(found.minimum_detectable)),
        "Equivalent p": p_cell(found.equivalence_p_holm, found.runs),
        "Pairs": count_cell(found.runs),
    }


def _interval(ends: tuple[float, float], decimals: int) -> Cell:
    low, high = (signed(end, decimals) for end in ends)
    return Cell(NONE if math.isnan(ends[0]) else f"[{low}, {high}]", _finite(ends[0]))


def _finite(value: float) -> float | None:
    """Return the value as a sort key; None if it is not finite."""
    return value if math.isfinite(value) else None


# Columns of the differences for programs, by the attribute of a comparison where that has another name.
_ALIASES = {
    "pairs": "runs",
    **{f"reference_{name}": f"reference.{name}" for name in ("mean", "sd")},
    **{f"method_{name}": f"other.{name}" for name in ("mean", "sd")},
    "difference_sd": "sd",
}
_ENDS = [f"{interval}_{end}" for interval in ("interval", "two_way", "simultaneous") for end in ("low", "high")]
_TESTS = ("t_p", "t_p_two_sided", "wilcoxon_p", "wilcoxon_p_two_sided", "equivalence_p")
_COLUMNS = (
    "pairs", "reference_mean", "reference_sd", "method_mean", "method_sd", "difference", "difference_sd", "confidence",
    *_ENDS, *_TESTS, *(f"{test}_holm" for test in _TESTS),
    "wilcoxon_method", "effect", "wins", "ties", "losses", "minimum_detectable", "margin",
)  # fmt: skip


def _difference_data(results: Results, method: str, found: stats.Comparison) -> dict[str, Value]:
    """Return every figure of a comparison, one to a column."""
    ends = (*found.interval, *(found.two_way or (None, None)), *found.simultaneous)
    known = dict(zip(_ENDS, ends))
    values = {name: known[name] if name in known else attrgetter(_ALIASES.get(name, name))(found) for name in _COLUMNS}
    return {"reference": labels.printable(results.reference), **_named(results, method), **values}
