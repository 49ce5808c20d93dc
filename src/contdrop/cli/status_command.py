"""``contdrop status``: how far the experiments of a store are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._text import duration, plural
from ..lab.runner.progress import Estimate
from ..lab.store.schema import FAILED, FINISHED, RUNNING, JobRecord, ProtocolRecord
from ..lab.store.writer import Store
from . import options, terminal

HELP = """Show what is planned, running, finished and failed, and about how long the rest will take.

Planned is everything: what is waiting, running, finished and failed adds up to it. A job whose process has ended before
it was done is waiting again.

\b
Examples:
  contdrop status
  contdrop status --store table1.db --json
"""

_COUNTS = ("planned", "waiting", "running", "finished", "failed")


def status(store: options.Store = options.STORE, as_json: options.Json = False) -> None:
    """The command; ``HELP`` says what it does."""
    with Store(store) as opened, opened.snapshot():
        protocols = [(protocol, opened.jobs(protocol=protocol.key)) for protocol in opened.protocols()]
        rows = [_row(opened, protocol, jobs) for protocol, jobs in protocols]
    failures = [(job, job.error or "") for _, jobs in protocols for job in jobs if job.status == FAILED]
    if as_json:
        plain_failures = [
            {"experiment": job.experiment, "stage": job.stage, "method": job.method, "run": job.run, "error": error}
            for job, error in failures
        ]
        terminal.print_json({"store": str(store), "experiments": rows, "failures": plain_failures})
        return
    screen = terminal.screen()
    if not rows:
        screen.print(f"{store} is empty. Begin with: contdrop run digits-mlp --store {store}")
        return
    table = terminal.table(None, ("experiment", *_COUNTS, "time left"))
    table.padding = (0, 0, 0, 0)  # with the space that is there anyway, all fits 80 columns
    table.columns[0].overflow = "fold"
    for row in rows:
        left = "unknown" if row["seconds_left"] is None else duration(row["seconds_left"])
        name = f"{row['experiment']}\n  {row['preset']}, {plural(row['epochs'], 'epoch')}"
        table.add_row(name, *(str(row[count]) for count in _COUNTS), left if row["waiting"] or row["running"] else "")
    screen.print(table)
    for job, error in failures:
        stage = " (selection)" if job.stage == "selection" else ""
        screen.print(f"failed: {job.experiment} {job.method} run {job.run}{stage}: {error}", style="red")


def _row(store: Store, protocol: ProtocolRecord, jobs: Sequence[JobRecord]) -> dict[str, Any]:
    running = [job for job in jobs if job.status == RUNNING and not store.is_interrupted(job)]
    counts = {name: sum(job.status == name for job in jobs) for name in (FINISHED, FAILED)}
    left = Estimate(jobs).seconds_left(max(1, len(running)))
    return {
        "experiment": protocol.experiment,
        "preset": protocol.preset,
        "epochs": protocol.epochs,
        "planned": len(jobs),
        "waiting": len(jobs) - len(running) - sum(counts.values()),
        "running": len(running),
        **counts,
        "seconds_left": None if left is None else round(left, 1),
    }
