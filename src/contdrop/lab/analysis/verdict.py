"""The answer in sentences: is the reference better here, by how much, and would it survive a reviewer?

Errors are in per cent, so gaps are in percentage points. A method counts as better or worse if the two-sided paired
t-test says so after Holm's correction over all methods of the experiment; where Wilcoxon's test says otherwise, the
sentence says that, too, whichever of them sees a difference. "Within the margin" is claimed only if the equivalence
test supports it, with the same correction; otherwise the sentence says which gap the runs would have shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...text import plural
from ..results import Results
from ..stats import Comparison, summary
from ..stats.comparison import ENOUGH_RUNS
from .caveats import caveats
from .comparisons import compare
from .wording import all_of, called, capital, names, ordinal, percent, points, probability, run_count, tally, within

ALPHA = 0.05
_NOTHING = 1e-9  # a difference of means that is rounding
HEADLINE = 150  # characters: two lines of the page
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
        headline: The answer in a sentence of at most ``HEADLINE`` characters.
        details: What the headline has no room for.
        findings: Against Bernoulli dropout, the closest rival, and the control of equal noise.
        caveats: What a reviewer would ask about.
        outcomes: For the reference, by method.
    """

    experiment: str
    preset: str
    outcome: str
    headline: str
    details: tuple[str, ...]
    findings: tuple[Finding, ...]
    caveats: tuple[str, ...]
    outcomes: Mapping[str, str]


def verdict(
    results: Results, margin: float | None = None, comparisons: Mapping[str, Comparison] | None = None
) -> Verdict:
    """The verdict on one experiment.

    Args:
        results: All its jobs.
        margin: The smallest difference in error, in percentage points, that matters, if it was chosen after the fact;
            see :func:`.comparisons.margin_of` for what holds otherwise.
        comparisons: Of these results with this margin, if they have been made already.
    """
    comparisons = compare(results, margin) if comparisons is None else comparisons
    outcomes = {method: outcome_of(comparison) for method, comparison in comparisons.items()}
    details: Sequence[str] = ()
    if comparisons:
        whole, sentences = _headline(results, comparisons, outcomes)
        headline, details = _two_lines(sentences)
        findings = tuple(_findings(results, comparisons, outcomes))
    else:
        whole, headline, findings = NONE, _nothing(results), ()
    return Verdict(
        results.protocol.experiment,
        results.protocol.preset,
        whole,
        headline,
        tuple(details),
        findings,
        tuple(caveats(results, comparisons, margin)),
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
    if comparison.margin is None or comparison.equivalence_p_holm is None:
        return False
    if comparison.sd == 0:  # no test: the same difference in every run
        return abs(comparison.difference) < comparison.margin
    return comparison.equivalence_p_holm < ALPHA


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


def _two_lines(sentences: Sequence[str]) -> tuple[str, Sequence[str]]:
    """As many of the sentences as fit the headline, and the others."""
    for number in range(len(sentences), 1, -1):
        if len(" ".join(sentences[:number])) <= HEADLINE:
            return " ".join(sentences[:number]), sentences[number:]
    return sentences[0], sentences[1:]


def _headline(
    results: Results, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> tuple[str, list[str]]:
    """The outcome, and sentences, the most important first."""
    reference = called(results.reference)
    groups: dict[str, list[str]] = {kind: [] for kind in (BETTER, WORSE, EQUIVALENT, OPEN, FEW)}
    for method, kind in outcomes.items():
        groups[kind].append(method)
    if len(groups[FEW]) == len(outcomes):
        return FEW, [_few(results, comparisons)]
    rest = [*_rest(comparisons, groups), *_disagreement(comparisons, outcomes)]
    decided = [*groups[BETTER], *groups[WORSE]]
    if decided:
        whole = MIXED if groups[BETTER] and groups[WORSE] else BETTER if groups[BETTER] else WORSE
        return whole, [*_decided(reference, comparisons, groups), *rest]
    if len(groups[EQUIVALENT]) == len(outcomes):
        margin = next(iter(comparisons.values())).margin
        others = "the other method" if len(outcomes) == 1 else "every other method"
        return EQUIVALENT, [f"{capital(reference)} is within {within(margin)} of {others}.", *rest[1:]]
    runs = {comparison.runs for comparison in comparisons.values()}
    others = names(groups[OPEN]) if groups[EQUIVALENT] or groups[FEW] or len(outcomes) == 1 else "any other method"
    first = f"Undecided: {run_count(runs)} cannot tell {reference} from {others}."
    if len(first) > HEADLINE:
        first = f"Undecided: {run_count(runs)} cannot tell {reference} from {len(groups[OPEN])} other methods."
    return OPEN, [first, *_rest(comparisons, {**groups, OPEN: []}), *_disagreement(comparisons, outcomes)]


def _decided(
    reference: str, comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]]
) -> Iterable[str]:
    """Better than which, worse than which, and by how much; names that take too long come in sentences of their own."""
    kinds = [kind for kind in (BETTER, WORSE) if groups[kind]]
    every = sum(map(len, groups.values()))
    told, chance = {kind: names(groups[kind]) for kind in kinds}, ""
    if len(groups[kinds[0]]) == every > 1:
        told[kinds[0]] = "every other method here"
        chance = ", beyond chance" if all(map(_ranks_say, comparisons.values())) else ", by the t-test"
    gaps = {kind: _gaps(comparisons, groups[kind]) for kind in kinds}

    def sentence(shown: Mapping[str, str]) -> str:
        if len(kinds) == 1:
            return f"{capital(reference)} is {kinds[0]} than {shown[kinds[0]]}, {gaps[kinds[0]]}{chance}."
        parts = [f"{kind} than {shown[kind]} ({gaps[kind]})" for kind in kinds]
        return f"{capital(reference)} is {', but '.join(parts)}."

    if len(sentence(told)) <= HEADLINE:
        yield sentence(told)
        return
    yield sentence({kind: f"{len(groups[kind])} of {every} methods" for kind in kinds})
    for kind in kinds:
        yield f"{capital(kind)} than {names(groups[kind])}."


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


def _rest(comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]]) -> list[str]:
    parts = []
    if groups[EQUIVALENT]:
        margin = comparisons[groups[EQUIVALENT][0]].margin
        parts.append(f"Within {within(margin)} of {names(groups[EQUIVALENT])}.")
    if groups[OPEN]:
        parts.append(f"Not told apart from {names(groups[OPEN])}.")
    if groups[FEW]:
        parts.append(f"Too few runs to be compared with {names(groups[FEW])}.")
    return parts


def _disagreement(comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]) -> Iterable[str]:
    """Where Wilcoxon's test says otherwise, whichever of the two sees a difference."""
    doubted = [
        method
        for method, kind in outcomes.items()
        if kind in (BETTER, WORSE) and not comparisons[method].wilcoxon_p_two_sided_holm < ALPHA
    ]
    if doubted:
        yield f"Wilcoxon's test does not confirm the difference from {names(doubted)}."
    undecided = [method for method, kind in outcomes.items() if kind in (OPEN, EQUIVALENT)]
    seen = [method for method in undecided if _ranks_say(comparisons[method])]
    if seen:
        yield f"Wilcoxon's test, unlike the t-test, sees a difference from {names(seen)}."


def _ranks_say(comparison: Comparison) -> bool:
    return comparison.wilcoxon_p_two_sided_holm < ALPHA


def _gaps(comparisons: Mapping[str, Comparison], methods: Sequence[str]) -> str:
    gaps = sorted(abs(comparisons[method].difference) for method in methods)
    span = points(gaps[0]) if points(gaps[0]) == points(gaps[-1]) else f"{points(gaps[0])} to {points(gaps[-1])}"
    text = f"by {span} percentage points of error"
    small = [method for method in methods if _is_equivalent(comparisons[method])]
    if not small:
        return text
    matters = f"less than the {points(comparisons[small[0]].margin or 0)} that matter"
    return f"{text}, {matters}" if len(small) == len(methods) else f"{text} (for {names(small)} {matters})"


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
    refusal = _unlike(results, reference, CONTROL)
    if refusal:
        return Finding(label, "", f"Nothing to say: {refusal}.", OPEN)
    found = _finding(label, reference, CONTROL, comparisons, outcomes)
    return Finding(label, found.gap, f"{found.text} {_lesson(reference, outcomes)}", found.outcome)


def _unlike(results: Results, first: str, second: str) -> str | None:
    """Why two methods are not of equal noise: their masks differ in relative variance or in mean."""
    found = {job.method: job.results for job in results.finished}
    for key, what in (("relative_variance", "relative variance"), ("mean", "mean of the masks")):
        ours, theirs = found[first].get(key), found[second].get(key)
        if ours is not None and theirs is not None and not math.isclose(ours, theirs, rel_tol=0.01):
            kind = "another amount of noise" if key == "relative_variance" else "masks of another mean"
            return f"{second} was run with {kind}, {what} {theirs:.3f} instead of {ours:.3f}"
    scale = (results.protocol.configuration.get("recipe") or {}).get("scale")
    if scale == "paper" and (found[first].get("mean") is None or found[second].get("mean") is None):
        return f"masks are unscaled here, and the store does not say whether those of {second} have {first}'s mean"
    return None


def _finding(
    label: str, reference: str, other: str, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> Finding:
    found = comparisons[other]
    gap, (low, high) = abs(found.difference), found.interval
    direction = "less" if found.difference < 0 else "more"
    first, second = capital(called(reference)), called(other)
    if gap < _NOTHING:
        text, summed = f"{first} and {second} both err {percent(found.reference.mean)}", "equal"
    else:
        summed = f"{points(gap)} points {direction}"
        text = f"{first} errs {percent(found.reference.mean)}, {second} {percent(found.other.mean)}: {summed}"
    if math.isfinite(low):
        sure = f"{found.confidence:.0%}".replace("%", " %")
        text += f" ({sure} interval of the difference {points(low)} to {points(high)})"
    text += f", {tally(found.wins, found.ties, found.losses)}"
    return Finding(label, summed, f"{text}. {_evidence(found, outcomes[other], len(comparisons))}", outcomes[other])


def _evidence(found: Comparison, outcome: str, comparisons: int) -> str:
    corrected = f" after correction for {comparisons} comparisons" if comparisons > 1 else ""
    if found.runs == 1:
        return "One run says nothing about chance."
    if found.sd == 0:
        return _without_spread(found, outcome, corrected)
    if outcome in (BETTER, WORSE):
        return _difference(found, corrected)
    if outcome == EQUIVALENT:
        text = (
            f"No difference that matters: the equivalence test puts it within {within(found.margin)} "
            f"({probability(found.equivalence_p_holm or 0)}{corrected})"
        )
        return f"{text}{_ranks_differ(found, corrected)}."
    gap = points(found.minimum_detectable)
    seen = f"{plural(found.runs, 'such run')} could only have seen a gap of {gap} points or more (with 80 % power)"
    if abs(found.difference) >= found.minimum_detectable or _ranks_say(found):
        seen = ""  # the gap itself says otherwise, or another test does
    if outcome == FEW:
        return f"Fewer than {ENOUGH_RUNS} runs, so a test means little{seen and f': {seen}'}."
    text = f"The t-test leaves it open ({probability(found.t_p_two_sided_holm)}{corrected})"
    text += _ranks_differ(found, corrected) or _alone(found, comparisons)
    return f"{text}{seen and f': {seen}'}."


def _difference(found: Comparison, corrected: str) -> str:
    text = f"That is beyond chance{corrected} ({probability(found.t_p_two_sided_holm)})"
    doubts = []
    if not _ranks_say(found):
        doubts.append(f"Wilcoxon's test does not reach 5 % ({probability(found.wilcoxon_p_two_sided_holm)})")
    if found.interval[0] <= 0 <= found.interval[1]:
        doubts.append("the interval reaches 0")
    if doubts:
        text += f", by the t-test; but {' and '.join(doubts)}, so a reviewer may doubt it"
    if _is_equivalent(found):
        text += f"; but it is less than the {points(found.margin or 0)} points that would matter"
    return f"{text}."


def _without_spread(found: Comparison, outcome: str, corrected: str) -> str:
    """Where all runs differ by the same amount there is no t-test, and no interval."""
    if found.difference == 0:
        return "There is no difference to test."
    text = f"The difference is the same in all {found.runs} runs, so there is no t-test"
    if outcome in (BETTER, WORSE):
        only = probability(found.wilcoxon_p_two_sided_holm)
        text += f"; that is beyond chance{corrected} by Wilcoxon's test alone ({only})"
    elif outcome == FEW:
        text += f", and fewer than {ENOUGH_RUNS} runs are too few for Wilcoxon's"
    else:
        text += f"; Wilcoxon's test leaves it open ({probability(found.wilcoxon_p_two_sided_holm)}{corrected})"
    if outcome != FEW and _is_equivalent(found):
        text += f"; it is less than the {points(found.margin or 0)} points that would matter"
    return f"{text}."


def _ranks_differ(found: Comparison, corrected: str) -> str:
    if not _ranks_say(found):
        return ""
    p = probability(found.wilcoxon_p_two_sided_holm)
    return f", but Wilcoxon's test sees a difference ({p}{corrected}), so the two tests disagree"


def _alone(found: Comparison, comparisons: int) -> str:
    """Why an interval that excludes 0 stands beside an open question."""
    if found.interval[0] <= 0 <= found.interval[1] or not math.isfinite(found.interval[0]):
        return ""
    if comparisons == 1:
        return ", though the bootstrap interval excludes 0"
    low, high = found.simultaneous
    return (
        f"; the interval is for this comparison alone, and one that holds for all {comparisons} at once includes 0 "
        f"({points(low)} to {points(high)})"
    )


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
