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
from .metric_format import run_count
from .rendering import paragraph, texts

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
        self.family, self.enough = family_size(comparisons.values()), ENOUGH_RUNS
        self.corrected = f" after correction for {self.family} comparisons" if self.family > 1 else ""
        self.margin = next((each.margin for each in comparisons.values()), None)
        self.reference = name_in_text(results.reference, longest=_NAME)

    @property
    def runs(self) -> str:
        return run_count({comparison.runs for comparison in self.comparisons.values()})

    def below_margin(self, methods: Iterable[str]) -> list[str]:
        return [method for method in methods if is_equivalent(self.comparisons[method])]

    def unconfirmed(self, methods: Iterable[str]) -> list[str]:
        """Return the methods of which Wilcoxon's test sees no difference."""
        return [method for method in methods if not wilcoxon_rejects(self.comparisons[method])]

    def sizes(self, methods: Iterable[str]) -> list[float]:
        """Return the differences from these methods without their signs, the smallest first."""
        return sorted(abs(self.comparisons[method].difference) for method in methods)

    def can_confirm(self, found: Comparison) -> bool:
        return wilcoxon_can_reject(found, self.family)


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
    outcome, sentences = _sentences(judged)
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


def _number_that_fits(sentences: Sequence[str]) -> int:
    """Return the number of sentences that the headline has room for, at least 1."""
    fitting = (n for n in range(len(sentences), 1, -1) if len(" ".join(sentences[:n])) <= HEADLINE)
    return next(fitting, 1)


def _fitting(*texts: str) -> str:
    """Return the first text that fits the headline, or the last."""
    return next((text for text in texts if len(text) <= HEADLINE), texts[-1])


def _sentences(judged: _Judged) -> tuple[str, list[str]]:
    """Return the outcome and the sentences, the most important first."""
    groups, results = judged.groups, judged.results
    if not judged.comparisons:
        return NONE, [*texts("nothing", results, len(results.final), judged.reference)]
    weaker = texts("weaker", weaker_than_named(results))
    if len(groups[FEW]) == len(judged.outcomes):
        return FEW, [*_few(judged), *weaker]
    if decided := [kind for kind in (BETTER, WORSE) if groups[kind]]:
        outcome = decided[0] if len(decided) == 1 else MIXED
        first, rest = _decided(judged, decided), [EQUIVALENT, OPEN, FEW]
    elif groups[OPEN]:
        outcome, first, rest = OPEN, [_fitting(*texts("undecided", judged))], [EQUIVALENT, FEW]
    else:
        outcome, first, rest = EQUIVALENT, [_fitting(*texts("equivalent", judged))], [FEW]
    return outcome, [*first, *texts("rest", judged, rest), *weaker, *_doubts(judged)]


def _decided(judged: _Judged, kinds: Sequence[str]) -> list[str]:
    """Return what the reference is better and worse than, and by how much; long lists get sentences of their own."""
    counts = [f"{kind} than {len(judged.groups[kind])}" for kind in kinds]
    wordings = texts("decided", judged, kinds, counts)
    first = _fitting(*wordings)
    return [first] if first in wordings[:2] else [first, *texts("decided_in_full", judged, kinds)]


def _few(judged: _Judged) -> tuple[str, ...]:
    results, sign = judged.results, judged.measure.sign
    shared = results.complete_runs()  # means over different runs would not be comparable
    means = {method: summary([runs[run] for run in shared or runs]).mean for method, runs in results.errors().items()}
    ours = means[results.reference]
    tied = [method for method, mean in means.items() if math.isclose(mean, ours, rel_tol=RESOLUTION)]
    place = 1 + sum(sign * mean < sign * ours for method, mean in means.items() if method not in tied)
    return texts("few", judged, len(means), place, len(tied) > 1, ours)


def _doubts(judged: _Judged) -> tuple[str, ...]:
    """Return decisions that Wilcoxon's test or the interval over runs and test examples does not support."""
    groups, comparisons = judged.groups, judged.comparisons
    decided = [method for method, outcome in judged.outcomes.items() if outcome in (BETTER, WORSE)]
    doubted = judged.unconfirmed(decided)
    undecided = [method for method, outcome in judged.outcomes.items() if outcome in (OPEN, EQUIVALENT)]
    reach = {method: max(map(abs, found.two_way or (0.0,))) for method, found in comparisons.items()}
    return texts(
        "doubts",
        doubted,
        can_confirm=any(judged.can_confirm(comparisons[method]) for method in doubted),
        seen=[method for method in undecided if wilcoxon_rejects(comparisons[method])],
        vanishing=[m for m in groups[BETTER] + groups[WORSE] if includes_zero(comparisons[m].two_way)],
        larger=[method for method in groups[EQUIVALENT] if reach[method] > (judged.margin or math.inf)],
    )


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
    label, results, is_there = "At equal noise", judged.results, control in judged.comparisons
    mismatch = noise_mismatch(results, results.reference, control) if is_there else None
    if mismatch or not is_there:
        return Finding(label, "", paragraph("not_equal_noise", control, mismatch), OPEN)
    found = _finding(judged, label, control)
    lesson = found.outcome
    if lesson == EQUIVALENT and judged.outcomes.get(BERNOULLI) == BETTER:
        gains = abs(judged.comparisons[BERNOULLI].difference) > (judged.margin or 0)
        lesson = "gains" if gains else lesson
    text = f"{found.text} {paragraph('lesson', lesson, results.reference)}"
    return Finding(label, found.gap, text, found.outcome)


def _finding(judged: _Judged, label: str, other: str) -> Finding:
    found, measure = judged.comparisons[other], judged.measure
    gap = f"{measure.gap(abs(found.difference))} {measure.compared(found.difference)}"
    if abs(found.difference) <= RESOLUTION * max(abs(found.reference.mean), abs(found.other.mean)):  # rounding
        gap = "equal"
    return Finding(label, gap, paragraph("finding", judged, other, gap), judged.outcomes[other])
