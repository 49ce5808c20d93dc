"""Verdicts on the paper's claims, from archived runs and checks of equations, by the rules of results/PROTOCOL.md."""

from __future__ import annotations

import math
import pathlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..._text import plural
from ...errors import UserError
from ...lab import stats
from ...lab.analysis.comparisons import without_limits
from ...lab.analysis.margin import planned_margin
from ...lab.store import imports
from ...lab.store.results import Results, collect_all
from ...lab.store.schema import FAILED, Epoch, JobRecord
from ...lab.store.writer import Store
from . import claims
from .claims import EXPLORATORY, PLANNED, Claim, Contrast

ENDING = ".jsonl.gz"


@dataclass(frozen=True)
class Runs:
    """The finished runs of one study.

    Attributes:
        study: Its name.
        jobs: Those that finished, of the runs that the protocol planned.
        curves: The epochs of each job, by its id.
        margin: The smallest difference in error that matters, as the study fixed it.
        failed: How many jobs failed.
        lost: Method and run of those among them that the protocol planned, which nothing stands in for.
    """

    study: str
    jobs: tuple[JobRecord, ...]
    curves: Mapping[int, list[Epoch]]
    margin: float | None
    failed: int = 0
    lost: tuple[tuple[str, int], ...] = ()

    def values(self, method: str, metric: str) -> dict[int, float]:
        """Return the values of a metric by run; "test_error@5" is the test error after five epochs."""
        name, _, epoch = metric.partition("@")
        found: dict[int, float] = {}
        for job in self.jobs:
            value = job.results.get(name)
            if epoch:
                curve = self.curves.get(job.id, [])
                value = next((each.test_error for each in curve if each.epoch == int(epoch)), None)
            if job.method == method and value is not None:
                found[job.run] = value
        return found


def gather(directory: pathlib.Path) -> dict[str, Runs]:
    """Return the runs of every study with an archive in a directory; runs of other sizes than planned are left out."""
    if not directory.is_dir():
        raise UserError(f"--results: expected a directory with archives (*{ENDING}); there is no {str(directory)!r}")
    archives = sorted(directory.glob(f"*{ENDING}"))
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary, "all.db")
        for archive in archives:
            imports.import_file(archive, path)
        if not archives:
            return {}
        with Store(path) as store:
            return of_results(store, collect_all(store))


def of_results(store: Store, everything: Iterable[Results]) -> dict[str, Runs]:
    """Return the runs of every planned study among the results of a store.

    Runs added later than those of the protocol neither decide anything nor replace a failed one.
    """
    found: dict[str, Runs] = {}
    for results in everything:
        name, plan = results.protocol.experiment, claims.PLANNED.get(results.protocol.experiment)
        if plan is None or results.protocol.epochs != plan.epochs:
            continue
        if name in found:
            raise UserError(f"{name} is there twice, with different settings; leave one out")
        jobs = tuple(job for job in results.finished if job.run < plan.runs)
        lost = tuple((job.method, job.run) for job in results.final if job.status == FAILED and job.run < plan.runs)
        curves = store.curves(results.protocol.key)
        found[name] = Runs(name, jobs, curves, planned_margin(results), len(results.failed), lost)
    return found


HOLDS, FAILS, OPEN, OUT = "holds", "does not hold", "open", "not testable here"
VERDICTS = (HOLDS, FAILS, OPEN, OUT)
LEVEL = 0.05
_SAME = 1e-6  # how far ratios of covariance to variance may differ and be called equal


@dataclass(frozen=True)
class ContrastResult:
    """Result of one comparison.

    Attributes:
        test: Which.
        verdict: On this comparison alone.
        runs: Paired ones that there are.
        planned: That the protocol has.
        family: Over how many comparisons p-values and intervals are corrected.
        comparison: The figures, first minus second; None without runs.
        needed: Runs that would find a difference of the margin with a power of 80 %; None if that cannot be said.
        note: What to add.
        failed: Planned runs in which one of the two methods failed.
    """

    test: Contrast
    verdict: str
    runs: int
    planned: int
    family: int
    comparison: stats.Comparison | None = None
    needed: int | None = None
    note: str = ""
    failed: int = 0

    @property
    def text(self) -> str:
        """Return the result in one line."""
        if self.comparison is None:
            return f"{self.test.study}: no runs yet, {self.planned} planned"
        found, metric = self.comparison, self.test.metric.removeprefix("test:")
        (low, high), p, equal = found.simultaneous, found.t_p_two_sided_holm, found.equivalence_p_holm
        line = f"{self.test.study}, {metric}: {self.test.first} minus {self.test.second} {found.difference:+.3g}"
        line += "" if math.isnan(low) else f" [{low:+.3g}, {high:+.3g}]"  # one run has none, nor has one without spread
        line += "" if math.isnan(p) else f", p {p:.2g}"
        line += "" if equal is None or math.isnan(equal) else f", equivalence p {equal:.2g}"
        return f"{line}; {self.runs} of {plural(self.planned, 'run')}{'; ' * bool(self.note)}{self.note}"


@dataclass(frozen=True)
class EquationResult:
    """Result of ``contdrop theory`` for one equation."""

    number: str
    verdict: str
    text: str


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with its verdict and all that it rests on."""

    claim: Claim
    verdict: str
    reason: str
    evidence: tuple[ContrastResult, ...] = ()
    equations: tuple[EquationResult, ...] = ()


def judge(
    claims: Sequence[Claim],
    runs: Mapping[str, Runs],
    equations: Mapping[str, EquationResult],
    ratios: Sequence[float],
) -> list[ClaimVerdict]:
    """Return the verdict on every claim.

    Args:
        claims: All of them: those of one study are corrected together.
        runs: By study.
        equations: By number; those that a claim names have to be there.
        ratios: Of covariance to variance of a linear layer's outputs, for each law.
    """
    found = _examine([test for claim in claims for test in claim.tests], runs)
    return [_entry(claim, found, equations, ratios) for claim in claims]


def counts(entries: Iterable[ClaimVerdict]) -> dict[str, int]:
    """Count the claims by verdict."""
    counted = Counter(entry.verdict for entry in entries)
    return {verdict: counted[verdict] for verdict in VERDICTS}


def in_words(entries: Iterable[ClaimVerdict]) -> str:
    """Return the counts in words: "9 hold, 1 does not hold, 17 are open, 4 are not testable here"."""
    one = {HOLDS: "holds", FAILS: "does not hold", OPEN: "is open", OUT: "is not testable here"}
    many = {HOLDS: "hold", FAILS: "do not hold", OPEN: "are open", OUT: "are not testable here"}
    return ", ".join(
        f"{number} {(one if number == 1 else many)[verdict]}" for verdict, number in counts(entries).items()
    )


def _examine(tests: Sequence[Contrast], runs: Mapping[str, Runs]) -> dict[tuple[str, str], ContrastResult]:
    families: dict[str, dict[str, Contrast]] = {}
    for test in tests:
        families.setdefault(test.study, {})[test.key] = test
    found: dict[tuple[str, str], ContrastResult] = {}
    for study, family in families.items():
        there = runs.get(study)
        compared = {key: _compare(test, there) for key, test in family.items()} if there else {}
        limited = {key: without_limits(each) for key, each in compared.items() if each is not None}
        adjusted = stats.adjusted(limited, len(family))  # by the protocol's family, whichever of it has been run
        for key, test in family.items():
            lost = {run for method, run in (there.lost if there else ()) if method in (test.first, test.second)}
            found[study, key] = _judged(test, adjusted.get(key), len(family), len(lost))
    return found


def _compare(test: Contrast, runs: Runs) -> stats.Comparison | None:
    first = runs.values(test.first, test.metric)
    second = runs.values(test.second, test.second_metric or test.metric)
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return None
    margin = runs.margin
    if test.margin_share is not None:
        margin = test.margin_share * abs(stats.summary([second[run] for run in shared]).mean) or None
    return stats.compare_paired(
        {run: first[run] for run in shared},
        {run: second[run] for run in shared},
        margin=margin,
        names=(test.first, test.second),
    )


def _judged(test: Contrast, found: stats.Comparison | None, family: int, failed: int) -> ContrastResult:
    planned = PLANNED[test.study].runs
    if found is None:
        return ContrastResult(test, OPEN, 0, planned, family, failed=failed)
    verdict, note = OPEN, ""
    if test.study in EXPLORATORY:
        note = "exploratory, decides nothing"
    elif found.runs >= planned and not found.sd > 0:
        note = "all runs differ alike, which is no evidence"
    elif found.runs >= planned:
        verdict, note = (_less if test.relation == "less" else _not_worse)(found)
    return ContrastResult(test, verdict, found.runs, planned, family, found, _needed(found, family), note, failed)


def _less(found: stats.Comparison) -> tuple[str, str]:
    significant = found.t_p_two_sided_holm < LEVEL
    equal = found.equivalence_p_holm is not None and found.equivalence_p_holm < LEVEL
    if significant and found.difference < 0:
        return HOLDS, "by less than matters" if equal else ""
    if significant:
        return FAILS, "the other way round"
    return (FAILS, "equal within the margin") if equal else (OPEN, "")


def _not_worse(found: stats.Comparison) -> tuple[str, str]:
    if found.margin is not None and found.simultaneous[1] < found.margin:
        return HOLDS, "not worse by more than the margin"
    if found.difference > 0 and found.t_p_two_sided_holm < LEVEL:
        return FAILS, "worse"
    return OPEN, ""


def _needed(found: stats.Comparison, family: int) -> int | None:
    if not found.margin or not found.sd > 0 or not math.isfinite(found.sd):
        return None
    try:
        return stats.runs_needed(found.margin, found.sd, alpha=LEVEL / family)
    except UserError:  # more than could ever be done
        return None


def _entry(
    claim: Claim,
    found: Mapping[tuple[str, str], ContrastResult],
    equations: Mapping[str, EquationResult],
    ratios: Sequence[float],
) -> ClaimVerdict:
    if claim.untestable:
        return ClaimVerdict(claim, OUT, claim.untestable)
    if claim.unplanned:
        return ClaimVerdict(claim, OPEN, f"no study of the protocol: {claim.unplanned}")
    if claim.trade_off:
        low, high = min(ratios), max(ratios)
        span = f"covariance over variance is {low:.6g} to {high:.6g} over {len(ratios)} laws"
        return ClaimVerdict(claim, FAILS if high - low <= _SAME * high else HOLDS, span)
    if claim.equations:
        checked = tuple(equations[number] for number in claim.equations)
        verdict = HOLDS if all(each.verdict in claim.allowed for each in checked) else FAILS
        return ClaimVerdict(claim, verdict, "; ".join(f"({each.number}) {each.text}" for each in checked), (), checked)
    evidence = tuple(found[test.study, test.key] for test in claim.tests)
    verdict = _together(claim, evidence)
    return ClaimVerdict(claim, verdict, _reason(verdict, evidence), evidence)


def _together(claim: Claim, evidence: Sequence[ContrastResult]) -> str:
    verdicts = [each.verdict for each in evidence]
    if claim.rule == "each":
        return FAILS if FAILS in verdicts else HOLDS if set(verdicts) == {HOLDS} else OPEN
    if any(each.runs < each.planned for each in evidence):
        return OPEN  # a tendency is judged when all cases are in
    opposite = any(each.note == "the other way round" for each in evidence)
    if HOLDS in verdicts and not opposite:
        return HOLDS
    return FAILS if set(verdicts) == {FAILS} else OPEN


def _reason(verdict: str, evidence: Sequence[ContrastResult]) -> str:
    counted = Counter(each.verdict for each in evidence)
    parts = ", ".join(f"{number} {_SHORT[name][number > 1]}" for name in _SHORT if (number := counted[name]))
    exploratory = all(each.test.study in EXPLORATORY for each in evidence)
    reason = f"{plural(len(evidence), 'comparison')}: {parts}"
    reason += "; exploratory, so that it is not decided" if exploratory else ""
    return f"{reason}; {_wanted(evidence)}" if verdict == OPEN else reason


_SHORT = {HOLDS: ("holds", "hold"), FAILS: ("does not", "do not"), OPEN: ("open", "open")}  # of one, of several


def _wanted(evidence: Sequence[ContrastResult]) -> str:
    """Describe the runs that an open claim still needs."""
    missing: dict[str, tuple[int, int]] = {}  # in all, and failed
    more: dict[str, int] = {}
    for each in evidence:
        study = each.test.study
        if each.runs < each.planned:
            missing[study] = max(missing.get(study, (0, 0)), (each.planned - each.runs, each.failed))
        elif each.verdict == OPEN and each.needed is not None:
            more[study] = max(more.get(study, 0), each.needed)
    parts = [f"{study} has {_lacking(*numbers)}" for study, numbers in missing.items()]
    parts += [
        f"{study} would need {plural(number, 'run')} to detect a difference as large as its margin"
        for study, number in more.items()
        if study not in missing
    ]
    return "; ".join(parts) or "the runs that there are do not decide it"


def _lacking(number: int, failed: int) -> str:
    """Describe missing runs: those still to be done, and those that failed."""
    if not failed:
        return f"{plural(number, 'run')} to go"
    if number == failed:
        return f"{plural(failed, 'run')} that failed"
    return f"{plural(number - failed, 'run')} to go and {failed} that failed"
