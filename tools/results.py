"""Generator of the docs' tables and figures of the replication, from the archives in results/.

    python tools/results.py          # after an archive was added or extended
    python tools/results.py --check  # exit code 1 if anything would change

Generated text is between the lines "<!-- made by tools/results.py: NAME -->" and "<!-- end -->" of a page.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from contdrop.lab import stats
from contdrop.lab.store import imports
from contdrop.lab.store.schema import FINISHED
from contdrop.replication import studies
from contdrop.replication.claims.claims import CLAIMS, PLANNED, TEST, UNUSED
from contdrop.replication.claims.verdicts import ENDING, ClaimVerdict, EquationResult, Runs, gather, in_words, judge
from contdrop.replication.studies import dose
from contdrop.theory import paper_equations

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = (ROOT / "docs/claims.md", ROOT / "docs/practice.md", ROOT / "docs/reproduction.md", RESULTS / "README.md")
BLOCK = re.compile(r"(<!-- made by tools/results\.py: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
DRAWS = 1000  # for the equations, whose verdicts do not depend on it
LAWS = ("bernoulli", "gaussian", "uniform", "normal")
DOSES = ("dose-1000", "dose-5000", "fashion-5000")
# Commits that trained the runs of an archive, which records the version of the package only.
COMMITS = {
    "cifar10-nin-head": "1cbbab8",
    "dose-1000": "77443f6, before 05:08 UTC 252d288",
    "fashion-cnn": "28046df",
    "full-sigmoid": "28046df",
    "mnist-mlp-relu": "not recorded",
    "replication-authors-relu": "28046df",
    "replication-cnn-gaussian": "28046df",
    "replication-cnn-uniform": "28046df",
}
USUAL_COMMIT = "77443f6"


def entries(runs: Mapping[str, Runs]) -> list[ClaimVerdict]:
    found = {
        check.number: EquationResult(check.number, check.verdict, check.verdict)
        for check in paper_equations.check_equations(DRAWS, 0)
    }
    return judge(CLAIMS, runs, found, [each.covariance / each.variance for each in paper_equations.trade_offs()])


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def verdicts(found: Sequence[ClaimVerdict]) -> str:
    """Return the table of verdicts, one row per claim."""
    rows = [
        (entry.claim.id, entry.claim.text, entry.claim.where, f"**{entry.verdict}**", entry.reason) for entry in found
    ]
    return f"{in_words(found)}.\n\n{table(('', 'claim', 'where', 'verdict', 'evidence'), rows)}"


def comparisons(found: Sequence[ClaimVerdict]) -> str:
    """Return the table of all complete comparisons that claims are based on."""
    lines = {}
    for entry in found:
        for each in entry.evidence:
            if each.comparison is not None and each.runs >= each.planned:
                low, high = each.comparison.simultaneous
                lines[each.test.study, each.test.key] = (
                    each.test.study,
                    " minus ".join(_plain(metric) for metric in (each.test.metric, each.test.second_metric) if metric),
                    f"`{each.test.first}`",
                    f"`{each.test.second}`",
                    _signed(each.comparison.difference, each.test.metric),
                    f"{_signed(low, each.test.metric)} to {_signed(high, each.test.metric)}",
                    f"{each.comparison.t_p_two_sided_holm:.2g}",
                    "" if each.comparison.equivalence_p_holm is None else f"{each.comparison.equivalence_p_holm:.2g}",
                    f"{each.verdict}{': ' * bool(each.note)}{each.note}",
                )
    if not lines:
        return "No study has all its planned runs yet.\n"
    headings = (
        "study",
        "of",
        "first",
        "second",
        "first - second",
        "simultaneous 95 %",
        "p",
        "equivalence p",
        "verdict",
    )
    return table(headings, list(lines.values()))


def _plain(metric: str) -> str:
    return metric.removeprefix("test:").replace("_", " ")


def _signed(value: float, metric: str) -> str:
    """Format errors in points to three decimals, and covariances, which are small, to two digits."""
    return f"{value:+.3f}" if "error" in metric else f"{value:+.2g}"


def doses(runs: Mapping[str, Runs], metric: str) -> str:
    """Return tables of the change in error by strength and shape, for complete studies."""
    parts = [_doses(runs[study], metric) for study in DOSES if study in runs and is_complete(runs[study])]
    return "\n".join(parts) or "No study of strengths has all its planned runs yet.\n"


def _doses(runs: Runs, metric: str) -> str:
    none = runs.values("none", metric)
    without = stats.summary(list(none.values()))
    rows = []
    for r in dose.STRENGTHS:
        values = {law: runs.values(f"{law}:r={r}", metric) for law in LAWS}
        if any(values.values()):
            rows.append([r, f"{float(r) / (1 + float(r)):.0%}", *(_gain(each, none) for each in values.values())])
    headings = ("strength r", "rate of Bernoulli dropout", "Bernoulli", "clipped Gaussian", "uniform", "N(1, r)")
    return (
        f"`{runs.study}`, {PLANNED[runs.study].runs} paired runs: error without dropout {without.mean:.2f} % of the "
        f"{'unused' if metric == UNUSED else 'test'} images; with noise, the difference from that in points "
        f"(± half of a pointwise 95 % interval):\n\n"
        f"{table(headings, rows)}"
    )


def pooled(runs: Mapping[str, Runs]) -> str:
    """Return continuous minus binary, averaged within a run over all pairs of equal strength (exploratory)."""
    lines = []
    for study in DOSES:
        if study in runs and is_complete(runs[study]):
            pairs = [
                (runs[study].values(f"{law}:r={r}", UNUSED), runs[study].values(f"bernoulli:r={r}", UNUSED))
                for law in LAWS[1:]
                for r in dose.STRENGTHS
            ]
            pairs = [(first, second) for first, second in pairs if first and second]
            sides = ({run: statistics.fmean(each[run] for each in side) for run in side[0]} for side in zip(*pairs))
            lines.append(f"{_gain(*sides, digits=3)} points in `{study}` ({len(pairs)} pairs)")
    return f"{', '.join(lines) or 'no study has all its runs yet'}.\n"


def errors(runs: Mapping[str, Runs], study: str) -> str:
    """Return the table of a complete study: error by method, and difference from none or from Bernoulli dropout."""
    if study not in runs or not is_complete(runs[study]):
        return f"`{study}` does not have all its planned runs yet.\n"
    here = runs[study]
    methods = list(dict.fromkeys(job.method for job in here.jobs))
    metric = UNUSED if here.values(methods[0], UNUSED) else TEST
    reference = next(method for method in ("none", "bernoulli") if method in methods)
    against = here.values(reference, metric)
    rows = []
    for method in methods:
        values, strengths = here.values(method, metric), here.values(method, "relative_variance")
        gained = "" if method == reference else _gain(values, against)
        strength = f"{min(strengths.values()):.2f}" if len(set(strengths.values())) == 1 else ""
        row = [f"`{method}`", strength, f"{stats.summary(list(values.values())).mean:.2f}", gained]
        if metric == UNUSED:  # the smaller set is added
            tests = here.values(method, TEST)
            row += [f"{stats.summary(list(tests.values())).mean:.2f}"]
            row += ["" if method == reference else _gain(tests, here.values(reference, TEST))]
        rows.append(row)
    difference = f"minus `{reference}`, points"
    headings = ["method", "strength r", f"{_plain(metric)}, %", difference]
    headings += ["test error, %", difference] if metric == UNUSED else []
    return (
        f"`{study}`, {PLANNED[study].runs} paired runs; ± is half of a pointwise 95 % interval:\n\n"
        f"{table(headings, rows)}"
    )


def epochs(runs: Mapping[str, Runs], study: str) -> str:
    """Return the table of a complete study: test error after the last epoch, and lowest test error of any epoch."""
    if study not in runs or not is_complete(runs[study]):
        return f"`{study}` does not have all its planned runs yet.\n"
    here = runs[study]
    rows = []
    for method in dict.fromkeys(job.method for job in here.jobs):
        row = [f"`{method}`"]
        for found in (_last, _lowest):
            values = found(here, method)
            row.append(f"{statistics.fmean(values.values()):.2f} ({', '.join(f'{v:.2f}' for v in values.values())})")
            row.append("" if method == "none" else _gain(values, found(here, "none")))
        rows.append(row)
    difference = "minus `none`, points"
    headings = ("method", "last epoch, %", difference, "lowest of any epoch, %", difference)
    return (
        f"`{study}`, {PLANNED[study].runs} paired runs of {PLANNED[study].epochs} epochs; test errors, in brackets "
        f"run by run; ± is half of a pointwise 95 % interval:\n\n{table(headings, rows)}"
    )


def _last(runs: Runs, method: str) -> dict[int, float]:
    return runs.values(method, TEST)


def _lowest(runs: Runs, method: str) -> dict[int, float]:
    """Return the lowest test error by run, which is too low because it selects on test images."""
    return {
        job.run: min(epoch.test_error for epoch in runs.curves[job.id] if epoch.test_error is not None)
        for job in runs.jobs
        if job.method == method
    }


def _gain(values: Mapping[int, float], none: Mapping[int, float], digits: int = 2) -> str:
    if not values:
        return ""
    found = stats.compare_paired(dict(values), dict(none))
    low, high = found.interval
    return f"{found.difference:+.{digits}f} ± {(high - low) / 2:.{digits}f}"


def is_complete(runs: Runs) -> bool:
    done = Counter(job.method for job in runs.jobs)
    (study,) = studies.find(runs.study)
    return all(done[method] >= PLANNED[runs.study].runs for method in study.methods)


def archives() -> str:
    """Return the table of archives: command, completeness, time, commit and machine."""
    rows = []
    for path in sorted(RESULTS.glob(f"*{ENDING}")):
        found, _ = imports.load(path)
        jobs = [content.job for content in found.jobs]
        finished = [job for job in jobs if job.status == FINISHED]
        kinds = sorted({f"{job.machine['processor']}, {job.machine['instructions']}" for job in finished})
        versions = sorted({f"torch {job.versions['torch']}" for job in finished})
        threads = sorted({job.machine["threads"] for job in finished})
        one = f"{'; '.join(kinds)}; {', '.join(versions)}; {'/'.join(map(str, threads))} thread per job"
        name = jobs[0].experiment
        hours = sum(job.seconds for job in finished) / 3600
        days = sorted(
            {f"{datetime.fromtimestamp(job.started, timezone.utc):%Y-%m-%d}" for job in finished if job.started}
        )
        rows.append(
            (
                f"`{path.name}`",
                f"`contdrop run {name} --store {name}.db`",
                f"{len(finished)} of {len(jobs)} jobs",
                f"{hours:.1f}",
                COMMITS.get(name, USUAL_COMMIT),
                " to ".join(dict.fromkeys((days[0], days[-1]))),
                one,
            )
        )
    return table(("archive", "command", "done", "wall-clock hours", "commit", "started", "machine"), rows)


class Blocks:
    """Generated texts by block name, with an optional argument after a colon."""

    def __init__(self) -> None:
        self.runs = gather(RESULTS)
        self.found = entries(self.runs)

    def __getitem__(self, name: str) -> str:
        kind, _, of = name.partition(":")
        if kind == "comparisons":
            return comparisons([entry for entry in self.found if not of or entry.claim.id in of.split(",")])
        made = {
            "ledger": lambda: verdicts(self.found),
            "doses": lambda: doses(self.runs, of or UNUSED),
            "pooled": lambda: pooled(self.runs),
            "errors": lambda: errors(self.runs, of),
            "epochs": lambda: epochs(self.runs, of),
            "archives": archives,
        }
        return made[kind]()


def filled(text: str, made: Blocks) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}{match[3]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page would change")
    arguments = parser.parse_args()
    made, stale = Blocks(), []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = filled(old, made)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if not arguments.check:
                page.write_text(new, encoding="utf-8")
    print(
        "\n".join(f"{'stale' if arguments.check else 'written'}: {page}" for page in stale)
        or "all pages are up to date"
    )
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
