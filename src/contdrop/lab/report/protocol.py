"""Description of how an experiment was done, from its store."""

from __future__ import annotations

import collections
import functools
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._text import plural
from ..analysis.metric_format import moment, run_count
from ..store.results import Results
from ..store.schema import FAILED, FINISHED, IMPORTED, ONLY_SIZE, JobRecord
from ..study import amendments, labels
from .formats import in_full
from .templating import texts

THE_LAB, OWN_LOOP, ELSEWHERE = "the lab", "own loop", "elsewhere"  # who trained the networks
Entries = list[tuple[str, list[str]]]
_VERBS = {"train": "train on", "validation": "validate on", "test": "test on"}
_DIGESTS = {"behaviour", "code"}  # of a study's functions; experiments of the catalogue have none


def title_of(results: Results) -> str:
    protocol = results.protocol
    return labels.printable(str(protocol.description.get("title") or protocol.experiment))


def origin(results: Results) -> str:
    """Return who trained the networks: the lab, a custom loop of the study, or somebody else (imported numbers)."""
    if results.protocol.preset == IMPORTED:
        return ELSEWHERE
    return OWN_LOOP if results.protocol.configuration.get("run") is not None else THE_LAB


def size_of(results: Results) -> str:
    """Return runs, epochs and preset in words."""
    return sized(results, run_count({len(runs) for runs in results.errors().values()} or {0}))


def sized(results: Results, runs: str) -> str:
    """Describe a number of runs with their epochs, if known, and the preset, if the study has several."""
    protocol = results.protocol
    if origin(results) == ELSEWHERE:
        return f"{runs}, {IMPORTED}"
    each = "" if runs == "1 run" else " each"
    epochs = f" of {length}{each}" if (length := length_of(results)) else ""
    preset = "" if protocol.preset == ONLY_SIZE else f", preset “{labels.printable(protocol.preset)}”"
    return f"{runs}{epochs}{preset}"


def length_of(results: Results) -> str:
    """Return the epochs of a run in words; empty for a custom loop that logged other numbers of epochs."""
    planned, logged = results.protocol.epochs, {job.epochs_done for job in results.finished}
    if logged == {planned}:
        return plural(planned, "epoch")
    if origin(results) != THE_LAB:
        return ""
    return f"up to {plural(planned, 'epoch')}" if min(logged, default=planned) < planned else at_most(results, planned)


def at_most(results: Results, epochs: int) -> str:
    """Return the number of epochs in words, as a maximum if the study stops early."""
    return f"{'' if results.protocol.configuration.get('patience') is None else 'up to '}{plural(epochs, 'epoch')}"


def size(results: Results) -> str:
    """Return the size in a few words."""
    return sized(results, plural(_most_runs(results.finished), "run"))


def protocol(results: Results) -> Entries:
    """Return the protocol as terms with their descriptions."""
    jobs = [job for job in (*results.selection, *results.final) if job.versions]
    counts = [f"{results.sizes[part]:,} to {verb}" for part, verb in _VERBS.items() if part in results.sizes]
    found: Entries = []
    for line in texts(
        "protocol",
        results,
        by=origin(results),
        size=sized(results, plural(_most_runs(results.final), "run")),
        finished=min(map(len, results.errors().values()), default=0),
        plans=amendments.plans(results.protocol.description),
        counts=", ".join(counts),
        shared=sorted({name for job in results.finished for name in job.fingerprints}),
        versions=_distinct([job.versions for job in jobs]),
        machines=_distinct([job.machine for job in jobs]),
        time=_time(results),
        in_full=in_full,
        plain=plain,
        at_most=functools.partial(at_most, results),
    ):
        if line.startswith("="):
            found.append((line[2:], []))
        elif text := line[2:]:
            found[-1][1].append(text)
    return [(term, about) for term, about in found if about]


def tally(results: Results) -> list[tuple[int, str]]:
    """Return planned runs and their states, which add up to the first; for imports the number of runs."""
    jobs = (*results.selection, *results.final)
    if origin(results) == ELSEWHERE:
        return [(len(jobs), IMPORTED)]
    counts = collections.Counter(job.status for job in jobs)
    done = counts[FINISHED] + counts[FAILED]
    return [
        (len(jobs), "planned"),
        (counts[FINISHED], "finished"),
        (counts[FAILED], "failed"),
        (len(jobs) - done, "not finished yet"),
    ]


def missing(results: Results) -> list[str]:
    """Return the unfinished runs of each method."""
    waiting = [job for job in results.selection if job.status not in (FINISHED, FAILED)]
    lines = [f"selection: {plural(len(waiting), 'job')}"] if waiting else []
    by_method: dict[str, list[int]] = {}
    for job in results.missing:
        by_method.setdefault(job.method, []).append(job.run)
    return lines + [
        f"{labels.display_name(method, longest=10_000)}: run{'' if len(runs) == 1 else 's'} {_ranges(runs)}"
        for method, runs in by_method.items()
    ]


def commands(results: Results, store: str) -> str:
    """Return the commands that reproduce these results in a new store."""
    description = results.protocol.description
    if origin(results) == ELSEWHERE:
        first = _import(results, store)
    elif "file" not in description and (_DIGESTS & description.keys() or origin(results) == OWN_LOOP):
        first = _call(results, store)  # of a study that neither a file nor the catalogue has
    else:
        first = _command(results, store)
    return f"{first}\n{shlex.join(['contdrop', 'report', '--store', store])}"


def _import(results: Results, store: str) -> str:
    record, measure = results.protocol, results.measure
    file = str(record.configuration.get("file", "FILE"))
    parts = ["contdrop", "import", file, "--name", record.experiment, "--reference", results.reference]
    if not measure.is_error:
        parts += ["--metric", measure.name, "--unit", measure.unit, "--better", measure.better]
    if (margin := record.description.get("margin")) is not None:
        parts += ["--margin", str(margin)]
    return shlex.join([*parts, "--store", store])


def _command(results: Results, store: str) -> str:
    file = results.protocol.description.get("file")
    parts = ["contdrop", "compare", str(file)] if file else ["contdrop", "run", results.protocol.experiment]
    for name, value in _settings(results).items():
        parts += [f"--{name}", ",".join(value) if isinstance(value, list) else str(value)]
    return shlex.join([*parts, "--store", store])


def _call(results: Results, store: str) -> str:
    """Return the Python call; a loop around ``lab.ask`` is the user's own and takes neither epochs nor a seed."""
    record, settings = results.protocol, _settings(results)
    is_asked = not _DIGESTS & record.description.keys()
    given = {name: settings[name] for name in ("methods", "runs") if name in settings} if is_asked else settings
    arguments = ", ".join(["study", *(f"{name}={value!r}" for name, value in given.items()), f"store={store!r}"])
    call = f"for job in lab.ask({arguments}): ..." if is_asked else f"lab.compare({arguments})"
    return f"{call}  # in Python; study is the one named {labels.printable(record.experiment)!r}"


def _settings(results: Results) -> dict[str, Any]:
    """Return the settings that differ from the study, and its size, by the name of the option or argument."""
    record = results.protocol
    found: dict[str, Any] = {"preset": record.preset} if record.preset != ONLY_SIZE else {}
    if results.methods and set(results.methods) != set(record.description.get("methods", [])):
        found["methods"] = list(results.methods)
    found |= {"runs": 1 + max((job.run for job in results.final), default=0), "epochs": record.epochs}
    seed = record.configuration.get("seed")
    return found | ({} if seed is None else {"seed": seed})


def plain(value: Any) -> str:
    """Describe a nested configuration.

    >>> plain({"kind": "mlp", "widths": [64, 128, 10], "activation": "relu"})
    'mlp; widths 64-128-10; activation relu'
    """
    if isinstance(value, Mapping):
        parts = [str(value["kind"])] if "kind" in value else []
        for name, item in value.items():
            if name != "kind" and item is not None:
                inner = plain(item)
                parts.append(f"{str(name).replace('_', ' ')} {f'({inner})' if isinstance(item, Mapping) else inner}")
        return "; ".join(parts)
    if isinstance(value, (list, tuple)):
        whole = all(isinstance(item, int) for item in value)
        return ("-" if whole else ", ").join(plain(item) for item in value)
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _most_runs(jobs: Iterable[JobRecord]) -> int:
    """Return the largest number of runs of a method."""
    return max(collections.Counter(job.method for job in jobs).values(), default=0)


def _distinct(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each distinct record, with its number of jobs if there are several."""
    counts = collections.Counter(
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sorted(record.items())) for record in records
    )
    if len(counts) < 2:
        return list(counts)
    return [f"{text} ({plural(count, 'job')})" for text, count in counts.most_common()]


def _time(results: Results) -> str:
    jobs = [job for job in (*results.selection, *results.final) if job.started]
    if not jobs:
        return ""
    first, last = min(job.started or 0 for job in jobs), max(job.ended or job.started or 0 for job in jobs)
    return f"{_duration(sum(job.seconds for job in jobs))} of training, between {moment(first)} and {moment(last)}"


def _duration(seconds: float) -> str:
    """Format a duration, rounded.

    >>> [_duration(s) for s in (42, 185, 7500, 200000)]
    ['42 s', '3.1 min', '2.1 h', '55.6 h']
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _ranges(runs: Sequence[int]) -> str:
    """Format run numbers as ranges.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    groups = itertools.groupby(enumerate(sorted(runs)), lambda place: place[1] - place[0])
    parts = [[run for _, run in group] for _, group in groups]
    return ", ".join(f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
