"""Read access to a store: everything is compared with its digest before it is used."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import operator
import os
import pathlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ...errors import UserError
from . import record, schema
from .blobs import BlobDirectory, Buffer, beside, is_reference
from .locks import Locks, check_place
from .schema import RUNNING, Epoch, JobRecord, ProtocolRecord, SelectionRecord

WEIGHTS = "weights"  # the artefact that is a reference to a file (.blobs)
_NPY_1 = b"\x93NUMPY\x01\x00"
_RECORDING = 0  # the lock of the process that writes the record; jobs are numbered from 1
_PATIENCE = 60.0  # seconds to wait for other processes that write
_RETRY = 0.02  # seconds
_EPOCHS = f"SELECT job, {', '.join(schema.EPOCH_COLUMNS)} FROM epochs "
_Reader = TypeVar("_Reader", bound="StoreReader")
_Record = TypeVar("_Record", ProtocolRecord, JobRecord, SelectionRecord)

_REMEDY = (
    "; run `contdrop check {path}`, and `contdrop export` for what can be read; then import an archive into another "
    "store, or move the file away and give the same command again, to start over"
)
_NO_STORE = "--store: expected a store of contdrop; {path} is none, or damaged ({text})" + _REMEDY
_NO_RIGHT = "--store: cannot write {path}: {text}; check its permissions"
_COUNTED = dict(zip(schema.COUNTS, ("jobs were planned", "selections were decided", "jobs had finished")))
_DIGESTED = {
    "experiment": "an experiment does not match its record",
    "selections": "a selection does not match its record",
    "results": "results are not those that were written",
}
_EXPLANATIONS = {  # by words of SQLite's
    "not a database": _NO_STORE,
    "malformed": _NO_STORE,
    "disk I/O": "cannot read or write {path}: {text}; {why}",
    "full": "cannot write {path}: {text}; make room, then give the same command again: nothing is lost",
    "readonly": _NO_RIGHT,
    "unable to open": _NO_RIGHT,
    "locked": "--store: {path} is in use by another process ({text}); try again when that has ended",
    "": "--store: {path} cannot be read, it may be damaged ({text})" + _REMEDY,
}


class DamageError(UserError):
    """Content of a store that is not what was written to it."""

    def __init__(self, path: pathlib.Path, what: str) -> None:
        super().__init__(f"--store: {path} is damaged: {what}; run `contdrop check {path}` for instructions")
        self.what = what


class StoreReader:
    """One process's connection to a store, for reading; a context manager.

    :class:`~contdrop.lab.store.writer.Store` adds everything that writes. Any number of processes may read while others
    write; :meth:`snapshot` gives several reads the same moment.
    """

    def __init__(self, path: pathlib.Path | str, *, create: bool = False) -> None:
        try:  # locks, record and weights lie beside the file itself
            self.path = pathlib.Path(path).resolve() if pathlib.Path(path).is_symlink() else pathlib.Path(path)
        except (OSError, RuntimeError) as error:
            raise UserError(f"--store: expected a file; {path} is a symbolic link to itself") from error
        self._check_path(create)
        is_new = not self.path.exists()
        directory = self.path.absolute().parent
        writable = create or (os.access(self.path, os.W_OK) and os.access(directory, os.W_OK))
        self.files = BlobDirectory(self.path)
        self.record = beside(self.path, record.NAME)
        self.locks = Locks(beside(self.path, "-locks") if writable else None)
        self._cache: dict[Any, Any] = {}  # verified content, as long as the file has this version
        self._cache_version = (0, 0)  # counts of changes by other connections and by this one
        with contextlib.ExitStack() as stack, self.explained():
            stack.callback(self.locks.close)
            address = self.path.absolute().as_uri() + ("" if writable else self._read_only_mode())
            self._db = sqlite3.connect(address, timeout=_PATIENCE, isolation_level=None, uri=True)
            stack.callback(self._db.close)
            self._db.row_factory = sqlite3.Row
            recorded = {} if is_new else record.read(self.record)  # first, as the store is never behind it
            if self._migrate(recorded) and writable:
                self.write_record()
            stack.pop_all()

    def _check_path(self, create: bool) -> None:
        directory = self.path.absolute().parent
        if create:
            check_place(self.path)
        if self.path.is_dir():
            raise UserError(f"--store: expected a file; {self.path} is a directory")
        if not create and not self.path.exists():
            raise UserError(
                f"--store: there is no store {self.path}; name another, or make it by: contdrop run digits-mlp"
            )
        if not directory.is_dir():
            raise UserError(f"--store: there is no directory {directory}; make it first")

    def _has_log(self) -> bool:
        return (log := beside(self.path, "-wal")).exists() and log.stat().st_size > 0

    def _read_only_mode(self) -> str:
        """Return how SQLite opens a file that cannot be written to: without a log unless some process has one."""
        return "?mode=ro" if self._has_log() else "?immutable=1"

    def _migrate(self, recorded: record.Record) -> bool:
        """Migrate the file to the current version in one transaction; refuse one of another program or version.

        A file that is behind what was ``recorded`` is refused, too. Returns True if it is ahead of that.
        """
        with self.snapshot():
            version = self._check_version()
            wrong = schema.wrong_tables(self._db)
            if version == schema.VERSION and wrong:
                raise DamageError(self.path, f"the table {wrong[0]} does not have its columns")
            is_ahead = record.check(recorded, self._db, self.path, has_records=not wrong)
        if version < schema.VERSION:
            self._begin_log()
            with self.transaction():  # read again: another process may have been quicker
                schema.migrate(self._db, self._pragma("user_version"))
        self._db.execute("PRAGMA foreign_keys = ON")
        return is_ahead

    def _check_version(self) -> int:
        application = self._pragma("application_id")
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != schema.APPLICATION and tables:
            raise UserError(f"--store: expected a store of contdrop; {self.path} is a database of another program")
        version = self._pragma("user_version")
        if version not in (0, *schema.READABLE):
            other = "a newer contdrop" if version > schema.VERSION else "the contdrop that wrote it"
            *older, newest = map(str, schema.READABLE)
            raise UserError(
                f"--store: expected version {', '.join(older)} or {newest} of a store; {self.path} has version "
                f"{version}; install {other}"
            )
        return version

    def _begin_log(self) -> None:
        """Put the file into WAL mode, for which SQLite itself does not wait until another process has done so."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(_RETRY)

    def _pragma(self, name: str) -> int:
        with self.explained():
            return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def write_record(self) -> None:
        """Write what the store holds to its record, one process after another."""
        with self.locks.waiting(_RECORDING), self.explained():
            record.write(record.of_store(self._db), self.record)

    def differs_from_record(self) -> bool:
        """Return True if the store has something else than its record of the same time."""
        with self.explained():
            return record.differs(record.read(self.record), self._db)

    def copy(self, path: pathlib.Path) -> None:
        """Copy the database, which others may be writing, to a new file."""
        with self.explained(), contextlib.closing(sqlite3.connect(path)) as other:
            self._db.backup(other)

    def close(self) -> None:
        """Close the file, and give up the locks of this connection."""
        self.locks.close()
        self._db.close()

    def __enter__(self: _Reader) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Convert SQLite's errors about a bad file or a full disk into one line for the user."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # mistakes of this package
        # The last three occur where a damaged file makes SQLite return nonsense, or ask for too much memory.
        except (sqlite3.DatabaseError, sqlite3.InterfaceError, UnicodeDecodeError, MemoryError) as error:
            text = str(error)
            explanation = next(explanation for words, explanation in _EXPLANATIONS.items() if words in text)
            why = self._why_io_failed()
            raise UserError(explanation.format(path=self.path, text=text, why=why)) from error

    def _why_io_failed(self) -> str:
        """Tell a log that was deleted under a process, after which another makes an empty one, from a broken disk."""
        if self.path.is_file() and not self._has_log():
            return (
                f"{self.path.name}-wal, which belongs to it, was deleted while a process used it: let that process end "
                "by itself or with Ctrl-C, then try again"
            )
        return "check the disk, then give the same command again: everything that was written completely is kept"

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Hold the right to write; commit at the end, or undo everything if an exception is raised.

        Only what is ``durable`` is sure to survive a power failure at once.
        """
        with self.explained():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            self._forget_if_changed(by_others=True)
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._cache.clear()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything as of one moment, so that rows and checksums agree whatever other processes write.

        Within another snapshot or a transaction, the moment is that one's.
        """
        is_outer = not self._db.in_transaction
        if is_outer:
            with self.explained():
                self._db.execute("BEGIN")
            self._forget_if_changed(by_others=True)
        try:
            yield
        finally:
            if is_outer and self._db.in_transaction:  # SQLite ends it by itself when it cannot read
                self._db.execute("ROLLBACK")

    def _forget_if_changed(self, *, by_others: bool) -> None:
        """Clear the cache if the file has changed; ``by_others`` is False within a transaction, where they cannot."""
        others = self._pragma("data_version") if by_others else self._cache_version[0]
        version = others, self._db.total_changes
        if version != self._cache_version:
            self._cache.clear()
            self._cache_version = version

    # ---- rows

    def read(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query, unverified."""
        with self.explained():
            return self._db.execute(query, values).fetchall()

    def _record(self, kind: type[_Record], row: sqlite3.Row) -> _Record:
        content = {name: row[name] for name in kind.__dataclass_fields__}
        plain = schema.JSON_COLUMNS & content.keys()
        return kind(**content | {name: json.loads(content[name]) if content[name] else {} for name in plain})

    def job_record(self, row: sqlite3.Row) -> JobRecord:
        """Return the record of a row of ``jobs``."""
        return self._record(JobRecord, self._verified_job(row))

    def _verified_job(self, row: sqlite3.Row) -> sqlite3.Row:
        def verified() -> sqlite3.Row:
            if not schema.is_intact(row):
                raise DamageError(self.path, f"job {row['id']} does not match its checksum")
            return row

        # Outside a transaction, the file may have changed since the row was read.
        found: sqlite3.Row = self._cached(("row", row["id"]), verified) if self._db.in_transaction else verified()
        return found

    def job_row(self, job: int) -> sqlite3.Row:
        """Return the verified row of a job."""
        found: sqlite3.Row = self._cached(
            ("row", job), lambda: self._verified_job(*self.read("SELECT * FROM jobs WHERE id = ?", (job,)))
        )
        return found

    def _cached(self, key: Any, read: Callable[[], Any]) -> Any:
        """Return what ``read`` returns, which is called again only after the file has changed."""
        self._forget_if_changed(by_others=not self._db.in_transaction)
        if key not in self._cache:
            self._cache[key] = read()
        return self._cache[key]

    def protocols(self) -> list[ProtocolRecord]:
        """Return all protocols in the order in which they were first planned."""
        with self.snapshot():
            rows = self.read("SELECT * FROM protocols ORDER BY created, rowid")
            self._check_orphans()
        return [self.protocol_record(row) for row in rows]

    def protocol_record(self, row: sqlite3.Row) -> ProtocolRecord:
        """Return the record of a row of ``protocols``."""
        if not schema.is_intact_protocol(row):
            raise DamageError(self.path, _DIGESTED["experiment"])
        return self._record(ProtocolRecord, row)

    def protocol_row(self, key: str) -> sqlite3.Row | None:
        """Return the row of a protocol, unverified; None if there is none."""
        return next(iter(self.read("SELECT * FROM protocols WHERE key = ?", (key,))), None)

    def _check_orphans(self, protocol: str | None = None) -> None:
        query = (
            "SELECT count(*) FROM jobs WHERE protocol NOT IN (SELECT key FROM protocols) AND ifnull(protocol = ?, true)"
        )
        ((orphans,),) = self.read(query, (protocol,))
        if orphans:
            raise DamageError(self.path, f"the experiment of {orphans} jobs is missing")

    def check_totals(self, protocol: str | None = None) -> None:
        """Raise :class:`DamageError` if jobs or selections of a protocol, or of any, were lost or exchanged."""
        with self.snapshot():
            self._check_orphans(protocol)
            for row in self.read("SELECT * FROM protocols WHERE ifnull(key = ?, true)", (protocol,)):
                if wrong := self.unlike_record(row):
                    raise DamageError(self.path, next(iter(wrong.values())))

    def unlike_record(self, row: sqlite3.Row) -> dict[str, str]:
        """Return the parts of a protocol that differ from its record, with a text about each."""
        stated = schema.parse_record(row["record"]) or schema.RECORD
        with self.explained():
            found = self._cached(("totals", row["key"]), functools.partial(schema.totals, self._db, row["key"]))
        return {
            name: _DIGESTED.get(name) or f"{stated[name]} {_COUNTED[name]}, and {value} are there"
            for name, value in found.items()
            if stated[name] != value
        }

    def jobs(self, *, protocol: str | None = None, ids: Sequence[int] | None = None) -> list[JobRecord]:
        """Return jobs in the order of the plan: all, those of a protocol, or those with certain numbers."""
        with self.snapshot():
            rows = self.read(
                "SELECT * FROM jobs WHERE (:protocol IS NULL OR protocol = :protocol) "
                "AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids))) ORDER BY id",
                {"protocol": protocol, "ids": None if ids is None else json.dumps(list(ids))},
            )
            if ids is None:
                self.check_totals(protocol)
            return [self.job_record(row) for row in rows]

    def jobs_of_damaged_plan(self, protocol: str) -> list[JobRecord]:
        """Return the jobs of a protocol whose own row may be damaged or missing."""
        return self.jobs(ids=[row["id"] for row in self.read("SELECT id FROM jobs WHERE protocol = ?", (protocol,))])

    def job(self, job_id: int) -> JobRecord:
        """Return one job."""
        return self.jobs(ids=[job_id])[0]

    def statuses(self) -> dict[int, str]:
        """Return the status of every job, unverified; much cheaper than :meth:`jobs`."""
        return dict(self.read("SELECT id, status FROM jobs"))  # type: ignore[arg-type]

    def status(self, job: int) -> str:
        """Return the status of a job, unverified."""
        return str(self.read("SELECT status FROM jobs WHERE id = ?", (job,))[0]["status"])

    def job_checksums(self) -> dict[int, str]:
        """Return the checksum of every job; while it stays the same, so does everything that was read of the job."""
        return dict(self.read("SELECT id, checksum FROM jobs ORDER BY id"))  # type: ignore[arg-type]

    def is_interrupted(self, job: JobRecord) -> bool:
        """Return True for a job that was running when its process ended."""
        return job.status == RUNNING and not self.locks.is_held(job.id)

    def selections(self, protocol: str) -> dict[str, SelectionRecord]:
        """Return the parameter selections of a protocol, keyed by method."""
        with self.snapshot():
            rows = self.read("SELECT * FROM selections WHERE protocol = ? ORDER BY method", (protocol,))
            self.check_totals(protocol)
        return {row["method"]: self._record(SelectionRecord, row) for row in rows}

    # ---- what belongs to a job

    def epochs(self, job: int) -> list[Epoch]:
        """Return the epochs of a job."""
        with self.snapshot():
            rows = self.read(_EPOCHS + "WHERE job = ? ORDER BY epoch", (job,))
            return self._curve(self.job_row(job), rows)

    def _curve(self, job: sqlite3.Row, rows: Sequence[sqlite3.Row]) -> list[Epoch]:
        epochs = [Epoch._make(tuple(row)[1:]) for row in rows]
        if schema.curve_digest(epochs) != job["curve"]:
            raise DamageError(self.path, f"the epochs of job {job['id']} do not match their checksum")
        return epochs

    def curves(self, protocol: str) -> dict[int, list[Epoch]]:
        """Return the epochs of all jobs of a protocol, by job; jobs without epochs are left out."""
        found: dict[str, dict[int, list[Epoch]]] = self._cached("curves", dict)
        if protocol not in found:
            found.clear()  # those of many protocols may be too large
            with self.snapshot():
                jobs = self.read("SELECT * FROM jobs WHERE protocol = ? ORDER BY id", (protocol,))
                query = _EPOCHS + "WHERE job IN (SELECT id FROM jobs WHERE protocol = ?) ORDER BY job, epoch"
                rows = itertools.groupby(self.read(query, (protocol,)), key=operator.itemgetter(0))
                by_job = {job: list(group) for job, group in rows}
                curves = {job["id"]: self._curve(self._verified_job(job), by_job.get(job["id"], [])) for job in jobs}
            found[protocol] = {job: epochs for job, epochs in curves.items() if epochs}
        return found[protocol]

    def artefact_digests(self, job: int) -> dict[str, str]:
        """Return the checksum of each array of a job; weights, which are no array, are left out."""
        return {name: checksum for name, checksum in self._digests(job).items() if name != WEIGHTS}

    def _digests(self, job: int) -> dict[str, str]:
        found: dict[str, str] = self._cached(job, lambda: json.loads(self.job_row(job)["artefacts"]))
        return found

    def artefact(self, job: int, name: str) -> np.ndarray | None:
        """Return an array of a job; None if the job has none of that name."""
        content = self._content(job, name)
        return None if content is None else unpack(content)

    def _content(self, job: int, name: str) -> bytes | None:
        if not self._db.in_transaction:
            with self.snapshot():
                return self._content(job, name)
        expected = self._digests(job).get(name)
        if expected is None:
            return None
        rows = self.read("SELECT content FROM artefacts WHERE job = ? AND name = ?", (job, name))
        content = rows[0]["content"] if rows else None
        if not isinstance(content, bytes) or schema.digest_bytes(content) != expected:
            raise DamageError(self.path, f"{name} of job {job} does not match its checksum")
        return content

    def weights(self, job: int) -> Buffer | None:
        """Return the weights of a job's final model; None if they were not kept."""
        reference = self._content(job, WEIGHTS)
        found = reference and self.files.get(reference)
        if reference and not found:
            raise DamageError(self.path, f"the weights of job {job} in {self.files.directory.name} are gone or changed")
        return found or None

    def checkpoint(self, job: int) -> tuple[int, Buffer] | None:
        """Return the last saved epoch and the state after it; None if there is none, or it is damaged."""
        with self.snapshot():
            row = self.job_row(job)
            rows = self.read("SELECT epoch, state FROM checkpoints WHERE job = ?", (job,))
        for epoch, state in rows:
            intact = isinstance(state, bytes) and schema.checkpoint_digest(epoch, state) == row["checkpoint"]
            if intact and epoch == row["epochs_done"]:
                content = self.files.get(state) if is_reference(state) else state
                return None if content is None else (epoch, content)
        return None

    def find_damage(self, row: sqlite3.Row) -> str | None:
        """Return what is wrong with a row of ``jobs``, or with that job's epochs and arrays; None if nothing is."""
        try:
            job = self.job_record(row)
            if job.epochs_done != len(self.epochs(job.id)):
                return f"job {job.id} has {len(self.epochs(job.id))} epochs, and {job.epochs_done} were done"
            for name in self.artefact_digests(job.id):
                self.artefact(job.id, name)
        except DamageError as error:
            return error.what
        return None


def pack(array: np.ndarray) -> bytes:
    """Return the bytes of an array as in a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def unpack(content: bytes) -> np.ndarray:
    """Return a read-only array from the bytes of a .npy file.

    Unlike ``np.load``, which parses the header each time, this is fast for ten thousand arrays of a few shapes.
    """
    end = 10 + int.from_bytes(content[8:10], "little")
    if content[:8] != _NPY_1:
        array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
        return array
    shape, is_fortran, kind = _header(content[8:end])
    if kind.hasobject:
        raise ValueError("expected an array of numbers; got one of objects, which is not read")
    return np.ndarray(shape, kind, content, end, order="F" if is_fortran else "C")


@functools.lru_cache(maxsize=64)
def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_1_0(io.BytesIO(content))
