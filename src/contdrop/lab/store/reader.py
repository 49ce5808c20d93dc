"""Reading a store: every row is held against its checksum before anything is made of it."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pathlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ...errors import UserError
from . import blobs, schema
from .blobs import BlobDirectory, Buffer
from .locks import Locks
from .schema import (
    EMPTY_CURVE,
    RUNNING,
    Epoch,
    JobRecord,
    ProtocolRecord,
    SelectionRecord,
    digest_bytes,
    extend_curve,
    row_checksum,
)

_VERSION_1 = b"\x93NUMPY\x01\x00"
WEIGHTS = "weights"  # the artefact that is a reference to a file (.sidecar)
_PATIENCE = 60.0  # seconds, for whoever else has the file
_RETRY = 0.02  # seconds
_JSON = ("configuration", "seeds", "fingerprints", "versions", "machine", "results")
_Record = TypeVar("_Record", ProtocolRecord, JobRecord, SelectionRecord)
_EPOCHS = f"SELECT job, {', '.join(schema.EPOCH_COLUMNS)} FROM epochs "


class DamageError(UserError):
    """What a store holds is not what was written to it."""

    def __init__(self, path: pathlib.Path, what: str) -> None:
        super().__init__(f"--store: {path} is damaged: {what}; what to do says: contdrop check {path}")
        self.what = what


class StoreReader:
    """One process's connection to the file; a context manager."""

    def __init__(self, path: pathlib.Path | str, *, create: bool = False) -> None:
        self.path = pathlib.Path(path)
        if self.path.is_symlink():  # locks, copies and weights lie beside the file itself
            self.path = self.path.resolve()
        if self.path.is_dir():
            raise UserError(f"--store: expected a file; {self.path} is a directory")
        if not self.path.exists():
            if not create:
                raise UserError(
                    f"--store: there is no store {self.path}; name another, or make it by: contdrop run digits-mlp"
                )
            if not self.path.absolute().parent.is_dir():
                raise UserError(f"--store: there is no directory {self.path.absolute().parent}; make it first")
        writable = create or (os.access(self.path, os.W_OK) and os.access(self.path.absolute().parent, os.W_OK))
        address = self.path.absolute().as_uri() + ("" if writable else self._as_it_is())
        self.files = BlobDirectory(self.path)
        self.locks = Locks(self.path.with_name(self.path.name + "-locks") if writable else None)
        self._found: dict[Any, Any] = {}  # verified, of the file as it was when it had this version
        self._found_in: object = None
        if create:
            self._prepare()
        with contextlib.ExitStack() as stack, self._explained():
            stack.callback(self.locks.close)
            self._db = sqlite3.connect(address, timeout=_PATIENCE, isolation_level=None, uri=True)
            stack.callback(self._db.close)
            self._db.row_factory = sqlite3.Row
            self._migrate()
            stack.pop_all()

    def _prepare(self) -> None:
        """Makes sure that the file can be written to and read."""

    def _as_it_is(self) -> str:
        """How SQLite has to open a file that cannot be written to.

        Without the right to write beside it, it opens one in WAL mode only if told that nobody changes it, and then
        looks at no log. Where there is a log, somebody has the store open, whose shared memory it can use.
        """
        log = self.path.with_name(self.path.name + "-wal")
        return "?mode=ro" if log.exists() and log.stat().st_size else "?immutable=1"

    def _migrate(self) -> None:
        """Brings the file to the newest version, in one transaction, unless it is not ours or newer than we are."""
        with self.snapshot():
            version = self._check_kind()
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA synchronous = NORMAL")
        if version < len(schema.MIGRATIONS):
            self._begin_log()
            with self.transaction():
                schema.migrate(self._db, self._version())  # read again: another process may have been quicker
        for table, expected in schema.expected_columns(schema.MIGRATIONS).items():
            if schema.columns(self._db, table) != expected:
                raise DamageError(self.path, f"the table {table} is not as it was made")

    def _check_kind(self) -> int:
        """The file's version; refuses a file that is not ours, or newer than we are."""
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != schema.APPLICATION and tables:
            raise UserError(f"--store: expected a store of contdrop; {self.path} is a database of another program")
        version, newest = self._version(), len(schema.MIGRATIONS)
        if not 0 <= version <= newest:
            raise UserError(
                f"--store: {self.path} has version {version}, and this contdrop knows versions up to {newest}; install "
                "a newer contdrop"
            )
        return version

    def _begin_log(self) -> None:
        """Puts the file into WAL mode, once nobody else is just doing that.

        SQLite waits by itself for everything else; here it refuses at once, because two that wait would do so for ever.
        """
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(_RETRY)

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def close(self) -> None:
        self.locks.close()
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what SQLite says about a bad file or a full disk into a line for the user."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # ours to mend
        # The last two where a damaged file makes SQLite talk nonsense, or ask for more memory than there is.
        except (sqlite3.DatabaseError, sqlite3.InterfaceError, UnicodeDecodeError, MemoryError) as error:
            raise UserError(self._explanation(str(error))) from error

    def _explanation(self, text: str) -> str:
        if "not a database" in text or "malformed" in text:
            return f"--store: expected a store of contdrop; {self.path} is none, or damaged ({text})"
        if "disk I/O" in text:
            return f"cannot read or write {self.path}: {text}; {self._why_io_failed()}"
        if "full" in text:
            return f"cannot write {self.path}: {text}; make room, then give the same command again: nothing is lost"
        if "readonly" in text or "unable to open" in text:
            return f"--store: cannot write {self.path}: {text}; check its permissions"
        if "locked" in text:
            return f"--store: {self.path} is in use by another process ({text}); try again when that has ended"
        return f"--store: {self.path} cannot be read, it may be damaged ({text})"

    def _why_io_failed(self) -> str:
        """SQLite says the same of a broken disk and of a log that was deleted under a process that uses it.

        In that case whoever opens the store next makes an empty log, which is not the one that the others write to.
        """
        log = self.path.with_name(self.path.name + "-wal")
        if self.path.is_file() and (not log.exists() or not log.stat().st_size):
            return (
                f"{log.name}, which belongs to it, was deleted while a process used it: let that process end by itself "
                "or with Ctrl-C, then try again"
            )
        return "check the disk, then give the same command again: what was written whole is kept"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._found.clear()

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """All that is read meanwhile is of one moment: rows and checksums fit, whatever others write.

        Within a snapshot or a transaction, that one's moment.
        """
        return contextlib.nullcontext() if self._db.in_transaction else self._moment()

    @contextlib.contextmanager
    def _moment(self) -> Iterator[None]:
        with self._explained():
            self._db.execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:  # SQLite ends it by itself when it cannot read
                self._db.execute("ROLLBACK")

    def _read(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        with self._explained():
            return self._db.execute(query, values).fetchall()

    def _once(self, key: Any, read: Callable[[], Any]) -> Any:
        """What ``read`` returns, without a second look until somebody changes the file."""
        (version,) = self._read("PRAGMA data_version")[0]
        if version != self._found_in:
            self._found.clear()
            self._found_in = version
        if key not in self._found:
            self._found[key] = read()
        return self._found[key]

    def _verified(self, row: sqlite3.Row, what: str) -> sqlite3.Row:
        if row["checksum"] != row_checksum(row):
            raise DamageError(self.path, f"{what} does not match its checksum")
        return row

    def _record(self, kind: type[_Record], row: sqlite3.Row, what: str, plain: Sequence[str]) -> _Record:
        """What a row stands for; these of its columns have JSON, or nothing."""
        self._verified(row, what)
        content = {name: row[name] for name in kind.__dataclass_fields__}
        return kind(**content | {name: json.loads(content[name]) if content[name] else {} for name in plain})

    def _row(self, job: int) -> sqlite3.Row:
        """Of a job, as the table has it."""
        (row,) = self._read("SELECT * FROM jobs WHERE id = ?", (job,))
        return self._verified(row, f"job {job}")

    def protocols(self) -> list[ProtocolRecord]:
        """In the order in which they were first planned."""
        with self.snapshot():
            rows = self._read("SELECT * FROM protocols ORDER BY created, rowid")
            self._count("protocols", len(rows))
        return [self._record(ProtocolRecord, row, "an experiment", ("configuration", "description")) for row in rows]

    def _count(self, table: str, found: int) -> None:
        rows = self._read("SELECT * FROM totals")
        noted = [self._verified(row, "the number of rows")[table] for row in rows]
        if len(noted) > 1 or found != sum(noted):
            raise DamageError(self.path, f"{table} has {found} rows, and {sum(noted)} were written")

    def jobs(self, *, protocol: str | None = None, ids: Sequence[int] | None = None) -> list[JobRecord]:
        """In the order of the plan."""
        wanted = None if ids is None else json.dumps(list(ids))
        with self.snapshot():
            rows = self._read(
                "SELECT * FROM jobs WHERE (:protocol IS NULL OR protocol = :protocol) "
                "AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids))) ORDER BY id",
                {"protocol": protocol, "ids": wanted},
            )
            if ids is None:
                self._count_jobs(protocol, len(rows))
        return [self._job(row) for row in rows]

    def _count_jobs(self, protocol: str | None, found: int) -> None:
        plans = self._read("SELECT * FROM protocols WHERE :key IS NULL OR key = :key", {"key": protocol})
        planned = sum(self._verified(row, "an experiment")["planned"] for row in plans)
        if planned != found:
            raise DamageError(self.path, f"{planned} jobs were planned, and {found} are there")

    def _job(self, row: sqlite3.Row) -> JobRecord:
        return self._record(JobRecord, row, f"job {row['id']}", _JSON)

    def job(self, job_id: int) -> JobRecord:
        return self.jobs(ids=[job_id])[0]

    def statuses(self) -> dict[int, str]:
        """Of every job; much cheaper than :meth:`jobs`, and without a look at checksums."""
        return dict(self._read("SELECT id, status FROM jobs"))  # type: ignore[arg-type]

    def job_checksums(self) -> dict[int, str]:
        """Of every job's row: what was read of a job holds for as long as this stays the same."""
        return dict(self._read("SELECT id, checksum FROM jobs ORDER BY id"))  # type: ignore[arg-type]

    def status(self, job: int) -> str:
        return str(self._read("SELECT status FROM jobs WHERE id = ?", (job,))[0]["status"])

    def is_interrupted(self, job: JobRecord) -> bool:
        """Whether a job that the table calls running has lost its process."""
        return job.status == RUNNING and not self.locks.is_held(job.id)

    def epochs(self, job: int) -> list[Epoch]:
        with self.snapshot():
            rows = self._read(_EPOCHS + "WHERE job = ? ORDER BY epoch", (job,))
            return self._curve(job, rows, self._row(job)["curve"])

    def _curve(self, job: int, rows: Sequence[sqlite3.Row], expected: str) -> list[Epoch]:
        values = [tuple(row)[1:] for row in rows]
        if extend_curve(EMPTY_CURVE, values) != expected:
            raise DamageError(self.path, f"the epochs of job {job} do not match their checksum")
        return [Epoch(*each) for each in values]

    def curves(self, protocol: str) -> dict[int, list[Epoch]]:
        """The epochs of all jobs of a protocol, by job; those without any are left out."""
        found: dict[str, dict[int, list[Epoch]]] = self._once("curves", dict)
        if protocol not in found:
            found.clear()  # those of many protocols may be too large
            with self.snapshot():
                found[protocol] = self._read_curves(protocol)
        return found[protocol]

    def _read_curves(self, protocol: str) -> dict[int, list[Epoch]]:
        jobs = self._read("SELECT * FROM jobs WHERE protocol = ? ORDER BY id", (protocol,))
        query = _EPOCHS + "WHERE job IN (SELECT id FROM jobs WHERE protocol = ?) ORDER BY job, epoch"
        found: dict[int, list[sqlite3.Row]] = {}
        for row in self._read(query, (protocol,)):
            found.setdefault(row["job"], []).append(row)
        curves = {
            job["id"]: self._curve(
                job["id"], found.get(job["id"], []), self._verified(job, f"job {job['id']}")["curve"]
            )
            for job in jobs
        }
        return {job: epochs for job, epochs in curves.items() if epochs}

    def artefact_names(self, job: int) -> dict[str, str]:
        """The checksum of each artefact of a job, except weights, which stay where they were made."""
        return {name: checksum for name, checksum in self._checksums(job).items() if name != WEIGHTS}

    def _checksums(self, job: int) -> dict[str, str]:
        found: dict[str, str] = self._once(job, lambda: json.loads(self._row(job)["artefacts"]))
        return found

    def artefact(self, job: int, name: str) -> np.ndarray | None:
        content = self._content(job, name)
        return None if content is None else unpack(content)

    def _content(self, job: int, name: str) -> bytes | None:
        with self.snapshot():
            expected = self._checksums(job).get(name)
            if expected is None:
                return None
            rows = self._read("SELECT content FROM artefacts WHERE job = ? AND name = ?", (job, name))
        content = rows[0]["content"] if rows else None
        if not isinstance(content, bytes) or digest_bytes(content) != expected:
            raise DamageError(self.path, f"{name} of job {job} does not match its checksum")
        return content

    def weights(self, job: int) -> Buffer | None:
        """The weights of a job's final model; None if they were not kept."""
        reference = self._content(job, WEIGHTS)
        found = reference and self.files.get(reference)
        if reference and not found:
            raise DamageError(self.path, f"the weights of job {job} in {self.files.directory.name} are gone or changed")
        return found or None

    def checkpoint(self, job: int) -> tuple[int, Buffer] | None:
        """The last epoch that was saved, and the state after it; None if there is none, or none that can be trusted."""
        with self.snapshot():
            row = self._row(job)
            rows = self._read("SELECT epoch, state FROM checkpoints WHERE job = ?", (job,))
        for saved in rows:
            epoch, state = saved["epoch"], saved["state"]
            whole = isinstance(state, bytes) and checkpoint_digest(epoch, state) == row["checkpoint"]
            if whole and epoch == row["epochs_done"]:
                content = self.files.get(state) if blobs.is_reference(state) else state
                return None if content is None else (epoch, content)
        return None

    def damage_of(self, row: sqlite3.Row) -> str | None:
        """What is wrong with a row of ``jobs`` or with what belongs to it, if anything."""
        try:
            job = self._job(row)
            if job.epochs_done != len(self.epochs(job.id)):
                return f"job {job.id} has another number of epochs than it says"
            for name in self.artefact_names(job.id):
                self.artefact(job.id, name)
        except DamageError as error:
            return error.what
        return None

    def selections(self, protocol: str) -> dict[str, SelectionRecord]:
        with self.snapshot():
            rows = self._read("SELECT * FROM selections WHERE protocol = ? ORDER BY method", (protocol,))
            self._count("selections", self._read("SELECT count(*) FROM selections")[0][0])
        return {row["method"]: self._record(SelectionRecord, row, "a selection", ("candidates",)) for row in rows}


def pack(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def unpack(content: bytes) -> np.ndarray:
    """Like ``np.load``, which parses the same header ten thousand times; the array is read-only."""
    end = 10 + int.from_bytes(content[8:10], "little")
    if content[:8] != _VERSION_1:
        array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
        return array
    shape, is_fortran, kind = _header(content[8:end])
    if kind.hasobject:
        raise ValueError("an array of objects, which is not read")
    return np.ndarray(shape, kind, content, end, order="F" if is_fortran else "C")


@functools.lru_cache(maxsize=64)
def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_1_0(io.BytesIO(content))


def checkpoint_digest(epoch: int, state: bytes) -> str:
    return digest_bytes(f"{epoch} ".encode() + state)
