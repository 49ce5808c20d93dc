"""Archive of a store: compressed text for version control and for other machines.

An archive is a gzipped file of JSON lines: a header; protocols; selections; jobs with their epochs; arrays, each once,
as base64 of their little-endian bytes (predictions as their difference from the labels, which is small); an end. Every
line has the SHA-256 of the rest of it, and the end has that of all lines before it, so damage is found before anything
is used. The same store gives the same bytes. Nothing is pickled. Checkpoints are left out: a job that was
running starts over.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import math
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from ..._files import replacing
from ..._text import printable
from ...errors import UserError
from ..analysis.metric_format import Measure
from .reader import StoreReader
from .schema import FAILED, FINISHED, PLANNED, Epoch, JobRecord, ProtocolRecord, SelectionRecord
from .writer import Store


@dataclass(frozen=True, eq=False)
class JobContents:
    """Job with its epochs and arrays."""

    job: JobRecord
    epochs: tuple[Epoch, ...]
    artefacts: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class StoreContents:
    """Contents of a store in the order of its plan. A job that is running counts as planned, for it starts over."""

    protocols: tuple[ProtocolRecord, ...]
    selections: tuple[SelectionRecord, ...]
    jobs: tuple[JobContents, ...]


def read_store(store: StoreReader) -> StoreContents:
    """Return everything that a store holds at one moment, with every checksum verified."""
    with store.snapshot():
        protocols = tuple(store.protocols())
        jobs = []
        for job in store.jobs():
            if job.status not in (FINISHED, FAILED):
                jobs.append(JobContents(as_planned(job), (), {}))
                continue
            artefacts = {name: store.artefact(job.id, name) for name in store.artefact_digests(job.id)}
            kept = {name: array for name, array in artefacts.items() if array is not None}
            jobs.append(JobContents(job, tuple(store.epochs(job.id)), kept))
        selections = [each for protocol in protocols for each in store.selections(protocol.key).values()]
    return StoreContents(protocols, tuple(selections), tuple(jobs))


def reduced(contents: StoreContents) -> StoreContents:
    """Return contents without the contributions of test examples that no verdict, interval or check reads.

    These read the metric that methods are compared by; errors are computed from predictions and labels where these are
    kept. The means of all metrics stay.
    """
    protocols = {protocol.key: protocol for protocol in contents.protocols}
    return replace(contents, jobs=tuple(_reduced_job(job, protocols[job.job.protocol]) for job in contents.jobs))


def _reduced_job(content: JobContents, protocol: ProtocolRecord) -> JobContents:
    measure, kept = Measure.of(protocol.description), content.artefacts
    superfluous = {f"test_{name}" for name in protocol.configuration.get("metric", ())}
    if not (measure.is_error and _follows_from_classes(kept)):
        superfluous.discard(f"test_{measure.name}")
    return replace(content, artefacts={name: kept[name] for name in kept if name not in superfluous})


def _follows_from_classes(artefacts: Mapping[str, np.ndarray]) -> bool:
    """Return True if errors follow from predictions and labels; a study may define a weighted error."""
    predictions, labels = (artefacts.get(f"test_{name}") for name in ("predictions", "labels"))
    if predictions is None or labels is None:
        return False
    errors = artefacts.get("test_error")
    return errors is None or np.array_equal(errors, np.where(predictions == labels, 0.0, 100.0))


def as_planned(job: JobRecord) -> JobRecord:
    """Return a job as it was planned."""
    return replace(
        job, status=PLANNED, error=None, variant=None, seeds={}, fingerprints={}, versions={}, machine={}, results={},
        started=None, ended=None, epochs_done=0, seconds=0.0,
    )  # fmt: skip


VERSION = 2
MAGIC = b"\x1f\x8b"
LIMIT = 1 << 31  # bytes of text: no compressed bomb fills the memory
_LONGEST = 1 << 28  # bytes of a line: an array of 200 MB
_HEADER = 4096  # bytes of the first line, at most
# Parsed JSON takes twenty times the memory of its text, except arrays. Text compresses to a fifth; a file that is much
# smaller is a decompression bomb.
_PLAIN, _RATIO = 1 << 23, 50
_ARRAY = b'{"data":"'  # how the line of an array begins, for names are sorted
_BESIDE = 4096  # bytes of an array's line after its data, at most
_PREDICTIONS, _LABELS = "test_predictions", "test_labels"
_LEFT_OUT = ("id", "epochs_done", "seconds")  # of a job, because it follows from the rest


def write(contents: StoreContents, path: pathlib.Path) -> None:
    """Write an archive, which replaces the file at once when it is complete."""
    lines = [_line(record) for record in _records(contents)]
    text = b"".join(lines)
    text += _line({"record": "end", "lines": len(lines), "all": hashlib.sha256(text).hexdigest()})
    packed = gzip.compress(text, 9, mtime=0)
    try:
        allowance = _Allowance(len(packed))
        for line in lines:
            allowance.take(line)
        with replacing(path, durable=True) as temporary:
            temporary.write_bytes(packed)
    except ValueError as error:  # the limits of reading, found now
        raise UserError(f"--archive: cannot write {path}: {error}; leave out what can be by --small") from error
    except OSError as error:
        raise UserError(f"--archive: cannot write {path}: {error.strerror}; choose another place") from error


def _records(contents: StoreContents) -> Iterator[dict[str, Any]]:
    yield {"record": "contdrop archive", "version": VERSION}
    for protocol in contents.protocols:
        yield {"record": "protocol", **vars(protocol)}
    for selection in contents.selections:
        yield {"record": "selection", **vars(selection)}
    arrays: dict[str, np.ndarray] = {}
    bases: dict[str, str] = {}
    for content in contents.jobs:
        ids = {name: _id(array) for name, array in content.artefacts.items()}
        arrays |= {ids[name]: array for name, array in content.artefacts.items()}
        if _alike(content.artefacts.get(_PREDICTIONS), content.artefacts.get(_LABELS)):
            bases[ids[_PREDICTIONS]] = ids[_LABELS]
        job = {name: value for name, value in vars(content.job).items() if name not in _LEFT_OUT}
        yield {"record": "job", **job, "curve": content.epochs, "artefacts": ids}
    for number, array in sorted(arrays.items()):
        base = bases.get(number, number)
        little = _little(array if base == number else array ^ arrays[base])
        data = base64.b64encode(little.tobytes()).decode()
        record = {"record": "array", "id": number, "dtype": little.dtype.str, "shape": list(array.shape), "data": data}
        yield record if base == number else {**record, "xor": base}


def _alike(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Return True if an array of integers can be written as its difference from another."""
    if first is None or second is None or first.dtype.kind != "i":
        return False
    return (first.dtype, first.shape) == (second.dtype, second.shape) and not np.array_equal(first, second)


def _little(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(array.shape)


def _id(array: np.ndarray) -> str:
    little = _little(array)
    return hashlib.sha256(f"{little.dtype.str} {array.shape} ".encode() + little.tobytes()).hexdigest()


def _line(record: dict[str, Any]) -> bytes:
    return (_text({**record, "sha256": hashlib.sha256(_text(record)).hexdigest()})) + b"\n"


def _text(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def read(path: pathlib.Path) -> StoreContents:
    """Return the contents of an archive; raise UserError, and nothing else, if it is none or not complete."""
    try:
        return _contents(_read_records(path))
    except EOFError as error:
        raise UserError(f"{path}: truncated, it ends in the middle; get it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged ({error}); get it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise UserError(
            f"{path}: expected an archive that fits into memory; it does not; read it on a larger machine, or ask for "
            "one by: contdrop export --small"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        reason = printable(str(error)[:200]) or "its contents are invalid"  # may quote the file
        raise UserError(f"{path}: expected a complete archive of contdrop; {reason}") from error


class _Allowance:
    """Limit of the text that a file may hold."""

    def __init__(self, size: int) -> None:
        self._left, self._plain = LIMIT, max(_PLAIN, _RATIO * size)

    def line(self, file: gzip.GzipFile) -> bytes:
        """Return the next line, of which no more is read than allowed."""
        line = file.readline(min(self._plain, _LONGEST) + 1)
        if not line.endswith(b"\n") and _is_array(line):
            line += file.readline(_LONGEST + 1 - len(line))
        self.take(line)
        return line

    def take(self, line: bytes) -> None:
        """Count a line; raise ValueError if it is more than allowed."""
        self._left -= len(line)
        self._plain -= 0 if _is_array(line) else len(line)
        if len(line) > _LONGEST:
            raise ValueError(f"a line of it has more than {_LONGEST:,} bytes")
        if self._left < 0:
            raise ValueError(f"it holds more than {LIMIT:,} bytes")
        if self._plain < 0:
            raise ValueError("it holds more text than a file of its size should")


def _is_array(line: bytes) -> bool:
    """Return True for (the start of) a line with one long text and little else, which takes its own size in memory."""
    end = line.find(b'"', len(_ARRAY))
    return line.startswith(_ARRAY) and (end < 0 or len(line) - end <= _BESIDE)


def _read_records(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    digest, number, last = hashlib.sha256(), 0, None
    allowance = _Allowance(path.stat().st_size)
    with gzip.open(path, "rb") as file:
        while line := allowance.line(file) if number else file.readline(_HEADER):
            number += 1
            if number == 1 and not line.endswith(b"\n"):
                raise ValueError(f"its first line is not that of version {VERSION}")
            if last == "end":
                raise ValueError("lines follow its end")
            record = json.loads(line)
            claimed = record.pop("sha256")
            if hashlib.sha256(_text(record)).hexdigest() != claimed:
                raise ValueError(f"line {number} does not match its checksum")
            last = record["record"]
            if number == 1 and (last != "contdrop archive" or record.get("version") != VERSION):
                raise ValueError(f"its first line is not that of version {VERSION}")
            if last == "end" and (record["lines"], record["all"]) != (number - 1, digest.hexdigest()):
                raise ValueError("lines are missing or changed")
            digest.update(line)
            yield record
    if last != "end":
        raise ValueError("its end is missing")


def _contents(records: Iterable[dict[str, Any]]) -> StoreContents:
    kinds = {"protocol": ProtocolRecord, "selection": SelectionRecord}
    found: dict[str, list[Any]] = {"protocol": [], "selection": [], "job": []}
    arrays: dict[str, np.ndarray] = {}
    bases: dict[str, str] = {}
    for record in records:
        kind = record.pop("record")
        if kind in kinds:
            found[kind].append(_made(kinds[kind], record))
        elif kind == "job":
            found[kind].append(record)
        elif kind == "array":  # at once: as text it takes more
            arrays[record["id"]] = _decoded(record)
            bases |= {record["id"]: record["xor"]} if "xor" in record else {}
    for number, base in bases.items():
        if base in bases:
            raise ValueError("an array differs from one that differs itself")
        arrays[number] = _differing(arrays[number], arrays[base])
    jobs = tuple(_job(record, arrays) for record in found["job"])
    return StoreContents(tuple(found["protocol"]), tuple(found["selection"]), jobs)


def _job(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> JobContents:
    epochs = tuple(_made(Epoch, dict(zip(Epoch._fields, row, strict=True))) for row in record.pop("curve"))
    artefacts = {str(name): arrays[number] for name, number in record.pop("artefacts").items()}
    seconds = math.fsum(epoch.seconds for epoch in epochs)
    job = _made(JobRecord, {**record, "id": 0, "epochs_done": len(epochs), "seconds": seconds})
    if job.status not in (PLANNED, FINISHED, FAILED):
        raise ValueError(f"a job's status is {job.status!r}")
    return JobContents(job, epochs, artefacts)


@functools.cache
def _types(kind: type) -> dict[str, tuple[type, ...]]:
    """Return the types that each field of a record may have."""
    hints = get_type_hints(kind).items()
    unions = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints}
    return {name: tuple(get_origin(each) or each for each in union) for name, union in unions.items()}


def _made(kind: Any, record: dict[str, Any]) -> Any:
    """Return a record whose fields have their declared types; JSON may have an integer for a float."""
    for name, types in _types(kind).items():
        found = type(record[name])
        if found not in types and not (found is int and float in types):
            expected = " or ".join(each.__name__ for each in types)
            raise ValueError(f"{kind.__name__}.{name}: expected {expected}, got {found.__name__}")
    return kind(**record)


def _differing(array: np.ndarray, base: np.ndarray) -> np.ndarray:
    if (array.dtype, array.shape) != (base.dtype, base.shape):  # broadcasting could fill the memory
        raise ValueError("an array differs in shape or type from what it is written by")
    made: np.ndarray = array ^ base
    return made


def _decoded(record: dict[str, Any]) -> np.ndarray:
    kind = np.dtype(record["dtype"])
    if kind.kind not in "iufb":
        raise ValueError(f"an array of {kind} is none of numbers")
    made = np.frombuffer(base64.b64decode(record["data"], validate=True), kind).reshape(record["shape"])
    return made.astype(kind.newbyteorder("="))


def export(store: pathlib.Path, target: pathlib.Path, *, small: bool = False) -> int:
    """Write an archive of a store, complete or reduced to what reports need; return the number of its jobs."""
    if target.exists() and target.read_bytes()[:2] != MAGIC:
        raise UserError(f"--archive: expected an archive or a new name; {target} is another file; choose another name")
    with Store(store) as opened:
        found = read_store(opened)
    write(reduced(found) if small else found, target)
    return len(found.jobs)
