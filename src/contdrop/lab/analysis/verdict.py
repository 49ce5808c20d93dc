"""Verdict on a study: headline, details, findings and caveats.

Values and gaps are in the metric's unit; see :mod:`~contdrop.lab.analysis.metric_format`.
A method counts as better or worse if the two-sided paired t-test says so after Holm's correction over all methods of
the experiment; where Wilcoxon's test says otherwise, the sentence says that, too, whichever of them sees a difference.
"Within the margin" is claimed only if the equivalence test supports it, with the same correction; otherwise the
sentence says which gap the runs would have shown. All these tests are over runs, on one test set; where the interval
over runs and test examples says less, a sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..._text import plural
from ..stats import Comparison, summary
from ..stats.paired import ENOUGH_RUNS, family_size
from ..stats.significance import RESOLUTION
from ..store.results import Results
from ..study.labels import name_in_text
from .caveats import caveats
from .comparisons import (
    BERNOULLI,
    BETTER,
    EQUIVALENT,
    FEW,
    OPEN,
    OUTCOME_WORDS,
    WORSE,
    compare,
    control_of,
    includes_zero,
    is_equivalent,
    noise_mismatch,
    outcome_of,
    weaker_than_named,
    wilcoxon_can_reject,
    wilcoxon_rejects,
)
from .metric_format import all_of, capital, mean_of, names, ordinal, probability, run_count, tally

HEADLINE = 84  # characters: two lines of the page, on a phone too
_NAME = 26  # characters of the reference in a headline
MIXED, NONE = "mixed", "none"


@dataclass(frozen=True)
class Finding:
    """The reference against one method; ``gap`` is empty if there is nothing to report."""

    label: str
    gap: str
    text: str
    outcome: str


@dataclass(frozen=True)
class Verdict:
    """The conclusions from one experiment.

    Attributes:
        outcome: For the reference: one of the outcomes of a finding, "mixed", or "none" if there is nothing to compare.
        headline: The answer in a sentence of at most ``HEADLINE`` characters.
        details: What the headline has no room for.
        caveats: Limitations.
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

    def __str__(self) -> str:
        return self.headline


@dataclass(frozen=True)
class Analysis:
    """The comparisons of an experiment's results and the verdict on them, computed once for every output.

    Attributes:
        results: The results.
        comparisons: The reference against every other method that shares finished runs with it.
        verdict: The answer in sentences.
        margin: The smallest difference that matters, if it was chosen after the fact.
    """

    results: Results
    comparisons: Mapping[str, Comparison]
    verdict: Verdict
    margin: float | None = None


class _Judged:
    """Comparisons of an experiment, grouped by their outcomes."""

    def __init__(self, results: Results, comparisons: Mapping[str, Comparison]) -> None:
        self.results, self.comparisons, self.measure = results, comparisons, results.measure
        self.outcomes = {method: outcome_of(comparison) for method, comparison in comparisons.items()}
        self.groups = {kind: [m for m, outcome in self.outcomes.items() if outcome == kind] for kind in OUTCOME_WORDS}
        self.family = family_size(comparisons.values())
        self.corrected = f" after correction for {self.family} comparisons" if self.family > 1 else ""
        self.margin = next((each.margin for each in comparisons.values()), None)

    @property
    def reference(self) -> str:
        return name_in_text(self.results.reference, longest=_NAME)

    @property
    def runs(self) -> str:
        return run_count({comparison.runs for comparison in self.comparisons.values()})

    def below_margin(self, methods: Iterable[str]) -> list[str]:
        return [method for method in methods if is_equivalent(self.comparisons[method])]

    def span(self, methods: Iterable[str]) -> str:
        """Format the smallest and largest difference from these methods."""
        gaps = sorted(abs(self.comparisons[method].difference) for method in methods)
        low, high = self.measure.amount(gaps[0]), self.measure.gap(gaps[-1])
        return f"by {high if low == self.measure.amount(gaps[-1]) else f'{low} to {high}'}"

    def gaps(self, methods: Sequence[str]) -> str:
        """Format the differences from these methods, and name those that do not matter."""
        span, small = self.span(methods), self.below_margin(methods)
        if not small:
            return span
        matters = f"less than the {self.measure.amount(self.margin or 0)} that matter"
        return f"{span}, {matters}" if len(small) == len(methods) else f"{span} (for {names(small)} {matters})"

    def below(self, methods: Sequence[str]) -> str:
        """Count the differences below the margin, without the names of methods."""
        small = len(self.below_margin(methods))
        if not small:
            return ""
        if small < len(methods):
            return f", {small} below the margin"
        return f", {'all ' if small > 1 else ''}below the margin"


def analyze(results: Results, margin: float | None = None) -> Analysis:
    """Return the comparisons and the verdict; ``margin`` is one chosen after the fact, if any."""
    comparisons = compare(results, margin)
    return Analysis(results, comparisons, verdict(results, margin, comparisons), margin)


def verdict(
    results: Results, margin: float | None = None, comparisons: Mapping[str, Comparison] | None = None
) -> Verdict:
    """Return the verdict on one experiment.

    The margin is the one chosen after the fact, if any; the comparisons those of these results with this margin, if
    they have been made already.
    """
    judged = _Judged(results, compare(results, margin) if comparisons is None else comparisons)
    outcome, sentences = _sentences(judged) if judged.comparisons else (NONE, [_nothing(results)])
    shown = _number_that_fits(sentences)
    return Verdict(
        results.protocol.experiment,
        results.protocol.preset,
        outcome,
        " ".join(sentences[:shown]),
        tuple(sentences[shown:]),
        tuple(_findings(judged)) if judged.comparisons else (),
        tuple(caveats(results, judged.comparisons, margin)),
        judged.outcomes,
    )


# ---- the headline


def _nothing(results: Results) -> str:
    reference, errors = results.reference, results.errors()
    name, planned = name_in_text(reference, longest=_NAME), len(results.final)
    have_failed = all(job.status == "failed" for job in results.final)
    texts = {
        "No verdict yet: parameters are still being selected, and no final run is planned.": not planned,
        f"No verdict: {all_of(planned, 'run')} failed.": not errors and have_failed,
        f"No verdict yet: none of {plural(planned, 'planned run')} has finished.": not errors,
        f"No verdict: only {name} has finished runs.": list(errors) == [reference],
        f"No verdict yet: {name} shares no finished run with any other.": reference in errors,
        f"No verdict: {name}, the reference, has no finished run.": True,
    }
    return next(text for text, applies in texts.items() if applies)


def _number_that_fits(sentences: Sequence[str]) -> int:
    """Return the number of sentences that the headline has room for, at least 1."""
    fitting = (n for n in range(len(sentences), 1, -1) if len(" ".join(sentences[:n])) <= HEADLINE)
    return next(fitting, 1)


def _fitting(*texts: str) -> str:
    """Return the first text that fits the headline, or the last."""
    return next((text for text in texts if len(text) <= HEADLINE), texts[-1])


def _sentences(judged: _Judged) -> tuple[str, list[str]]:
    """Return the outcome and the sentences, the most important first."""
    groups, strengths = judged.groups, list(_strengths(judged.results))
    decided = [kind for kind in (BETTER, WORSE) if groups[kind]]
    if len(groups[FEW]) == len(judged.outcomes):
        return FEW, [*_few(judged), *strengths]
    if decided:
        outcome = decided[0] if len(decided) == 1 else MIXED
        first, rest = list(_decided(judged, decided)), [EQUIVALENT, OPEN, FEW]
    elif groups[OPEN]:
        outcome, first, rest = OPEN, [_undecided(judged)], [EQUIVALENT, FEW]
    else:
        outcome, first, rest = EQUIVALENT, [_equivalent(judged)], [FEW]
    within = judged.measure.within(judged.margin)
    others = [_REST[kind].format(within=within, names=names(groups[kind])) for kind in rest if groups[kind]]
    return outcome, [*first, *others, *strengths, *_disagreement(judged), *_other_examples(judged)]


_REST = {
    EQUIVALENT: "Within {within} of {names}.",
    OPEN: "Not told apart from {names}.",
    FEW: "Too few runs to be compared with {names}.",
}


def _equivalent(judged: _Judged) -> str:
    others = "the other method" if len(judged.outcomes) == 1 else "every other method"
    others = names(judged.groups[EQUIVALENT]) if judged.groups[FEW] else others
    margins = (judged.measure.within(judged.margin), "the margin")
    return _fitting(*(f"{capital(judged.reference)} is within {margin} of {others}." for margin in margins))


def _undecided(judged: _Judged) -> str:
    methods, reference, runs = judged.groups[OPEN], judged.reference, judged.runs
    is_every = len(methods) == len(judged.outcomes) > 1
    by = ", by the t-test" if any(wilcoxon_rejects(judged.comparisons[method]) for method in methods) else ""
    number = plural(len(methods), "other method")
    whom = ("any other method" if is_every else names(methods), number)
    return _fitting(
        *(f"Undecided: {runs} cannot tell {reference} from {others}{by}." for others in whom),
        f"Undecided{by.removeprefix(',')}: {reference} against {number} in {runs}.",
    )


def _decided(judged: _Judged, kinds: Sequence[str]) -> Iterable[str]:
    """Yield what the reference is better and worse than, and by how much; long lists get sentences of their own."""
    groups, reference, every = judged.groups, capital(judged.reference), len(judged.outcomes)
    named, chance = {kind: names(groups[kind]) for kind in kinds}, ""
    if len(groups[kinds[0]]) == every > 1:
        named[kinds[0]] = "every other method"
        chance = ", beyond chance" if all(map(wilcoxon_rejects, judged.comparisons.values())) else ", by the t-test"
    gaps = {kind: judged.gaps(groups[kind]) for kind in kinds}
    brief = {kind: judged.span(groups[kind]) + judged.below(groups[kind]) for kind in kinds}

    def sentence(gaps: Mapping[str, str]) -> str:
        if len(kinds) == 1:
            return f"{reference} is {kinds[0]} than {named[kinds[0]]}, {gaps[kinds[0]]}{chance}."
        return f"{reference} is {', but '.join(f'{kind} than {named[kind]} ({gaps[kind]})' for kind in kinds)}."

    whole = _fitting(sentence(gaps), sentence(brief))
    if len(whole) <= HEADLINE:
        yield whole
        return
    counts = [f"{kind} than {len(groups[kind])}" for kind in kinds]
    span = f", {judged.span(groups[kinds[0]])}" if len(kinds) == 1 else ""
    small = judged.below([method for kind in kinds for method in groups[kind]])
    yield _fitting(
        *(f"{reference} is {' and '.join(counts)} of {every} methods{gap}{small}." for gap in (span, "")),
        f"{reference}: {', '.join(counts)} of {every}{small}.",
    )
    for kind in kinds:
        yield f"{capital(kind)} than {names(groups[kind])}, {gaps[kind]}."


def _few(judged: _Judged) -> Iterable[str]:
    results, measure = judged.results, judged.measure
    shared = results.complete_runs()  # means over different runs would not be comparable
    means = {method: summary([runs[run] for run in shared or runs]).mean for method, runs in results.errors().items()}
    ours = means[results.reference]
    tied = [method for method, mean in means.items() if math.isclose(mean, ours, rel_tol=RESOLUTION)]
    place = 1 + sum(measure.sign * mean < measure.sign * ours for m, mean in means.items() if m not in tied)
    has = "has" if len(tied) == 1 else "shares"
    rank = measure.best if place == 1 else f"{ordinal(place)} {measure.best}"
    name = capital(name_in_text(results.reference))
    yield f"Too few runs to say: {judged.runs} cannot tell the methods from chance."
    yield f"{name} {has} the {rank} {mean_of(measure.name)} of {len(means)} methods ({measure.value(ours)})."


def _strengths(results: Results) -> Iterable[str]:
    """Yield the methods whose name promises a strength that the law cannot reach."""
    for method, strength, wanted in weaker_than_named(results):
        yield (
            f"{capital(name_in_text(method))} is weaker than its name says: no such law is as strong as original "
            f"dropout (noise {strength:.3f} instead of {wanted:.3f})."
        )


def _disagreement(judged: _Judged) -> Iterable[str]:
    """Yield the methods on which Wilcoxon's test and the t-test disagree."""
    rejected = {method for method, found in judged.comparisons.items() if wilcoxon_rejects(found)}
    decided = [method for method, kind in judged.outcomes.items() if kind in (BETTER, WORSE)]
    if doubted := [method for method in decided if method not in rejected]:
        can = any(wilcoxon_can_reject(judged.comparisons[method], judged.family) for method in doubted)
        few = "does not confirm" if can else "needs more runs to confirm"
        yield f"Wilcoxon's test {few} the difference from {names(doubted)}."
    undecided = [method for method, kind in judged.outcomes.items() if kind in (OPEN, EQUIVALENT)]
    if seen := [method for method in undecided if method in rejected]:
        yield f"Wilcoxon's test, unlike the t-test, sees a difference from {names(seen)}."


def _other_examples(judged: _Judged) -> Iterable[str]:
    """Yield decisions that the interval over runs and test examples does not support."""
    intervals = {method: found.two_way for method, found in judged.comparisons.items()}
    decided = [*judged.groups[BETTER], *judged.groups[WORSE]]
    if vanishing := [method for method in decided if includes_zero(intervals[method])]:
        yield f"On other test examples the difference from {names(vanishing)} may vanish."
    reach = {method: max(map(abs, interval or (0.0,))) for method, interval in intervals.items()}
    if larger := [method for method in judged.groups[EQUIVALENT] if reach[method] > (judged.margin or math.inf)]:
        yield f"On other test examples the difference from {names(larger)} may be larger than that."


# ---- findings: the reference against the most relevant other methods, in a sentence or two each


def _findings(judged: _Judged) -> Iterable[Finding]:
    """Yield the findings against Bernoulli dropout, the closest rival, and the control of equal noise."""
    comparisons, sign = judged.comparisons, judged.measure.sign
    control = control_of(judged.results.reference)
    rivals = [method for method in comparisons if method != control]
    if BERNOULLI in comparisons:
        yield _finding(judged, "Against Bernoulli", BERNOULLI)
    if rivals:
        best = max(rivals, key=lambda m: (comparisons[m].runs >= ENOUGH_RUNS, sign * comparisons[m].difference))
        if best != BERNOULLI:
            ahead = comparisons[best].is_better or comparisons[best].difference == 0
            yield _finding(judged, "The closest rival" if ahead else "The best of the others", best)
    if control:
        yield _at_equal_noise(judged, control)


def _at_equal_noise(judged: _Judged, control: str) -> Finding:
    label, reference = "At equal noise", judged.results.reference
    if control not in judged.comparisons:
        refusal: str | None = (
            f"{name_in_text(control)}, the Bernoulli law with as much noise, has no finished run here, so a gap may "
            "come from the strength of the noise alone"
        )
    else:
        refusal = noise_mismatch(judged.results, reference, control)
    if refusal:
        return Finding(label, "", f"Inconclusive: {refusal}.", OPEN)
    found = _finding(judged, label, control)
    lesson = found.outcome
    if lesson == EQUIVALENT and judged.outcomes.get(BERNOULLI) == BETTER:
        gains = abs(judged.comparisons[BERNOULLI].difference) > (judged.margin or 0)
        lesson = "gains" if gains else lesson
    text = _LESSONS.get(lesson, _LESSONS[OPEN]).format(name=name_in_text(reference))
    return Finding(label, found.gap, f"{found.text} {text}", found.outcome)


# What the control of equal noise shows; "gains": the reference beats plain Bernoulli by more than the margin.
_LESSONS = {
    BETTER: "So the shape of the noise of {name} matters here, not its strength alone.",
    WORSE: "So with as much noise, a mask that is on or off does better.",
    EQUIVALENT: "So with as much noise, its shape makes no difference that matters.",
    "gains": "So what {name} gains over plain Bernoulli comes, but for less than the margin, from the strength of its "
    "noise and not from its shape.",
    OPEN: "So whether the shape of the noise matters, beyond its strength, is open.",
}


def _finding(judged: _Judged, label: str, other: str) -> Finding:
    found, measure, outcome = judged.comparisons[other], judged.measure, judged.outcomes[other]
    gap, (low, high) = abs(found.difference), found.interval
    first, second = capital(name_in_text(judged.results.reference)), name_in_text(other)
    ours, theirs = (measure.value(each.mean, each.sd) for each in (found.reference, found.other))
    if gap <= RESOLUTION * max(abs(found.reference.mean), abs(found.other.mean)):  # rounding
        both = f"both err {ours}" if measure.is_error else f"both have a test {measure.name} of {ours}"
        text, summed = f"{first} and {second} {both}", "equal"
    else:
        summed = f"{measure.gap(gap)} {measure.compared(found.difference)}"
        text = f"{measure.states(first, found.reference.mean, found.reference.sd)}, {second} {theirs}: {summed}"
    if math.isfinite(low):
        sure, span = f"{found.confidence:.0%}".replace("%", " %"), measure.interval(low, high)
        if found.two_way is not None:
            span += f" over runs, {measure.interval(*found.two_way)} over runs and test examples"
        text += f" ({sure} interval of the difference {span})"
    text += f", {tally(found.wins, found.ties, found.losses)}"
    return Finding(label, summed, f"{text}. {_evidence(judged, found, outcome)}.", outcome)


def _evidence(judged: _Judged, found: Comparison, outcome: str) -> str:
    measure, corrected = judged.measure, judged.corrected
    if found.runs == 1:
        return "A single run allows no test"
    if found.sd == 0:
        return _without_spread(judged, found, outcome)
    if outcome in (BETTER, WORSE):
        return _difference(judged, found)
    if outcome == EQUIVALENT:
        return (
            f"No difference that matters: the equivalence test puts it within {measure.within(found.margin)} "
            f"({probability(found.equivalence_p_holm or 0)}{corrected}){_ranks_differ(judged, found)}"
        )
    seen = (
        f": {plural(found.runs, 'such run')} could only have detected a gap of "
        f"{measure.gap(found.minimum_detectable)} or more (with 80 % power{corrected})"
    )
    if abs(found.difference) >= found.minimum_detectable or wilcoxon_rejects(found):
        seen = ""  # the gap itself says otherwise, or another test does
    if outcome == FEW:
        return f"Fewer than {ENOUGH_RUNS} runs, so a test means little{seen}"
    text = f"The t-test leaves it open ({probability(found.t_p_two_sided_holm)}{corrected})"
    return f"{text}{_ranks_differ(judged, found) or _alone(judged, found)}{seen}"


def _difference(judged: _Judged, found: Comparison) -> str:
    text = f"That is beyond chance{judged.corrected} ({probability(found.t_p_two_sided_holm)})"
    doubts = []
    if not wilcoxon_rejects(found):
        can = wilcoxon_can_reject(found, judged.family)
        reach = "does not reach" if can else f"of {found.runs} runs cannot reach"
        doubts.append(f"Wilcoxon's test {reach} 5 % ({probability(found.wilcoxon_p_two_sided_holm)})")
    if includes_zero(found.interval):
        doubts.append("the interval reaches 0")
    if doubts:
        text += f", by the t-test; but {' and '.join(doubts)}, so a reviewer may doubt it"
    if is_equivalent(found):
        text += f"; but it is less than the {judged.measure.gap(found.margin or 0)} that would matter"
    if includes_zero(found.two_way):
        text += (
            "; on other test examples the difference may vanish, since the interval over runs and examples includes 0"
        )
    return text


def _without_spread(judged: _Judged, found: Comparison, outcome: str) -> str:
    """Describe a comparison in which all runs differ by the same amount, so that there is no t-test."""
    if found.difference == 0:
        return "There is no difference to test"
    text = f"The difference is the same in all {found.runs} runs, so there is no t-test"
    if outcome == FEW:
        return f"{text}, and fewer than {ENOUGH_RUNS} runs are too few for Wilcoxon's"
    p = probability(found.wilcoxon_p_two_sided_holm)
    if outcome in (BETTER, WORSE):
        text += f"; that is beyond chance{judged.corrected} by Wilcoxon's test alone ({p})"
    else:
        text += f"; Wilcoxon's test leaves it open ({p}{judged.corrected})"
    small = f"; it is less than the {judged.measure.gap(found.margin or 0)} that would matter"
    return text + small * is_equivalent(found)


def _ranks_differ(judged: _Judged, found: Comparison) -> str:
    if not wilcoxon_rejects(found):
        return ""
    p = probability(found.wilcoxon_p_two_sided_holm)
    return f", but Wilcoxon's test sees a difference ({p}{judged.corrected}), so the two tests disagree"


def _alone(judged: _Judged, found: Comparison) -> str:
    """Explain an interval that excludes 0 although the question is open."""
    if all(includes_zero(each) for each in (found.interval, found.two_way) if each is not None):
        return ""
    if judged.family == 1:
        return ", though the bootstrap interval excludes 0"
    return (
        f"; the interval is for this comparison alone, and one that holds for all {judged.family} at once includes 0 "
        f"({judged.measure.interval(*found.simultaneous)})"
    )
