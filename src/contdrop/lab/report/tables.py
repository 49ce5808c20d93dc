"""Main tables of a result: :func:`overview`, :func:`comparison` and :func:`differences`.

Means are over all finished runs of a method; comparisons of two methods over the runs that both have finished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .. import stats
from ..analysis.caveats import falls_short
from ..analysis.comparisons import planned_margin
from ..analysis.verdict import Analysis
from ..extensions import PublishedTable, extension
from ..stats.paired import ENOUGH_RUNS
from ..stats.significance import RESOLUTION
from ..store.results import Results
from ..store.schema import FAILED
from ..study import amendments, labels
from .formats import DOUBTFUL, NONE, Cell, Table, doubt, mean_sd, method_cell, p_cell, p_value, signed
from .protocol import size_of, title_of

Value = float | int | str | None
WHICH_INTERVAL = (
    "The 95 % interval is over runs: by how much the methods would differ on these test examples if all were trained "
    "again. “Runs and examples” (crossed random effects, Student's quantile) also takes the test examples, or their "
    "groups where the study has groups, for a sample: by how much they would differ on other examples of the same kind."
)
_SPREAD = 3  # decimals of the standard deviation of percentages, as in the paper
_PRINTED = ("mean", "sd", "t_p", "wilcoxon_p")
_TESTS = ("t_p", "t_p_two_sided", "wilcoxon_p", "wilcoxon_p_two_sided", "equivalence_p")


def overview(analysis: Analysis) -> Table:
    """Return mean and spread of every method, its paired difference from the reference and the deciding p-value."""
    results, comparisons = analysis.results, analysis.comparisons
    measure, called = results.measure, labels.name_in_text(results.reference, longest=40)
    noise = {job.method: job.results.get("relative_variance") for job in results.finished}
    decimals = _decimals(comparisons)
    has_noise = any(each is not None for each in noise.values())
    rows = tuple(
        (
            method_cell(results, method),
            Cell(mean_sd(found, measure), found.mean, is_best),
            *_against(comparisons.get(method), decimals),
            *([_noise(method, noise[method])] if has_noise else []),
            Cell(str(found.n), float(found.n)),
        )
        for method, (found, is_best) in _summaries(results).items()
    )
    headings = (
        "Method", f"Test {measure.heading}", f"{called} minus it [95 % interval]", "p, two-sided (Holm)",
        *(["Noise"] if has_noise else []), "Runs",
    )  # fmt: skip
    form = (
        f"Difference{_unit(results)}: {measure.sign_rule(called)}; the interval is of this comparison alone. p-values: "
        "paired t-test, adjusted by Holm for the number of methods."
        + (" Noise: relative variance of the mask." if has_noise else "")
    )
    notes = _notes(results, comparisons, f"{size_of(results)}.", form)
    data = _data(results, comparisons, ("difference", "t_p_two_sided_holm"))
    return Table("comparison", title_of(results), headings, rows, notes, data)


def _against(found: stats.Comparison | None, decimals: int) -> tuple[Cell, Cell]:
    if found is None:
        return Cell(""), Cell("")
    difference, low, high = (signed(each, decimals) for each in (found.difference, *found.interval))
    between = "" if math.isnan(found.interval[0]) else f" [{low}, {high}]"
    return Cell(difference + between, found.difference), p_cell(found.t_p_two_sided_holm, found.runs)


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
    their_best = min(theirs.means.values())
    rows = []
    for method, (found, is_best) in _summaries(results).items():
        against = comparisons.get(method)
        t_p, wilcoxon_p = (against.t_p, against.wilcoxon_p) if against and against.runs > 1 else (None, None)
        text = _in_papers_form(found.mean, found.sd, t_p, wilcoxon_p, theirs.decimals)
        text += doubt(against.runs) if against else ""
        ours, printed = Cell(text, found.mean, is_best), _paper_cell(theirs, method, their_best)
        rows.append((method_cell(results, method), ours, printed, Cell(str(found.n), float(found.n))))
    heading = f"{results.measure.heading} (p-value-T/p-value-W)"
    runs, epochs = (results.protocol.description.get(f"paper_{what}") for what in ("runs", "epochs"))
    size = (
        f"Ours: {size_of(results)}. The paper's Table {theirs.number}: {runs or theirs.runs} runs"
        + (f", here of {epochs:,} epochs with the preset “paper”" if epochs else "")
        + (". This is no replication of it." if falls_short(results, runs or theirs.runs, epochs) else ".")
    )
    begun = labels.display_name(results.reference, longest=60)
    form = (
        f"In brackets, as in the paper, one-sided p-values of “{begun} errs less”: paired t-test (T) and Wilcoxon "
        "signed-rank test (W), neither corrected for the number of methods."
    )
    return Table(
        "comparison",
        title_of(results),
        ("Method", f"Test {heading}", f"The paper: {heading}", "Runs"),
        tuple(rows),
        _notes(results, comparisons, size, form),
        _data(results, comparisons, ("t_p", "wilcoxon_p"), theirs),
    )


def _summaries(results: Results) -> dict[str, tuple[stats.Summary, bool]]:
    """Return the summary of each method, and if it has the best mean."""
    found = {method: stats.summary(list(runs.values())) for method, runs in results.errors().items()}
    sign = results.measure.sign
    best = sign * min((sign * each.mean for each in found.values()), default=0.0)
    return {method: (each, math.isclose(each.mean, best, rel_tol=RESOLUTION)) for method, each in found.items()}


def _data(
    results: Results,
    comparisons: Mapping[str, stats.Comparison],
    names: Sequence[str],
    theirs: PublishedTable | None = None,
) -> tuple[dict[str, Value], ...]:
    """Return rows for programs, with these fields of the comparisons."""
    variants = results.variants()
    return tuple(
        {
            "method": labels.printable(method),
            "variant": labels.printable(variants.get(method, method)),
            "runs": found.n,
            "mean": found.mean,
            "sd": found.sd,
            "pairs": getattr(comparisons.get(method), "runs", None),
            **{name: getattr(comparisons.get(method), name, None) for name in names},
            **(
                {f"paper_{name}": getattr(theirs.results.get(method), name, None) for name in _PRINTED}
                if theirs
                else {}
            ),
        }
        for method, (found, _) in _summaries(results).items()
    )


def _paper_cell(theirs: PublishedTable, method: str, best: float) -> Cell:
    found = theirs.results.get(method)
    if found is None:
        return Cell(NONE)
    text = _in_papers_form(found.mean, found.sd, found.t_p, found.wilcoxon_p, theirs.decimals)
    return Cell(text, found.mean, found.mean == best)


def _notes(results: Results, comparisons: Mapping[str, stats.Comparison], size: str, form: str) -> tuple[str, ...]:
    called = labels.name_in_text(results.reference)
    if comparisons:
        best = f"Mean ± standard deviation over runs; best mean in bold. {form}"
        return size, best, *_limits(results, comparisons)
    if results.reference not in results.errors():
        return size, f"No run of the reference, {called}, is finished: there is nothing to compare the others with."
    return (size,)


def _limits(results: Results, comparisons: Mapping[str, stats.Comparison]) -> list[str]:
    """Return the notes on the limits of the p-values."""
    pairs = {each.runs for each in comparisons.values()}
    notes = []
    if 1 in pairs:
        notes.append("A single pair of runs has no p-value.")
    if few := [runs for runs in pairs if doubt(runs)]:
        least = f"With fewer than {ENOUGH_RUNS} pairs of runs (here {min(few)})"
        notes.append(f"{DOUBTFUL} {least} a p-value means little.")
    if len({len(runs) for runs in results.errors().values()}) > 1:
        shared = ", ".join(f"{labels.name_in_text(method)} {each.runs}" for method, each in comparisons.items())
        notes.append(
            "Methods have finished different runs. Tests use the runs that a method shares with the reference: "
            f"{shared}. Means are over all runs of a method, so compare them by the tests, not by eye."
        )
    if any(job.status == FAILED for job in results.final):
        notes.append(
            "Runs that failed or diverged have no value and are left out, with their partner of the reference; no "
            "value is put in their place, which flatters methods that fail."
        )
    return notes


def differences(analysis: Analysis) -> Table | None:
    """Return every method against the reference with intervals, tests and effect; None without a comparison."""
    results, comparisons = analysis.results, analysis.comparisons
    called, measure = labels.name_in_text(results.reference, longest=40), results.measure
    if not comparisons:
        return None
    decimals = _decimals(comparisons)
    rows = tuple(_difference_row(results, method, found, decimals) for method, found in comparisons.items())
    used = next(iter(comparisons.values())).margin
    kinds = "errs less, as much and more" if measure.is_error else "is better, equal and worse"
    notes = [
        f"Ours: {size_of(results)}. Difference: {called} minus the method{_unit(results)}, mean over the runs "
        f"that both have; {measure.sign_rule(called)}. Interval: of this comparison "
        "alone, small-sample widened BCa bootstrap, or Student's with fewer than 6 runs. Simultaneous: Student's "
        "intervals that hold for all rows at once (Bonferroni); one that excludes 0 always has Holm (t) below 0.05, "
        "but Holm, which goes step by step, also finds differences whose interval here includes 0.",
        "p-values here are two-sided; “Holm” are adjusted for the number of methods. Effect: mean difference over its "
        f"standard deviation. Wins/ties/losses: runs in which {called} {kinds}. Detectable: the "
        "difference that so many runs would find with 80 % power, with a test at 5 % divided by the number of methods.",
    ]
    if any(found.two_way for found in comparisons.values()):
        notes.insert(1, WHICH_INTERVAL)
    if used is not None:
        notes.append(
            f"Equivalent: p-value, adjusted by Holm, of the test (TOST) that the two differ by less than "
            f"±{measure.gap(used)}{_origin(results, analysis.margin)}; a small one is evidence for no difference that "
            "matters."
        )
    notes += _limits(results, comparisons)
    headings = (
        "Method", "Difference", "95 % interval", "Runs and examples", "Simultaneous", "p (t)", "Holm (t)", "p (W)",
        "Holm (W)", "Effect d", "Wins/ties/losses", "Detectable", "Equivalent p", "Pairs",
    )  # fmt: skip
    title = f"{title_of(results)}: {labels.display_name(results.reference, longest=40)} against each method"
    return Table("differences", title, headings, rows, tuple(notes), _difference_data(results, comparisons))


def _origin(results: Results, chosen: float | None) -> str:
    if chosen is not None:
        return ", chosen after the fact"
    if planned_margin(results) is not None:
        moved = amendments.has_moved(results.protocol.description, "margin")
        return f", {'chosen by the experiment when results were there' if moved else 'fixed by the experiment'}"
    return f", a tenth of {results.measure.room_of('the reference')}"


def _decimals(comparisons: Mapping[str, stats.Comparison]) -> int:
    """Return decimals that show two digits of the smallest spread, or of the smallest difference without one."""
    spreads = [found.sd for found in comparisons.values() if found.sd > 0]
    smallest = min(spreads or [abs(found.difference) for found in comparisons.values() if found.difference], default=1)
    means = max((abs(found.reference.mean) for found in comparisons.values()), default=1.0)
    most = 8 - min(0, math.floor(math.log10(means or 1.0)))  # of values that are small themselves, more
    return 2 if smallest >= 0.1 else min(most, 1 - math.floor(math.log10(smallest)))


def _unit(results: Results) -> str:
    unit = results.measure.gap_unit
    return f", in{unit}" if unit else ""


def _difference_row(results: Results, method: str, found: stats.Comparison, decimals: int) -> tuple[Cell, ...]:
    intervals = (
        Cell(NONE if math.isnan(low) else f"[{signed(low, decimals)}, {signed(high, decimals)}]", _finite(low))
        for low, high in (found.interval, found.two_way or (math.nan, math.nan), found.simultaneous)
    )
    detectable = NONE if math.isnan(found.minimum_detectable) else f"{found.minimum_detectable:.{decimals}f}"
    tests = (
        found.t_p_two_sided,
        found.t_p_two_sided_holm,
        found.wilcoxon_p_two_sided,
        found.wilcoxon_p_two_sided_holm,
    )
    return (
        method_cell(results, method),
        Cell(signed(found.difference, decimals), found.difference),
        *intervals,
        *(p_cell(p, found.runs) for p in tests),
        Cell(signed(found.effect), _finite(found.effect)),
        Cell(f"{found.wins}/{found.ties}/{found.losses}", found.superiority),
        Cell(detectable, _finite(found.minimum_detectable)),
        p_cell(found.equivalence_p_holm, found.runs),
        Cell(str(found.runs), float(found.runs)),
    )


def _finite(value: float) -> float | None:
    """Return the value as a sort key; None if it is not finite."""
    return value if math.isfinite(value) else None


def _difference_data(results: Results, comparisons: Mapping[str, stats.Comparison]) -> tuple[dict[str, Value], ...]:
    """Return every figure of the comparisons, one to a column."""
    variants = results.variants()
    return tuple(
        {
            "reference": labels.printable(results.reference),
            "method": labels.printable(method),
            "variant": labels.printable(variants.get(method, method)),
            "pairs": found.runs,
            "reference_mean": found.reference.mean,
            "reference_sd": found.reference.sd,
            "method_mean": found.other.mean,
            "method_sd": found.other.sd,
            "difference": found.difference,
            "difference_sd": found.sd,
            "confidence": found.confidence,
            "interval_low": found.interval[0],
            "interval_high": found.interval[1],
            "two_way_low": found.two_way[0] if found.two_way else None,
            "two_way_high": found.two_way[1] if found.two_way else None,
            "simultaneous_low": found.simultaneous[0],
            "simultaneous_high": found.simultaneous[1],
            **{f"{name}{end}": getattr(found, f"{name}{end}") for end in ("", "_holm") for name in _TESTS},
            "wilcoxon_method": found.wilcoxon_method,
            "effect": found.effect,
            "wins": found.wins,
            "ties": found.ties,
            "losses": found.losses,
            "minimum_detectable": found.minimum_detectable,
            "margin": found.margin,
        }
        for method, found in comparisons.items()
    )


def _in_papers_form(mean: float, sd: float, t_p: float | None, wilcoxon_p: float | None, decimals: int) -> str:
    """Format as in the paper, for example "1.35 ± 0.049 (3.1e-17/9.1e-7)"."""
    spread = "" if math.isnan(sd) else f" ± {sd:.{_SPREAD}f}"
    tests = "" if t_p is None or wilcoxon_p is None else f" ({p_value(t_p)}/{p_value(wilcoxon_p)})"
    return f"{mean:.{decimals}f}{spread}{tests}"
