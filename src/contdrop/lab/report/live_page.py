"""Live page of a store: progress, curves and the verdict so far.

An update costs what has changed since the last one: rows of jobs are read again when their checksums differ, epochs
only of running jobs, and comparisons are recomputed when a job has ended. Predictions and figures are not read.

Charts are positions from 0 to 100 for a template, which stretches the lines to the available width and sets the text
beside them at its own size.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import markupsafe
from matplotlib.ticker import MaxNLocator

from ..._text import duration
from ..analysis.comparisons import InterimResult, followed_method, interim_results
from ..analysis.metric_format import Measure
from ..analysis.verdict import Analysis, analyze
from ..runner.progress import Estimate
from ..store.results import assemble
from ..store.schema import FAILED, FINAL, FINISHED, RUNNING, Epoch, JobRecord, ProtocolRecord
from ..store.writer import Store
from ..study import labels
from . import protocol, style, templating
from .formats import MINUS
from .page import heading

REFRESH_SECONDS = 2
_MOST_CURVES = 12  # jobs drawn at once
_MOST_POINTS = 200  # per line
_WIDEST = 4.0  # an interval that many times as wide as the last one is cut off, lest it flatten all others


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
        for number, each in enumerate(experiments, 1):
            each["anchor"] = f"e{number}"
        self.is_done = bool(experiments) and all(each["is_done"] for each in experiments)
        text = templating.render(
            "fragment.html", experiments=experiments, is_done=self.is_done, store=labels.printable(self._path.name)
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
            results = assemble(record, jobs, store.selections(record.key))
            judged = self._judged[record.key] = analyze(results, self._margin)
            self._changes += 1
        running = [job for job in jobs if job.id in held]
        is_done = all(job.status in (FINISHED, FAILED) for job in jobs)
        drawn = [(job, store.epochs(job.id)) for job in running[:_MOST_CURVES]]
        return {
            **heading(judged),
            **_so_far(judged),
            "is_done": is_done,
            "progress": _progress(jobs, running),
            "methods": list(_methods(jobs, held)),
            "running": [{**_look(job.method), "job": job} for job in running],
            "has_epochs": protocol.origin(judged.results) != protocol.OWN_LOOP,  # else they come when it ends
            "commands": "" if running or is_done else protocol.commands(judged.results, self._path.name),
            "narrowing": _narrowing(judged),
            "curves": list(_curves([(job, epochs) for job, epochs in drawn if epochs], judged.results.measure)),
            "not_drawn": len(running) - len(drawn),
        }


def _tally(jobs: Sequence[JobRecord], held: Collection[int]) -> dict[str, Any]:
    """Return the numbers of jobs by what they do, and the percentages of those that ended."""
    finished, failed = (sum(job.status == status for job in jobs) for status in (FINISHED, FAILED))
    running, share = sum(job.id in held for job in jobs), 100 / max(1, len(jobs))
    return {
        "planned": len(jobs),
        "finished": finished,
        "failed": failed,
        "running": running,
        "waiting": len(jobs) - finished - failed - running,
        "bar": [round(share * number, 2) for number in (finished, failed)],
    }


def _progress(jobs: Sequence[JobRecord], running: Sequence[JobRecord]) -> dict[str, Any]:
    found = _tally(jobs, {job.id for job in running})
    seconds = Estimate(jobs).seconds_left(len(running)) if running else None
    under_way = sum(job.epochs_done / max(1, job.epochs) for job in running)
    bar = [*found["bar"], round(100 / max(1, len(jobs)) * under_way, 2)]
    return {**found, "left": "" if seconds is None else duration(seconds), "bar": bar}


def _methods(jobs: Sequence[JobRecord], held: Collection[int]) -> Iterator[dict[str, Any]]:
    """Yield the progress of each method of the final runs, and of the selection."""
    by_label: dict[str, list[JobRecord]] = {}
    for job in jobs:
        by_label.setdefault(job.method if job.stage == FINAL else "", []).append(job)
    for label, mine in by_label.items():
        look = _look(label) if label else {"name": "Selection of parameters", "colour": ""}
        yield {**look, **_tally(mine, held)}


def _so_far(judged: Analysis) -> dict[str, Any]:
    """Return how far the verdict is from its final form."""
    results = judged.results
    others = [method for method in results.methods if method != results.reference]
    pairs = [judged.comparisons[method].runs if method in judged.comparisons else 0 for method in others]
    return {
        "planned_runs": len({job.run for job in results.final}),  # none before parameters are selected
        "paired_runs": min(pairs, default=0),
    }


def _narrowing(judged: Analysis) -> dict[str, Any] | None:
    """Return the chart of the interval of one comparison by the number of pairs."""
    results, method = judged.results, followed_method(judged.results)
    interim = interim_results(results, method) if method else []
    if method is None or not interim:
        return None
    measure, last, margin = results.measure, interim[-1], judged.comparisons[method].margin
    ends = "" if math.isnan(last.low) else f" [{measure.signed(last.low)}, {measure.signed(last.high)}]"
    planned = len({job.run for job in results.final})
    return {
        **_interim_chart(interim, planned, margin, results.reference),
        "method": labels.name_in_text(method),
        "now": f"{measure.signed(last.difference)}{ends}{measure.gap_unit}",
        "pairs": last.pairs,
        "planned": planned,
        "margin_text": None if margin is None else f"±{measure.gap(margin)}",
    }


# ---- charts


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], share: float = 0.06) -> _Axis:
        shown = list(values)
        pad = share * (max(shown) - min(shown)) or abs(shown[0]) or 1.0
        return cls(min(shown) - pad, max(shown) + pad)

    def place(self, value: float) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def ticks(self, *, whole: bool = False) -> list[tuple[float, str]]:
        found = MaxNLocator(5, integer=whole).tick_values(self.low, self.high)
        inside = [float(tick) for tick in found if self.low <= tick <= self.high]
        return list(zip(map(self.place, inside), _written(inside)))


def _written(ticks: Sequence[float]) -> list[str]:
    """Format ticks with the decimals that their distance needs; with an exponent if very large or small."""
    step = min((after - before for before, after in itertools.pairwise(ticks)), default=max(map(abs, ticks), default=1))
    kept = [0.0 if abs(tick) < step / 100 else tick for tick in ticks]
    largest = max(map(abs, kept), default=0.0)
    is_plain = largest == 0 or 1e-5 <= largest < 1e7
    for digits in range(17):
        texts = [f"{tick:.{digits}{'f' if is_plain else 'e'}}" if tick or is_plain else "0" for tick in kept]
        if all(abs(float(text) - tick) <= step / 100 for text, tick in zip(texts, kept)):
            break
    return [text.replace("-", MINUS) for text in texts]


def _chart(
    x: _Axis, y: _Axis, x_label: str, lines: Iterable[tuple[str, Sequence[tuple[float, float]]]]
) -> dict[str, Any]:
    """Return a chart of a line for each method with points."""
    return {
        "x": x.ticks(whole=True),
        "y": y.ticks(),
        "x_label": x_label,
        "lines": [
            {
                **_look(method),
                "points": _points(points, x, y),
                "end": (x.place(points[-1][0]), 100 - y.place(points[-1][1])),
            }
            for method, points in lines
            if points
        ],
    }


def _points(points: Iterable[tuple[float, float]], x: _Axis, y: _Axis) -> str:
    return " ".join(f"{x.place(at):g},{round(100 - y.place(value), 2):g}" for at, value in points)


def _look(method: str) -> dict[str, str]:
    """Return name, color and dashes of a method; on a dark page a custom property gives another shade."""
    look = style.style(method)
    dashes = "" if isinstance(look.line, str) else " ".join(f"{2 * part:g}" for part in look.line[1])
    colour = f"var(--c-{look.colour[1:]}, {look.colour})"
    return {"name": labels.display_name(method, longest=60), "colour": colour, "dashes": dashes}


def _interim_chart(looks: Sequence[InterimResult], planned: int, margin: float | None, method: str) -> dict[str, Any]:
    """Return estimate and interval against the number of finished pairs, up to all that are planned."""
    finite = [look for look in looks if math.isfinite(look.low)]
    width = _WIDEST * (finite[-1].high - finite[-1].low) if finite else math.inf
    shown = [0.0, *(look.difference for look in looks)]
    shown += [end for look in finite if look.high - look.low <= width for end in (look.low, look.high)]
    if margin is not None and margin < 2 * max(map(abs, shown)):
        shown += [-margin, margin]
    x, y = _Axis(min(1.0, looks[0].pairs), max(planned, 2)), _Axis.around(shown)
    edge = [(look.pairs, look.high) for look in finite] + [(look.pairs, look.low) for look in reversed(finite)]
    return {
        **_chart(x, y, "finished pairs", [(method, [(look.pairs, look.difference) for look in looks])]),
        "zero": 100 - y.place(0.0),
        "margin": None if margin is None else (100 - y.place(margin), round(y.place(margin) - y.place(-margin), 2)),
        "edge": _points(edge, x, y),
        "cut": any(look.high - look.low > width for look in finite),
    }


def _curves(running: Sequence[tuple[JobRecord, Sequence[Epoch]]], measure: Measure) -> Iterator[dict[str, Any]]:
    """Yield charts of the loss and of the first metric that was measured after each epoch of the running jobs."""
    metrics = {f"{part}_error": f"{word} {measure.heading}" for part, word in _PARTS.items()}
    for titles in ({"train_loss": "Training loss"}, metrics):
        found = {name: [(job.method, _values(epochs, name)) for job, epochs in running] for name in titles}
        name = next((name for name, lines in found.items() if any(points for _, points in lines)), None)
        if name is not None:
            x = _Axis(1.0, max(2, *(job.epochs for job, _ in running)))
            y = _Axis.around(value for _, points in found[name] for _, value in points)
            yield {**_chart(x, y, "epoch", found[name]), "title": titles[name]}


_PARTS = {"val": "Validation", "test": "Test", "train": "Training"}


def _values(epochs: Sequence[Epoch], name: str) -> list[tuple[float, float]]:
    """Return the measured values, thinned to so many points and the last."""
    found = [(float(epoch.epoch), getattr(epoch, name)) for epoch in epochs]
    measured = [(number, value) for number, value in found if value is not None and math.isfinite(value)]
    every = -(-len(measured) // _MOST_POINTS) or 1
    return measured[::every] + (measured[-1:] if (len(measured) - 1) % every else [])
