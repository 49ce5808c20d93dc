"""Description of how an experiment was done, from its store."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._text import plural
from ..analysis.phrases import moment, run_count
from ..store.results import Results
from ..store.schema import FAILED, FINISHED, IMPORTED, ONLY_SIZE, JobRecord
from ..study import amendments, labels
from .formats import in_full

THE_LAB, OWN_LOOP, ELSEWHERE = "the lab", "own loop", "elsewhere"  # who trained the networks
Entries = list[tuple[str, list[str]]]
_DIGESTS = {"behaviour", "code"}  # of a study's functions; experiments of the catalogue have none
_AGAIN = {
    THE_LAB: "The same seeds give the same splits, initial weights, data order and masks.",
    OWN_LOOP: "The loop receives the same seeds; their use is up to the loop.",
    ELSEWHERE: "With the same numbers, the result is the same.",
}


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
    return sized(results, plural(_runs(results.finished), "run"))


def protocol(results: Results) -> Entries:
    """Return the protocol as terms with their descriptions."""
    configuration, notes = results.protocol.configuration, results.protocol.description.get("notes")
    is_known = origin(results) != ELSEWHERE  # how the numbers were made
    shared = sorted({name for job in results.finished for name in job.fingerprints})
    proven = f"{_listed(shared)}: their fingerprints are equal for all methods of a run (checked)" if shared else ""
    measured = configuration.get("measure")
    done = [job for job in (*results.selection, *results.final) if job.versions]
    found: Entries = [
        ("Size", list(_size(results))),
        ("Data", [_data(results)] if is_known else []),
        ("Metric", [f"test {results.measure.heading}; {results.measure.better} is better"]),
        ("Dropout sites", _sites(results)),
        ("Shared in a run", [proven]),
        ("Selected", list(_selection(results)) if is_known else []),
        ("Reference", [f"{_shown(results.reference)}; every other method is compared with it"]),
        ("Methods", list(_methods(results))),
        ("Noise", _noise(results) if is_known else []),
        *_training(results),
        ("Measured after training", [plain(measured) if measured else ""]),
        ("Versions", _distinct([job.versions for job in done])),
        ("Machine", _distinct([job.machine for job in done])),
        ("Time", [_time(results)]),
        ("Notes", [str(note) for note in notes or ()]),
    ]
    return [(term, texts) for term, texts in found if any(texts)]


def _training(results: Results) -> Entries:
    """Describe the training as far as the lab did it; a custom loop may ignore the settings."""
    configuration, by = results.protocol.configuration, origin(results)
    if by == ELSEWHERE:
        return []
    seed = configuration.get("seed", "unknown")
    if by == OWN_LOOP:
        return [
            ("Training", [f"a loop of the study's own: {plain(configuration['run'])}"]),
            ("Seed", [f"{seed}; the loop receives seeds derived from this one"]),
        ]
    patience = configuration.get("patience")
    trained = [plain(configuration.get("training") or configuration.get("recipe"))]
    if patience is not None:
        without = f"without a better validation {results.measure.name}"
        trained.append(f"a run stops early after {plural(patience, 'evaluation')} {without}")
    return [
        ("Network", [plain(configuration.get("model"))]),
        ("Training", trained),
        ("Seed", [f"{seed}; splits, weights, order and masks are derived from it"]),
    ]


def again(results: Results) -> str:
    """State what repeating the commands reproduces."""
    return _AGAIN[origin(results)]


def _data(results: Results) -> str:
    """Describe the data and when the test data were used; empty if unknown."""
    given, sizes = results.protocol.configuration.get("data"), results.sizes
    name = given.get("name") if isinstance(given, Mapping) else given
    name = name or results.protocol.configuration.get("dataset")
    counts = ", ".join(f"{sizes[part]:,} to {verb}" for part, verb in _VERBS.items() if part in sizes)
    if origin(results) == OWN_LOOP:
        return ": ".join(str(each) for each in (name, counts) if each)
    is_best = results.protocol.configuration.get("keep") == "best"
    model = "best by validation" if is_best else "as it is after the last epoch"
    return f"{name or 'unknown'}{f': {counts}' if counts else ''}; the test data are evaluated with the model {model}"


_VERBS = {"train": "train on", "validation": "validate on", "test": "test on"}


def _sites(results: Results) -> list[str]:
    """Describe how much of the model's own dropout each method changed."""
    given = results.protocol.description.get("sites")
    found: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    lines = [f"{_shown(method)}: {text}" for method, text in found.items()]
    if "out of reach" in str(found.get("none", "")):
        lines.append("“No dropout” keeps the dropout that is out of reach")
    return lines


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
        f"{_shown(method)}: run{'' if len(runs) == 1 else 's'} {_ranges(runs)}" for method, runs in by_method.items()
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


def _noise(results: Results) -> list[str]:
    """Describe mean and strength of each method's mask."""
    found = []
    for method, of_it in {job.method: job.results for job in results.finished}.items():
        mean, strength = of_it.get("mean"), of_it.get("relative_variance")
        shown = "no mean recorded" if mean is None else f"mean {mean:.3g}"
        names = {labels.ORIGINAL: "as the model has it", labels.OWN: "as the study has it"}
        without = names.get(labels.split(method).name, "differs from unit to unit")
        noise = without if strength is None else f"{shown}, relative variance {strength:.3f}"
        found.append(f"{_shown(method)}: {noise}")
    return found


def _size(results: Results) -> Iterable[str]:
    record = results.protocol
    counts = {method: len(found) for method, found in results.errors().items()}
    planned = "Planned per method: " if origin(results) != ELSEWHERE else ""
    yield f"{planned}{sized(results, plural(_runs(results.final), 'run'))}"
    yield f"{plural(min(counts.values(), default=0), 'run')} finished by every method with results"
    for plan in amendments.plans(record.description):
        yield f"{plural(plan.runs, 'run')} planned on {moment(plan.time)}, {plural(plan.results, 'result')} there then"
    description = record.description
    if description.get("paper") and description.get("paper_runs"):
        yield (
            f"The paper's {description['paper']}: {plural(description['paper_runs'], 'run')}, here of "
            f"{plural(description['paper_epochs'], 'epoch')} with the preset “paper”"
        )


def _selection(results: Results) -> Iterable[str]:
    selection = results.protocol.configuration.get("selection") or {}
    candidates = selection.get("candidates") or {}
    if not candidates:
        if origin(results) == THE_LAB:
            yield "Nothing: all parameters were fixed beforehand"
        return
    runs = plural(selection.get("runs", 1), "run")
    if origin(results) == OWN_LOOP:
        yield f"By the validation values that its loop reported, in {runs} per candidate with separate seeds"
    else:
        epochs = at_most(results, selection.get("epochs", results.protocol.epochs))
        yield (
            f"On validation data only, by {runs} of {epochs} per candidate with separate seeds; test data were not used"
        )
    for label, variants in candidates.items():
        if label in results.selections:
            made = results.selections[label]
            yield f"{_shown(label)}: {in_full(made.variant) if made.variant else 'nothing'} ({made.reason})"
        elif label in results.methods:
            yield f"{_shown(label)}: not decided yet, out of {plural(len(variants), 'candidate')}"
    for label, source in (selection.get("follows") or {}).items():
        if label in results.methods:
            yield f"{_shown(label)} takes over what is selected for {labels.name_in_text(source)}"


def _methods(results: Results) -> Iterable[str]:
    """Yield each method's label on the command line and its parameters."""
    for method, variant in results.variants().items():
        trained = "" if variant == method else f", trained as {variant}"
        yield f"{_shown(method)}: on the command line {method}{trained}"


def _shown(method: str) -> str:
    return labels.display_name(method, longest=10_000)


def _runs(jobs: Iterable[JobRecord]) -> int:
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
    seconds = sum(job.seconds for job in jobs)
    first = min(job.started or 0 for job in jobs)
    last = max(job.ended or job.started or 0 for job in jobs)
    return f"{_duration(seconds)} of training, between {moment(first)} and {moment(last)}"


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
    parts: list[list[int]] = []
    for run in sorted(runs):
        if parts and run == parts[-1][-1] + 1:
            parts[-1].append(run)
        else:
            parts.append([run])
    return ", ".join(f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
