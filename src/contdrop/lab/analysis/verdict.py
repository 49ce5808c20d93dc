"""The answer in sentences: is the reference better here, by how much, and would it survive a reviewer?

Errors are in per cent, so gaps are in percentage points. A method counts as better or worse if the two-sided paired
t-test says so after Holm's correction over all methods of the experiment; where Wilcoxon's test does not agree, the
sentence says that, too. "No difference" is claimed only if the equivalence test supports it; otherwise the sentence
says which gap the runs would have shown.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...text import plural
from ..results import Results
from ..stats import Comparison, summary
from ..stats.comparison import ENOUGH_RUNS
from .comparisons import compare, margin_of
from .wording import all_of, called, capital, names, ordinal, percent, points, probability, run_count, within

ALPHA = 0.05
_NOTHING = 1e-9  # a difference of means that is rounding
BERNOULLI, CONTROL = "bernoulli", "bernoulli-matched"

BETTER, WORSE, EQUIVALENT, OPEN, FEW = "better", "worse", "equivalent", "open", "few"
MIXED, NONE = "mixed", "none"


@dataclass(frozen=True)
class Finding:
    """The reference against one method.

    Attributes:
        label: Why this method.
        gap: The difference in a few words; empty if there is none to speak of.
        text: A sentence or two.
        outcome: For the reference.
    """

    label: str
    gap: str
    text: str
    outcome: str


@dataclass(frozen=True)
class Verdict:
    """What an experiment says.

    Attributes:
        experiment: Its name.
        preset: Its size.
        outcome: For the reference: one of the outcomes of a finding, "mixed", or "none" if there is nothing to compare.
        headline: The answer in a sentence.
        findings: Against Bernoulli dropout, the closest rival, and the control of equal noise.
        caveats: What a reviewer would ask about.
        outcomes: For the reference, by method.
    """

    experiment: str
    preset: str
    outcome: str
    headline: str
    findings: tuple[Finding, ...]
    caveats: tuple[str, ...]
    outcomes: Mapping[str, str]


def verdict(results: Results, margin: float | None = None) -> Verdict:
    """The verdict on one experiment.

    Args:
        results: All its jobs.
        margin: The smallest difference in error, in percentage points, that matters; a tenth of the reference's error
            if None.
    """
    comparisons = compare(results, margin)
    outcomes = {method: outcome_of(comparison) for method, comparison in comparisons.items()}
    if comparisons:
        whole, headline = _headline(results, comparisons, outcomes)
        findings = tuple(_findings(results, comparisons, outcomes))
    else:
        whole, headline, findings = NONE, _nothing(results), ()
    return Verdict(
        results.protocol.experiment,
        results.protocol.preset,
        whole,
        headline,
        findings,
        tuple(_caveats(results, comparisons, margin)),
        outcomes,
    )


def outcome_of(comparison: Comparison) -> str:
    """How the reference fares in one comparison."""
    if comparison.runs < ENOUGH_RUNS:
        return FEW
    p = comparison.t_p_two_sided_holm  # none where all differences are equal
    if (comparison.wilcoxon_p_two_sided_holm if math.isnan(p) else p) < ALPHA:
        return BETTER if comparison.difference < 0 else WORSE
    return EQUIVALENT if _is_equivalent(comparison) else OPEN


def _is_equivalent(comparison: Comparison) -> bool:
    return comparison.equivalence_p is not None and comparison.equivalence_p < ALPHA


# ---- the headline


def _nothing(results: Results) -> str:
    reference = results.reference
    errors = results.errors()
    planned, failed = len(results.final), sum(job.status == "failed" for job in results.final)
    if not planned:
        return "No verdict yet: parameters are still being selected, and no final run is planned."
    if not errors and failed == planned:
        return f"No verdict: {all_of(planned, 'run')} failed."
    if not errors:
        return f"No verdict yet: none of {plural(planned, 'planned run')} has finished."
    if list(errors) == [reference]:
        return f"No verdict: only {called(reference)} has finished runs, and there is nothing to compare it with."
    if reference in errors:
        return f"No verdict yet: {called(reference)} shares no finished run with another method."
    return f"No verdict: {called(reference)}, with which the others are compared, has no finished run."


def _headline(results: Results, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]) -> tuple[str, str]:
    reference = called(results.reference)
    groups: dict[str, list[str]] = {kind: [] for kind in (BETTER, WORSE, EQUIVALENT, OPEN, FEW)}
    for method, kind in outcomes.items():
        groups[kind].append(method)
    if len(groups[FEW]) == len(outcomes):
        return FEW, _few(results, comparisons)
    decided = [*groups[BETTER], *groups[WORSE]]
    confirmed = all(comparisons[method].wilcoxon_p_two_sided_holm < ALPHA for method in decided)
    end = f"{_rest(comparisons, groups)}." + ("" if confirmed else " Wilcoxon's test does not confirm all of that.")
    better, worse = (_gaps(comparisons, groups[kind]) for kind in (BETTER, WORSE))
    if len(groups[BETTER]) == len(outcomes) > 1:
        chance = ", beyond chance" if confirmed else ", by the t-test"
        return BETTER, f"{capital(reference)} is better than every other method here, {better}{chance}{end}"
    if groups[BETTER] and groups[WORSE]:
        return MIXED, (
            f"{capital(reference)} is better than {names(groups[BETTER])} ({better}), but worse than "
            f"{names(groups[WORSE])} ({worse}){end}"
        )
    if groups[BETTER]:
        return BETTER, f"{capital(reference)} is better than {names(groups[BETTER])}, {better}{end}"
    if groups[WORSE]:
        return WORSE, f"{capital(reference)} is worse than {names(groups[WORSE])}, {worse}{end}"
    if len(groups[EQUIVALENT]) == len(outcomes):
        margin = next(iter(comparisons.values())).margin
        others = "it and the other method" if len(outcomes) == 1 else "it and every other method"
        return (
            EQUIVALENT,
            f"{capital(reference)} makes no difference that matters: {others} are within {within(margin)}.",
        )
    runs = {comparison.runs for comparison in comparisons.values()}
    others = names(groups[OPEN]) if groups[EQUIVALENT] or groups[FEW] or len(outcomes) == 1 else "any other method"
    rest = _rest(comparisons, {**groups, OPEN: []})
    return OPEN, f"Undecided: {run_count(runs)} cannot tell {reference} from {others}{rest}."


def _few(results: Results, comparisons: Mapping[str, Comparison]) -> str:
    reference = results.reference
    shared = results.complete_runs()  # means over different runs would not be comparable
    means = {method: summary([runs[run] for run in shared or runs]).mean for method, runs in results.errors().items()}
    place = sorted(means, key=means.__getitem__).index(reference) + 1
    runs = {comparison.runs for comparison in comparisons.values()}
    where = "the lowest mean error" if place == 1 else f"the {ordinal(place)} lowest mean error"
    return (
        f"Too few runs to say: {called(reference)} has {where} of {len(means)} methods ({percent(means[reference])}), "
        f"but {run_count(runs)} cannot tell that from chance."
    )


def _rest(comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]]) -> str:
    parts = []
    if groups[EQUIVALENT]:
        margin = comparisons[groups[EQUIVALENT][0]].margin
        parts.append(f"no different from {names(groups[EQUIVALENT])} (within {within(margin)})")
    if groups[OPEN]:
        parts.append(f"not told apart from {names(groups[OPEN])}")
    if groups[FEW]:
        parts.append(f"with too few runs to be compared with {names(groups[FEW])}")
    return "".join(f"; {part}" for part in parts)


def _gaps(comparisons: Mapping[str, Comparison], methods: Sequence[str]) -> str:
    if not methods:
        return ""
    gaps = sorted(abs(comparisons[method].difference) for method in methods)
    if points(gaps[0]) == points(gaps[-1]):
        return f"by {points(gaps[0])} percentage points of error"
    return f"by {points(gaps[0])} to {points(gaps[-1])} percentage points of error"


# ---- findings


def _findings(
    results: Results, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> Iterable[Finding]:
    reference = results.reference
    is_gaussian = reference.partition(":")[0] == "gaussian"  # whose noise the control has
    rivals = [method for method in comparisons if method != CONTROL or not is_gaussian]
    if BERNOULLI in comparisons:
        yield _finding("Against Bernoulli", reference, BERNOULLI, comparisons, outcomes)
    if rivals:
        best = min(rivals, key=lambda method: comparisons[method].other.mean)
        if best != BERNOULLI:
            label = "The best of the others" if comparisons[best].difference > 0 else "The closest rival"
            yield _finding(label, reference, best, comparisons, outcomes)
    if is_gaussian:
        yield _at_equal_noise(results, reference, comparisons, outcomes)


def _at_equal_noise(
    results: Results, reference: str, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> Finding:
    label = "At equal noise"
    if CONTROL not in comparisons:
        text = f"{CONTROL}, the Bernoulli law with as much noise, has no finished run here"
        return Finding(
            label, "", f"Nothing to say: {text}, so a gap may come from the strength of the noise alone.", OPEN
        )
    noise = {job.method: job.results.get("relative_variance") for job in results.finished}
    ours, theirs = noise[reference], noise[CONTROL]
    if ours is not None and theirs is not None and not math.isclose(ours, theirs, rel_tol=0.01):
        text = f"{CONTROL} was run with another amount of noise, relative variance {theirs:.3f} instead of {ours:.3f}"
        return Finding(label, "", f"Nothing to say: {text}.", OPEN)
    found = _finding(label, reference, CONTROL, comparisons, outcomes)
    return Finding(label, found.gap, f"{found.text} {_lesson(reference, outcomes)}", found.outcome)


def _finding(
    label: str, reference: str, other: str, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> Finding:
    found = comparisons[other]
    gap, low, high = -found.difference, -found.interval[1], -found.interval[0]
    direction = "less"
    if gap < 0:
        gap, low, high, direction = -gap, -high, -low, "more"
    first, second = capital(called(reference)), called(other)
    if gap < _NOTHING:
        text, summed = f"{first} and {second} both err {percent(found.reference.mean)}", "equal"
    else:
        summed = f"{points(gap)} points {direction}"
        text = f"{first} errs {percent(found.reference.mean)}, {second} {percent(found.other.mean)}: {summed}"
    if math.isfinite(low):
        text += f" ({found.confidence:.0%} interval {points(low)} to {points(high)})".replace("%", " %")
    wins = found.superiority * found.runs
    text += f", better in {wins:g} of {plural(found.runs, 'run')}{'' if wins.is_integer() else ', a tie counting half'}"
    return Finding(label, summed, f"{text}. {_evidence(found, outcomes[other], len(comparisons))}", outcomes[other])


def _evidence(found: Comparison, outcome: str, comparisons: int) -> str:
    corrected = f" after correction for {comparisons} comparisons" if comparisons > 1 else ""
    if outcome in (BETTER, WORSE):
        if math.isnan(found.t_p_two_sided_holm):
            only = probability(found.wilcoxon_p_two_sided_holm)
            return f"All differences are equal; that is beyond chance{corrected} by Wilcoxon's test alone ({only})."
        text = f"That is beyond chance{corrected} ({probability(found.t_p_two_sided_holm)})"
        doubts = []
        if not found.wilcoxon_p_two_sided_holm < ALPHA:
            doubts.append(f"Wilcoxon's test does not reach 5 % ({probability(found.wilcoxon_p_two_sided_holm)})")
        if found.interval[0] <= 0 <= found.interval[1]:
            doubts.append("the interval reaches 0")
        if doubts:
            text += f", by the t-test; but {' and '.join(doubts)}, so a reviewer may doubt it"
        if _is_equivalent(found):
            text += f"; but it is less than the {points(found.margin or 0)} points that would matter"
        return f"{text}."
    if outcome == EQUIVALENT:
        return (
            f"No difference that matters: the equivalence test puts it within {within(found.margin)} "
            f"({probability(found.equivalence_p or 0)})."
        )
    if found.runs == 1:
        return "One run says nothing about chance."
    if math.isnan(found.minimum_detectable):
        return "All differences are equal, so nothing can be said of their spread."
    gap = points(found.minimum_detectable)
    seen = f"{plural(found.runs, 'such run')} could only have seen a gap of {gap} points or more (with 80 % power)"
    if outcome == FEW:
        return f"Fewer than {ENOUGH_RUNS} runs, so a test means little: {seen}."
    return f"That may be chance ({probability(found.t_p_two_sided_holm)}{corrected}): {seen}."


def _lesson(reference: str, outcomes: Mapping[str, str]) -> str:
    kind = outcomes[CONTROL]
    if kind == BETTER:
        return f"So the shape of {reference}'s noise matters here, not its strength alone."
    if kind == WORSE:
        return "So with as much noise, a mask that is on or off does better."
    if kind == EQUIVALENT and outcomes.get(BERNOULLI) == BETTER:
        return (
            f"So what {reference} gains over plain Bernoulli comes from the strength of its noise, not from its shape."
        )
    if kind == EQUIVALENT:
        return "So with as much noise, its shape makes no difference that matters."
    return "So whether the shape of the noise matters, beyond its strength, is open."


# ---- caveats


def _caveats(results: Results, comparisons: Mapping[str, Comparison], margin: float | None) -> Iterable[str]:
    description, total = results.protocol.description, len(results.final)
    failed = [job for job in results.final if job.status == "failed"]
    if failed:
        each = collections.Counter(job.method for job in failed)
        which = ", ".join(f"{called(method)} {number}" for method, number in each.items())
        yield (
            f"{len(failed)} of {plural(total, 'run')} failed ({which}). The comparison has to leave them out, which "
            "flatters methods that fail."
        )
    if results.missing:
        are = "is" if len(results.missing) == 1 else "are"
        yield f"{len(results.missing)} of {plural(total, 'run')} {are} not finished yet, so this may change."
    if description.get("paper") and description.get("paper_runs"):
        runs = max((len(found) for found in results.errors().values()), default=0)
        size, wanted = (runs, results.protocol.epochs), (description["paper_runs"], description["paper_epochs"])
        if size != wanted:
            yield (
                f"Not a replication of the paper's {description['paper']}: {plural(runs, 'run')} of "
                f"{plural(size[1], 'epoch')} here, {wanted[0]} of {wanted[1]} there."
            )
    if len({comparison.runs for comparison in comparisons.values()}) > 1:
        most = max(comparison.runs for comparison in comparisons.values())
        fewer = ", ".join(f"{called(method)} {c.runs}" for method, c in comparisons.items() if c.runs < most)
        yield f"Not every method shares {plural(most, 'run')} with {called(results.reference)}: {fewer}."
    for method, comparison in comparisons.items():
        for note in comparison.notes:
            if "equal" in note and "leaves out" not in note:  # single ties are for the table
                yield f"Against {called(method)}: {note[0].lower()}{note[1:]}"
    if comparisons and margin is None:
        share = margin_of(results)
        if share:
            yield (
                f"Differences of less than {points(share)} points, a tenth of {called(results.reference)}'s error, "
                "count as none that matter; --margin sets another bound."
            )
