"""Verdict on a study: headline, details, findings and caveats.

Values and gaps are in the metric's unit; see :mod:`~contdrop.lab.analysis.metric_format`.
A method counts as better or worse if the
two-sided paired t-test says so after Holm's correction over all methods of the experiment; where Wilcoxon's test says
otherwise, the sentence says that, too, whichever of them sees a difference. "Within the margin" is claimed only if the
equivalence test supports it, with the same correction; otherwise the sentence says which gap the runs would have shown.
All these tests are over runs, on one test set; where the interval over runs and test examples says less, a sentence
says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..._text import plural
from ..stats import Comparison, summary
from ..stats.paired import family_size
from ..stats.significance import RESOLUTION
from ..store.results import Results
from ..study.labels import name_in_text
from .caveats import caveats
from .comparisons import (
    BETTER,
    EQUIVALENT,
    FEW,
    OPEN,
    WORSE,
    compare,
    includes_zero,
    is_equivalent,
    outcome_of,
    weaker_than_named,
    wilcoxon_can_reject,
    wilcoxon_rejects,
)
from .findings import Finding, make_findings
from .metric_format import Measure
from .phrases import all_of, capital, mean_of, names, ordinal, run_count

HEADLINE = 84  # characters: two lines of the page, on a phone too
_NAME = 26  # characters of the reference in a headline
MIXED, NONE = "mixed", "none"


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
    comparisons = compare(results, margin) if comparisons is None else comparisons
    outcomes = {method: outcome_of(comparison) for method, comparison in comparisons.items()}
    details: Sequence[str] = ()
    if comparisons:
        whole, sentences = _headline(results, comparisons, outcomes)
        headline, details = _two_lines(sentences)
        findings = tuple(make_findings(results, comparisons, outcomes))
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


# ---- the headline


def _nothing(results: Results) -> str:
    reference, errors = results.reference, results.errors()
    name = name_in_text(reference, longest=_NAME)
    planned, failed = len(results.final), sum(job.status == "failed" for job in results.final)
    if not planned:
        return "No verdict yet: parameters are still being selected, and no final run is planned."
    if not errors and failed == planned:
        return f"No verdict: {all_of(planned, 'run')} failed."
    if not errors:
        return f"No verdict yet: none of {plural(planned, 'planned run')} has finished."
    if list(errors) == [reference]:
        return f"No verdict: only {name} has finished runs."
    if reference in errors:
        return f"No verdict yet: {name} shares no finished run with any other."
    return f"No verdict: {name}, the reference, has no finished run."


def _two_lines(sentences: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Split the sentences into a headline, with as many as fit, and the rest."""
    for number in range(len(sentences), 1, -1):
        if len(" ".join(sentences[:number])) <= HEADLINE:
            return " ".join(sentences[:number]), sentences[number:]
    return sentences[0], sentences[1:]


def _fitting(*texts: str) -> str:
    """Return the first text that fits the headline, or the last."""
    return next((text for text in texts if len(text) <= HEADLINE), texts[-1])


def _headline(
    results: Results, comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return the outcome and the sentences, the most important first."""
    reference, measure = name_in_text(results.reference, longest=_NAME), results.measure
    groups: dict[str, list[str]] = {kind: [] for kind in (BETTER, WORSE, EQUIVALENT, OPEN, FEW)}
    for method, kind in outcomes.items():
        groups[kind].append(method)
    if len(groups[FEW]) == len(outcomes):
        return FEW, [*_few(results, comparisons), *_strengths(results)]
    doubts = [*_strengths(results), *_disagreement(comparisons, outcomes), *_other_examples(comparisons, groups)]
    rest = [*_rest(comparisons, groups, measure), *doubts]
    decided = [*groups[BETTER], *groups[WORSE]]
    if decided:
        whole = MIXED if groups[BETTER] and groups[WORSE] else BETTER if groups[BETTER] else WORSE
        return whole, [*_decided(reference, comparisons, groups, measure), *rest]
    if not groups[OPEN]:
        margin = next(iter(comparisons.values())).margin
        others = "the other method" if len(outcomes) == 1 else "every other method"
        others = names(groups[EQUIVALENT]) if groups[FEW] else others
        within = (
            f"{capital(reference)} is within {what} of {others}." for what in (measure.within(margin), "the margin")
        )
        return EQUIVALENT, [_fitting(*within), *rest[1:]]
    runs = run_count({comparison.runs for comparison in comparisons.values()})
    others = names(groups[OPEN]) if groups[EQUIVALENT] or groups[FEW] or len(outcomes) == 1 else "any other method"
    by = ", by the t-test" if any(wilcoxon_rejects(comparisons[method]) for method in groups[OPEN]) else ""
    number = plural(len(groups[OPEN]), "other method")
    first = _fitting(
        *(f"Undecided: {runs} cannot tell {reference} from {which}{by}." for which in (others, number)),
        f"Undecided{by.removeprefix(',')}: {reference} against {number} in {runs}.",
    )
    return OPEN, [first, *_rest(comparisons, {**groups, OPEN: []}, measure), *doubts]


def _decided(
    reference: str, comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]], measure: Measure
) -> Iterable[str]:
    """Yield what the reference is better and worse than, and by how much; long lists get sentences of their own."""
    kinds = [kind for kind in (BETTER, WORSE) if groups[kind]]
    every = sum(map(len, groups.values()))
    told, chance = {kind: names(groups[kind]) for kind in kinds}, ""
    if len(groups[kinds[0]]) == every > 1:
        told[kinds[0]] = "every other method"
        chance = ", beyond chance" if all(map(wilcoxon_rejects, comparisons.values())) else ", by the t-test"
    gaps = {kind: _gaps(comparisons, groups[kind], measure) for kind in kinds}
    short = {kind: "".join(_briefly(comparisons, groups, [kind], measure)).removeprefix(", ") for kind in kinds}

    def sentence(gaps: Mapping[str, str]) -> str:
        if len(kinds) == 1:
            return f"{capital(reference)} is {kinds[0]} than {told[kinds[0]]}, {gaps[kinds[0]]}{chance}."
        parts = [f"{kind} than {told[kind]} ({gaps[kind]})" for kind in kinds]
        return f"{capital(reference)} is {', but '.join(parts)}."

    whole = _fitting(sentence(gaps), sentence(short))
    if len(whole) <= HEADLINE:
        yield whole
        return
    counts = [f"{kind} than {len(groups[kind])}" for kind in kinds]
    gap, small = _briefly(comparisons, groups, kinds, measure)
    yield _fitting(
        *(f"{capital(reference)} is {' and '.join(counts)} of {every} methods{more}{small}." for more in (gap, "")),
        f"{capital(reference)}: {', '.join(counts)} of {every}{small}.",
    )
    for kind in kinds:
        yield f"{capital(kind)} than {names(groups[kind])}, {gaps[kind]}."


def _briefly(
    comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]], kinds: Sequence[str], measure: Measure
) -> tuple[str, str]:
    """Return the size of the gaps, and which are below the margin, without the names of methods."""
    methods = [method for kind in kinds for method in groups[kind]]
    small = [method for method in methods if is_equivalent(comparisons[method])]
    text = f", by {_span(comparisons, methods, measure)}" if len(kinds) == 1 else ""
    number = f"{len(small)} " if len(small) < len(methods) else "all " if len(small) > 1 else ""
    return text, f", {number}below the margin" if small else ""


def _few(results: Results, comparisons: Mapping[str, Comparison]) -> Iterable[str]:
    reference = results.reference
    shared = results.complete_runs()  # means over different runs would not be comparable
    means = {method: summary([runs[run] for run in shared or runs]).mean for method, runs in results.errors().items()}
    measure, ours = results.measure, means[reference]
    tied = [method for method, mean in means.items() if math.isclose(mean, ours, rel_tol=RESOLUTION)]
    place = 1 + sum(measure.sign * mean < measure.sign * ours for m, mean in means.items() if m not in tied)
    runs = {comparison.runs for comparison in comparisons.values()}
    has = "has" if len(tied) == 1 else "shares"
    rank = measure.best if place == 1 else f"{ordinal(place)} {measure.best}"
    yield f"Too few runs to say: {run_count(runs)} cannot tell the methods from chance."
    value = measure.value(ours)
    name = capital(name_in_text(reference))
    yield f"{name} {has} the {rank} {mean_of(measure.name)} of {len(means)} methods ({value})."


def _rest(comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]], measure: Measure) -> list[str]:
    parts = []
    if groups[EQUIVALENT]:
        margin = comparisons[groups[EQUIVALENT][0]].margin
        parts.append(f"Within {measure.within(margin)} of {names(groups[EQUIVALENT])}.")
    if groups[OPEN]:
        parts.append(f"Not told apart from {names(groups[OPEN])}.")
    if groups[FEW]:
        parts.append(f"Too few runs to be compared with {names(groups[FEW])}.")
    return parts


def _strengths(results: Results) -> Iterable[str]:
    """Yield the methods whose name promises a strength that the law cannot reach."""
    for method, strength, wanted in weaker_than_named(results):
        yield (
            f"{capital(name_in_text(method))} is weaker than its name says: no such law is as strong as original "
            f"dropout (noise {strength:.3f} instead of {wanted:.3f})."
        )


def _disagreement(comparisons: Mapping[str, Comparison], outcomes: Mapping[str, str]) -> Iterable[str]:
    """Yield the methods on which Wilcoxon's test and the t-test disagree."""
    decided = [method for method, kind in outcomes.items() if kind in (BETTER, WORSE)]
    if doubted := [method for method in decided if not wilcoxon_rejects(comparisons[method])]:
        can = any(wilcoxon_can_reject(comparisons[method], family_size(comparisons.values())) for method in doubted)
        few = "does not confirm" if can else "needs more runs to confirm"
        yield f"Wilcoxon's test {few} the difference from {names(doubted)}."
    undecided = [method for method, kind in outcomes.items() if kind in (OPEN, EQUIVALENT)]
    if seen := [method for method in undecided if wilcoxon_rejects(comparisons[method])]:
        yield f"Wilcoxon's test, unlike the t-test, sees a difference from {names(seen)}."


def _other_examples(comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Yield decisions that the interval over runs and test examples does not support."""
    decided = [*groups[BETTER], *groups[WORSE]]
    chance = [method for method in decided if includes_zero(comparisons[method].two_way)]
    if chance:
        yield f"On other test examples the difference from {names(chance)} may vanish."
    larger = [
        method
        for method in groups[EQUIVALENT]
        if max(map(abs, comparisons[method].two_way or (0.0,))) > (comparisons[method].margin or math.inf)
    ]
    if larger:
        yield f"On other test examples the difference from {names(larger)} may be larger than that."


def _gaps(comparisons: Mapping[str, Comparison], methods: Sequence[str], measure: Measure) -> str:
    text = f"by {_span(comparisons, methods, measure)}"
    small = [method for method in methods if is_equivalent(comparisons[method])]
    if not small:
        return text
    matters = f"less than the {measure.amount(comparisons[small[0]].margin or 0)} that matter"
    return f"{text}, {matters}" if len(small) == len(methods) else f"{text} (for {names(small)} {matters})"


def _span(comparisons: Mapping[str, Comparison], methods: Sequence[str], measure: Measure) -> str:
    gaps = sorted(abs(comparisons[method].difference) for method in methods)
    low, high = measure.amount(gaps[0]), measure.gap(gaps[-1])
    return high if low == measure.amount(gaps[-1]) else f"{low} to {high}"
