"""Live page of a store: progress, curves and the verdict so far.

An update costs what has changed since the last one: rows of jobs are read again when their checksums differ, epochs
only of running jobs, and comparisons are recomputed when a job has ended. Predictions and figures are not read.
"""

from __future__ import annotations

import collections
import pathlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import markupsafe

from ...._text import duration, plural
from ...analysis.interim import followed_method, interim_results
from ...analysis.phrases import all_of, capital
from ...analysis.verdict import Analysis, analyze
from ...runner.progress import Estimate
from ...store.results import assemble
from ...store.schema import FAILED, FINAL, FINISHED, RUNNING, JobRecord, ProtocolRecord
from ...store.writer import Store
from ...study import labels
from .. import protocol, style, templating
from ..cells import OWN_LOOP, origin
from ..page import chip, compared
from . import charts

REFRESH_SECONDS = 2
_MOST_CURVES = 12  # jobs drawn at once


class LivePage:
    """Page of a store that is updated at a cost proportional to what has changed."""

    def __init__(self, path: pathlib.Path, margin: float | None = None) -> None:
        self._path, self._margin = path, margin
        self._file: int | None = None
        self._checksums: dict[int, str] = {}
        self._jobs: dict[int, JobRecord] = {}
        self._judged: dict[str, Analysis] = {}
        self._shades: set[str] = set()
        self._page, self._changes = secrets.token_hex(4), 0
        self.is_done = False
        self.fragment = ""

    @property
    def version(self) -> str:
        """Identifier of the page, a dot, and a counter of its content.

        A tab that has another page, of another start or without a colour that there is now, has to load it again.
        """
        return f"{self._page}.{self._changes}"

    def look(self) -> None:
        """Update ``fragment``, and ``version`` if it or the report changes.

        Raises:
            UserError: There is no store, or its runs are not paired.
        """
        with Store(self._path) as store, store.snapshot():
            ended = self._read(store)
            held = {job.id for job in self._jobs.values() if job.status == RUNNING and not store.is_interrupted(job)}
            experiments = [self._experiment(store, record, ended, held) for record in store.protocols()]
        self.is_done = bool(experiments) and all(each["is_done"] for each in experiments)
        for number, each in enumerate(experiments, 1):
            each["anchor"] = f"e{number}"
        text = templating.render(
            "fragment.html",
            title=experiments[0]["title"] if len(experiments) == 1 else f"{len(experiments)} experiments",
            experiments=experiments,
            is_done=self.is_done,
            failed=sum(each["progress"]["failed"] for each in experiments),
            store=labels.printable(self._path.name),
        )
        if text != self.fragment:
            self.fragment, self._changes = text, self._changes + 1
        shades = {style.style(job.method).colour[1:] for job in self._jobs.values()}
        if shades != self._shades:
            self._shades, self._page = shades, secrets.token_hex(4)

    def page(self) -> str:
        """Return the complete page, which then asks for fragments."""
        store = labels.printable(self._path.name)
        return templating.render_page(
            "live",
            templating.dark_colours(self._shades),
            polls=True,
            fragment=markupsafe.Markup(self.fragment),
            live_version=self.version,
            refresh=REFRESH_SECONDS,
            store=store,
            title=f"{store}, live",
        )

    def _read(self, store: Store) -> set[str]:
        """Read the jobs that have changed; return the protocols whose verdict may have changed."""
        file = self._path.stat().st_ino
        if file != self._file:
            self._file, self._checksums, self._jobs, self._judged = file, {}, {}, {}
        now = store.job_checksums()
        changed = [job for job, checksum in now.items() if self._checksums.get(job) != checksum]
        concerned = {self._jobs[job].protocol for job in self._checksums.keys() - now.keys()}
        for job in store.jobs(ids=changed):
            before = self._jobs.get(job.id)
            if before is None or {before.status, job.status} & {FINISHED, FAILED}:
                concerned.add(job.protocol)
            self._jobs[job.id] = job
        self._jobs = {job: self._jobs[job] for job in now}
        self._checksums = now
        return concerned

    def _experiment(self, store: Store, record: ProtocolRecord, ended: set[str], held: set[int]) -> dict[str, Any]:
        jobs = [job for job in self._jobs.values() if job.protocol == record.key]
        judged = self._judged.get(record.key)
        if judged is None or record.key in ended or judged.results.protocol != record:
            judged = self._judged[record.key] = analyze(
                assemble(record, jobs, store.selections(record.key)), self._margin
            )
            self._changes += 1
        running = [job for job in jobs if job.id in held]
        shows_epochs = origin(judged.results) != OWN_LOOP  # whose epochs reach the store when it ends
        is_done = all(job.status in (FINISHED, FAILED) for job in jobs)
        drawn = [(job, store.epochs(job.id)) for job in running[:_MOST_CURVES]]
        return {
            "name": labels.printable(record.experiment),
            "title": labels.printable(record.description.get("title") or record.experiment),
            "is_done": is_done,
            "progress": _progress(jobs, running),
            "methods": list(_methods(jobs, held)),
            "running": [
                {
                    "name": f"{labels.display_name(job.method, longest=60)}, run {job.run}"
                    + ("" if job.stage == FINAL else ", selection"),
                    "epochs": f"epoch {job.epochs_done} of {job.epochs}" if shows_epochs else "",
                    **charts.line_style(job.method),
                }
                for job in running
            ],
            "commands": "" if running or is_done else protocol.commands(judged.results, self._path.name),
            **_said(judged, is_done),
            "curves": list(charts.curves([(job, epochs) for job, epochs in drawn if epochs], judged.results.measure)),
            "not_drawn": len(running) - len(drawn),
        }


def _progress(jobs: Sequence[JobRecord], running: Sequence[JobRecord]) -> dict[str, Any]:
    counts = collections.Counter(job.status for job in jobs)
    done = counts[FINISHED] + counts[FAILED]
    seconds = Estimate(jobs).seconds_left(max(1, len(running))) if done < len(jobs) else None
    under_way = sum(job.epochs_done / max(1, job.epochs) for job in running)
    share = 100 / max(1, len(jobs))
    return {
        "planned": len(jobs),
        "finished": counts[FINISHED],
        "failed": counts[FAILED],
        "running": len(running),
        "waiting": len(jobs) - done - len(running),
        "left": duration(seconds) if seconds is not None and running else "",
        "bar": [round(share * part, 2) for part in (counts[FINISHED], counts[FAILED], under_way)],
    }


def _methods(jobs: Sequence[JobRecord], held: set[int]) -> Iterable[dict[str, Any]]:
    """Yield the progress of each method of the final runs, and of the selection."""
    by_label: dict[str, list[JobRecord]] = {}
    for job in jobs:
        by_label.setdefault(job.method if job.stage == FINAL else "", []).append(job)
    for label, mine in by_label.items():
        counts = collections.Counter("running" if job.id in held else job.status for job in mine)
        finished, failed = counts[FINISHED], counts[FAILED]
        share = 100 / len(mine)
        yield {
            "name": labels.display_name(label, longest=60) if label else "Selection of parameters",
            **(charts.line_style(label) if label else {"colour": ""}),
            "text": f"{finished} of {len(mine)}",
            "running": counts["running"],
            "failed": failed,
            "bar": (round(share * finished, 2), round(share * failed, 2)),
        }


def _said(judged: Analysis, is_done: bool) -> dict[str, Any]:
    """Return the verdict so far and how many runs it rests on."""
    results, found = judged.results, judged.verdict
    planned = len({job.run for job in results.final})
    others = [method for method in results.methods if method != results.reference]
    pairs = [judged.comparisons[method].runs if method in judged.comparisons else 0 for method in others]
    whole = all_of(planned, "planned run") if planned else "all planned runs"  # none before parameters are selected
    return {
        "verdict": found,
        "chip": chip(found) if is_done else "not final",
        "tone": found.outcome if is_done else "none",
        "planned_runs": planned,
        "paired_runs": min(pairs, default=0),
        "final_when": f"{whole} {'is' if planned == 1 else 'are'} there",
        **compared(judged),
        "narrowing": _narrowing(judged, planned),
    }


def _narrowing(judged: Analysis, planned: int) -> dict[str, Any] | None:
    method, results = followed_method(judged.results), judged.results
    interim = interim_results(results, method) if method else []
    if method is None or not interim:
        return None
    measure, last = results.measure, interim[-1]
    reference = labels.name_in_text(results.reference)
    margin = judged.comparisons[method].margin
    now = measure.signed(last.difference)
    if last.low == last.low:
        now += f" [{measure.signed(last.low)}, {measure.signed(last.high)}]"
    now += measure.gap_unit
    return {
        **charts.interim_chart(interim, planned, margin, results.reference),
        "title": f"{capital(reference)} minus {labels.name_in_text(method)}, by finished pairs",
        "now": f"{now} after {last.pairs} of {plural(planned, 'pair')}",
        "alt": f"Mean difference and 95 % interval after each of {plural(last.pairs, 'finished pair')}; now {now}.",
        "margin_text": None if margin is None else f"±{measure.gap(margin)}",
    }
