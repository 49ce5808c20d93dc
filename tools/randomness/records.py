"""Results of the batteries: a folder with one file per finished piece, and one file with all of them.

The folder belongs to a machine; the file is kept with the project, so that a run on another machine takes over what is
finished. The seed of a piece follows from its name, so it does not matter which machine has run it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable

import verdicts


@dataclasses.dataclass(frozen=True)
class Piece:
    """A unit of work; ``round`` 2 uses the second seed."""

    scheme: str
    stream: str
    battery: str
    round: int = 1
    test: int | None = None

    @property
    def name(self) -> str:
        test = "" if self.test is None else f".{self.test:03d}"
        return f"{self.scheme}.{self.stream}.{self.battery}.{self.round}{test}"

    @property
    def seed(self) -> int:
        """Return 63 bits that no two pieces share."""
        return int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=8).digest(), "little") >> 1


def name(record: verdicts.Record) -> str:
    """Return the name of the piece that a record belongs to."""
    return Piece(*(record[field.name] for field in dataclasses.fields(Piece))).name


def read_folder(folder: pathlib.Path, scheme: str) -> list[verdicts.Record]:
    """Return the records of a scheme, including those of unfinished PractRand runs."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{scheme}.*.json"))]
    for log in sorted(folder.glob(f"{scheme}.*.log")):
        if not log.with_suffix(".json").exists():
            _, stream, battery, number = log.stem.split(".")
            piece = Piece(scheme, stream, battery, int(number))
            lengths = verdicts.parse_practrand(log.read_text())
            records.append({**dataclasses.asdict(piece), "seed": piece.seed, "finished": False, "lengths": lengths})
    return records


def read_kept(file: pathlib.Path | None) -> list[verdicts.Record]:
    return list(json.loads(file.read_text())) if file and file.exists() else []


def merge(*sources: Iterable[verdicts.Record]) -> list[verdicts.Record]:
    """Return all records by name; of two for the same piece, the one that went further."""
    merged: dict[str, verdicts.Record] = {}
    for source in sources:
        for record in source:
            known = merged.get(name(record))
            if known is None or _reach(record) > _reach(known):
                merged[name(record)] = record
    return [merged[key] for key in sorted(merged)]


def _reach(record: verdicts.Record) -> tuple[bool, int]:
    return is_finished(record), len(record.get("lengths", []))


def is_finished(record: verdicts.Record) -> bool:
    return bool(record.get("finished", True))  # a test of TestU01 has a record only when it is finished


def take_over(kept: Iterable[verdicts.Record], folder: pathlib.Path) -> None:
    """Write finished results into a folder as if they had been computed there."""
    for record in filter(is_finished, kept):
        path = folder / f"{name(record)}.json"
        if not path.exists():
            write_atomically(path, json.dumps(record))


def write_kept(records: Iterable[verdicts.Record], file: pathlib.Path) -> None:
    """Write results in a canonical form: equal results give equal bytes."""
    plain = ({key: value for key, value in record.items() if key != "processor_seconds"} for record in records)
    write_atomically(file, "[\n" + ",\n".join(map(json.dumps, plain)) + "\n]\n")


def write_atomically(path: pathlib.Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
