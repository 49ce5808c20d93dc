"""Findings: the reference against the most relevant other methods, in a sentence or two each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..._text import plural
from ..stats import Comparison
from ..stats.paired import ENOUGH_RUNS, family_size
from ..stats.significance import RESOLUTION
from ..store.results import Results
from ..study.labels import name_in_text
from .comparisons import (
    BETTER,
    EQUIVALENT,
    FEW,
    OPEN,
    WORSE,
    control_of,
    includes_zero,
    is_equivalent,
    noise_mismatch,
    wilcoxon_can_reject,
    wilcoxon_rejects,
)
from .metric_format import Measure
from .phrases import capital, probability, tally

BERNOULLI = "bernoulli"


@dataclass(frozen=True)
class Finding:
    """The reference against one method; ``gap`` is empty if there is nothing to report."""

    label: str
    gap: str
    text: str
    outcome: str


def make_findings(
    results: Results, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> Iterable[Finding]:
    """Yield the findings against Bernoulli dropout, the closest rival, and the control of equal noise."""
    reference, measure = results.reference, results.measure
    control = control_of(reference)
    rivals = [method for method in comparisons if method != control]
    if BERNOULLI in comparisons:
        yield _finding("Against Bernoulli", measure, reference, BERNOULLI, comparisons, outcomes)
    if rivals:
        best = max(rivals, key=lambda m: (comparisons[m].runs >= ENOUGH_RUNS, measure.sign * comparisons[m].difference))
        if best != BERNOULLI:
            ahead = comparisons[best].is_better or comparisons[best].difference == 0
            yield _finding(
                "The closest rival" if ahead else "The best of the others",
                *(measure, reference, best, comparisons, outcomes),
            )
    if control:
        yield _at_equal_noise(results, control, comparisons, outcomes)


def _at_equal_noise(
    results: Results, control: str, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> Finding:
    label, reference = "At equal noise", results.reference
    if control not in comparisons:
        text = f"{name_in_text(control)}, the Bernoulli law with as much noise, has no finished run here"
        return Finding(
            label, "", f"Inconclusive: {text}, so a gap may come from the strength of the noise alone.", OPEN
        )
    refusal = noise_mismatch(results, reference, control)
    if refusal:
        return Finding(label, "", f"Inconclusive: {refusal}.", OPEN)
    found = _finding(label, results.measure, reference, control, comparisons, outcomes)
    against = comparisons.get(BERNOULLI)
    gains = (
        outcomes.get(BERNOULLI) == BETTER and against is not None and abs(against.difference) > (against.margin or 0)
    )
    lesson = _lesson(reference, found.outcome, gains)
    return Finding(label, found.gap, f"{found.text} {lesson}", found.outcome)


def _finding(
    label: str,
    measure: Measure,
    reference: str,
    other: str,
    comparisons: Mapping[str, Comparison],
    outcomes: Mapping[str, str],
) -> Finding:
    found = comparisons[other]
    gap, (low, high) = abs(found.difference), found.interval
    first, second = capital(name_in_text(reference)), name_in_text(other)
    ours, theirs = (measure.value(each.mean, each.sd) for each in (found.reference, found.other))
    if gap <= RESOLUTION * max(abs(found.reference.mean), abs(found.other.mean)):  # rounding
        both = f"both err {ours}" if measure.is_error else f"both have a test {measure.name} of {ours}"
        text, summed = f"{first} and {second} {both}", "equal"
    else:
        summed = f"{measure.gap(gap)} {measure.compared(found.difference)}"
        text = f"{measure.states(first, found.reference.mean, found.reference.sd)}, {second} {theirs}: {summed}"
    if math.isfinite(low):
        sure = f"{found.confidence:.0%}".replace("%", " %")
        span = f"{measure.amount(low)} to {measure.amount(high)}"
        text += f" ({sure} interval of the difference {span}{_over_examples(found, measure)})"
    text += f", {tally(found.wins, found.ties, found.losses)}"
    evidence = _evidence(found, measure, outcomes[other], family_size(comparisons.values()))
    return Finding(label, summed, f"{text}. {evidence}", outcomes[other])


def _over_examples(found: Comparison, measure: Measure) -> str:
    if found.two_way is None or math.isnan(found.two_way[0]):
        return ""
    low, high = (measure.amount(end) for end in found.two_way)
    return f" over runs, {low} to {high} over runs and test examples"


def _evidence(found: Comparison, measure: Measure, outcome: str, comparisons: int) -> str:
    corrected = f" after correction for {comparisons} comparisons" if comparisons > 1 else ""
    if found.runs == 1:
        return "A single run allows no test."
    if found.sd == 0:
        return _without_spread(found, measure, outcome, corrected)
    if outcome in (BETTER, WORSE):
        return _difference(found, measure, corrected, comparisons)
    if outcome == EQUIVALENT:
        text = (
            f"No difference that matters: the equivalence test puts it within {measure.within(found.margin)} "
            f"({probability(found.equivalence_p_holm or 0)}{corrected})"
        )
        return f"{text}{_ranks_differ(found, corrected)}."
    gap = measure.gap(found.minimum_detectable)
    seen = (
        f"{plural(found.runs, 'such run')} could only have detected a gap of {gap} or more (with 80 % power{corrected})"
    )
    if abs(found.difference) >= found.minimum_detectable or wilcoxon_rejects(found):
        seen = ""  # the gap itself says otherwise, or another test does
    if outcome == FEW:
        return f"Fewer than {ENOUGH_RUNS} runs, so a test means little{seen and f': {seen}'}."
    text = f"The t-test leaves it open ({probability(found.t_p_two_sided_holm)}{corrected})"
    text += _ranks_differ(found, corrected) or _alone(found, measure, comparisons)
    return f"{text}{seen and f': {seen}'}."


def _difference(found: Comparison, measure: Measure, corrected: str, comparisons: int) -> str:
    text = f"That is beyond chance{corrected} ({probability(found.t_p_two_sided_holm)})"
    doubts = []
    if not wilcoxon_rejects(found):
        reach = "does not reach" if wilcoxon_can_reject(found, comparisons) else f"of {found.runs} runs cannot reach"
        doubts.append(f"Wilcoxon's test {reach} 5 % ({probability(found.wilcoxon_p_two_sided_holm)})")
    if includes_zero(found.interval):
        doubts.append("the interval reaches 0")
    if doubts:
        text += f", by the t-test; but {' and '.join(doubts)}, so a reviewer may doubt it"
    if is_equivalent(found):
        text += f"; but it is less than the {measure.gap(found.margin or 0)} that would matter"
    if includes_zero(found.two_way):
        text += (
            "; on other test examples the difference may vanish, since the interval over runs and examples includes 0"
        )
    return f"{text}."


def _without_spread(found: Comparison, measure: Measure, outcome: str, corrected: str) -> str:
    """Describe a comparison in which all runs differ by the same amount, so that there is no t-test."""
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
    if outcome != FEW and is_equivalent(found):
        text += f"; it is less than the {measure.gap(found.margin or 0)} that would matter"
    return f"{text}."


def _ranks_differ(found: Comparison, corrected: str) -> str:
    if not wilcoxon_rejects(found):
        return ""
    p = probability(found.wilcoxon_p_two_sided_holm)
    return f", but Wilcoxon's test sees a difference ({p}{corrected}), so the two tests disagree"


def _alone(found: Comparison, measure: Measure, comparisons: int) -> str:
    """Explain an interval that excludes 0 although the question is open."""
    intervals = [each for each in (found.interval, found.two_way) if each is not None and math.isfinite(each[0])]
    excluding = [each for each in intervals if not includes_zero(each)]
    if not excluding:
        return ""
    if comparisons == 1:
        return ", though the bootstrap interval excludes 0"
    low, high = (measure.amount(end) for end in found.simultaneous)
    return (
        f"; the interval is for this comparison alone, and one that holds for all {comparisons} at once includes 0 "
        f"({low} to {high})"
    )


def _lesson(reference: str, kind: str, gains: bool) -> str:
    """State what the control shows; ``gains``: the reference beats plain Bernoulli by more than the margin."""
    if kind == BETTER:
        return f"So the shape of the noise of {name_in_text(reference)} matters here, not its strength alone."
    if kind == WORSE:
        return "So with as much noise, a mask that is on or off does better."
    if kind == EQUIVALENT and gains:
        gain = f"So what {name_in_text(reference)} gains over plain Bernoulli comes, but for less than the margin,"
        return f"{gain} from the strength of its noise and not from its shape."
    if kind == EQUIVALENT:
        return "So with as much noise, its shape makes no difference that matters."
    return "So whether the shape of the noise matters, beyond its strength, is open."
