"""The answer in sentences: is the reference better here, by how much, and would it survive a reviewer?

Errors are in per cent, so gaps are in percentage points. A method counts as better or worse if the two-sided paired
t-test says so after Holm's correction over all methods of the experiment; where Wilcoxon's test says otherwise, the
sentence says that, too, whichever of them sees a difference. "Within the margin" is claimed only if the equivalence
test supports it, with the same correction; otherwise the sentence says which gap the runs would have shown. All these
tests are over runs, on one test set; where the interval over runs and test images says less, a sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...text import plural
from ..results import Results
from ..stats import Comparison, summary
from .caveats import caveats
from .comparisons import compare
from .findings import Finding, make_findings
from .outcomes import ALPHA, BETTER, EQUIVALENT, FEW, OPEN, WORSE, includes_zero, is_equivalent, outcome_of, ranks_say
from .wording import all_of, called, capital, names, ordinal, percent, points, run_count, within

HEADLINE = 84  # characters: two lines of the page, on a phone too
MIXED, NONE = "mixed", "none"


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
        return FEW, [*_few(results, comparisons)]
    doubts = [*_disagreement(comparisons, outcomes), *_other_images(comparisons, groups)]
    rest = [*_rest(comparisons, groups), *doubts]
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
    by = ", by the t-test" if any(ranks_say(comparisons[method]) for method in groups[OPEN]) else ""
    first = f"Undecided: {run_count(runs)} cannot tell {reference} from {others}{by}."
    if len(first) > HEADLINE:
        first = f"Undecided: {run_count(runs)} cannot tell {reference} from {len(groups[OPEN])} other methods{by}."
    return OPEN, [first, *_rest(comparisons, {**groups, OPEN: []}), *doubts]


def _decided(
    reference: str, comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]]
) -> Iterable[str]:
    """Better than which, worse than which, and by how much; names that take too long come in sentences of their own."""
    kinds = [kind for kind in (BETTER, WORSE) if groups[kind]]
    every = sum(map(len, groups.values()))
    told, chance = {kind: names(groups[kind]) for kind in kinds}, ""
    if len(groups[kinds[0]]) == every > 1:
        told[kinds[0]] = "every other method"
        chance = ", beyond chance" if all(map(ranks_say, comparisons.values())) else ", by the t-test"
    gaps = {kind: _gaps(comparisons, groups[kind]) for kind in kinds}

    def sentence(shown: Mapping[str, str]) -> str:
        if len(kinds) == 1:
            return f"{capital(reference)} is {kinds[0]} than {shown[kinds[0]]}, {gaps[kinds[0]]}{chance}."
        parts = [f"{kind} than {shown[kind]} ({gaps[kind]})" for kind in kinds]
        return f"{capital(reference)} is {', but '.join(parts)}."

    if len(sentence(told)) <= HEADLINE:
        yield sentence(told)
        return
    counts = " and ".join(f"{kind} than {len(groups[kind])}" for kind in kinds)
    yield f"{capital(reference)} is {counts} of {every} methods{_briefly(comparisons, groups, kinds)}."
    for kind in kinds:
        yield f"{capital(kind)} than {names(groups[kind])}, {gaps[kind]}."


def _briefly(comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]], kinds: Sequence[str]) -> str:
    """By how much, where the names of methods are left to a sentence of its own."""
    methods = [method for kind in kinds for method in groups[kind]]
    small = [method for method in methods if is_equivalent(comparisons[method])]
    text = f", by {_span(comparisons, methods)}" if len(kinds) == 1 else ""
    if not small:
        return text
    return f"{text}, {'all' if len(small) == len(methods) else len(small)} below the margin"


def _few(results: Results, comparisons: Mapping[str, Comparison]) -> Iterable[str]:
    reference = results.reference
    shared = results.complete_runs()  # means over different runs would not be comparable
    means = {method: summary([runs[run] for run in shared or runs]).mean for method, runs in results.errors().items()}
    place = sorted(means, key=means.__getitem__).index(reference) + 1
    runs = {comparison.runs for comparison in comparisons.values()}
    where = "the lowest mean error" if place == 1 else f"the {ordinal(place)} lowest mean error"
    yield f"Too few runs to say: {run_count(runs)} cannot tell the methods from chance."
    yield f"{capital(called(reference))} has {where} of {len(means)} methods ({percent(means[reference])})."


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
    seen = [method for method in undecided if ranks_say(comparisons[method])]
    if seen:
        yield f"Wilcoxon's test, unlike the t-test, sees a difference from {names(seen)}."


def _other_images(comparisons: Mapping[str, Comparison], groups: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Decisions over runs that the interval over runs and test images does not bear out."""
    decided = [*groups[BETTER], *groups[WORSE]]
    chance = [method for method in decided if includes_zero(comparisons[method].two_way)]
    if chance:
        yield f"On other test images the difference from {names(chance)} may vanish."
    larger = [method for method in groups[EQUIVALENT] if _exceeds_margin(comparisons[method])]
    if larger:
        yield f"On other test images the difference from {names(larger)} may be larger than that."


def _exceeds_margin(comparison: Comparison) -> bool:
    return (
        comparison.two_way is not None
        and comparison.margin is not None
        and max(abs(end) for end in comparison.two_way) > comparison.margin
    )


def _gaps(comparisons: Mapping[str, Comparison], methods: Sequence[str]) -> str:
    text = f"by {_span(comparisons, methods)}"
    small = [method for method in methods if is_equivalent(comparisons[method])]
    if not small:
        return text
    matters = f"less than the {points(comparisons[small[0]].margin or 0)} that matter"
    return f"{text}, {matters}" if len(small) == len(methods) else f"{text} (for {names(small)} {matters})"


def _span(comparisons: Mapping[str, Comparison], methods: Sequence[str]) -> str:
    gaps = sorted(abs(comparisons[method].difference) for method in methods)
    low, high = points(gaps[0]), points(gaps[-1])
    return f"{low} points" if low == high else f"{low} to {high} points"
