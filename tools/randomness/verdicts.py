"""Verdicts of the batteries on a stream.

Clean means: no result of PractRand worse than "unusual" at any length, and no p-value of TestU01 outside
[1e-6, 1 - 1e-6] that repeats with a second seed.
"""

from __future__ import annotations

import re
from typing import Any

LIMIT = 1e-6
TESTS = {"smallcrush": 10, "crush": 96}

_LENGTH = re.compile(r"length= .*\(2\^(\d+) bytes\)")
_COUNT = re.compile(r"  (?:no anomalies in|\.\.\.and) (\d+) test result")
_FINE = ["normal", "normalish", "unusual"]
_SUSPICIONS = ["mildly suspicious", "suspicious", "very suspicious", "VERY SUSPICIOUS"]  # and then FAIL, FAIL !, ...
_EVALUATIONS = "|".join(["FAIL !+", "FAIL", *_SUSPICIONS, *_FINE])
_ANOMALY = re.compile(rf"  (\S+?) *R[=<>] *\S+ +(.*?) +({_EVALUATIONS}) *$")
_UNITS = ["bytes", "KB", "MB", "GB", "TB"]

Record = dict[str, Any]


def parse_practrand(text: str) -> list[Record]:
    """Return one record per length reported by PractRand: log2 of the bytes, number of results, anomalies."""
    # A report ends with an empty line; one that has been cut off does not count.
    reports = [report.splitlines() for report in text.split("\n\n")[:-1]]
    return [_parse_report(report) for report in reports if report and report[0].startswith("rng=")]


def _parse_report(lines: list[str]) -> Record:
    length = _LENGTH.match(lines[1])
    if length is None:
        raise ValueError(f"expected a power of 2 of bytes, got {lines[1]!r}")
    record: Record = {"log2_bytes": int(length[1]), "results": 0, "anomalies": []}
    for line in lines[2:]:
        if match := _COUNT.match(line):
            record["results"] += int(match[1])
        elif match := _ANOMALY.match(line):
            p = match[2].lstrip("p~= ")
            record["anomalies"].append({"test": match[1], "p": p, "evaluation": match[3]})
            record["results"] += 1
        elif not line.startswith("  Test Name "):
            raise ValueError(f"expected a result of PractRand, got {line!r}")
    return record


def worse_than_unusual(lengths: list[Record]) -> list[Record]:
    return [
        {"log2_bytes": record["log2_bytes"], **anomaly}
        for record in lengths
        for anomaly in record["anomalies"]
        if anomaly["evaluation"] not in _FINE
    ]


def outside(p: float) -> bool:
    return not LIMIT <= p <= 1 - LIMIT


def suspicious(record: Record) -> bool:
    """Return True if a finished record needs a second seed."""
    if record["battery"] == "practrand":
        return bool(worse_than_unusual(record["lengths"]))
    return any(outside(p) for _, p in record["statistics"])


def size_text(log2_bytes: int) -> str:
    unit, power = divmod(log2_bytes, 10)
    return f"{1 << power} {_UNITS[unit]}"


def practrand_verdict(records: list[Record]) -> str:
    """Return the verdict on one stream; the first seed decides, the second is reported with it."""
    return "; second seed: ".join(_reached(record) for record in records) or "not begun"


def _reached(record: Record) -> str:
    """Return the length of a run, with PractRand's worst result if it is not clean."""
    lengths = record["lengths"]
    if not lengths:
        return "begun"
    bad = sorted(worse_than_unusual(lengths), key=_severity)
    worst = f"{bad[-1]['evaluation']} ({bad[-1]['test']})" if bad else "clean"
    return f"{worst} to {size_text(lengths[-1]['log2_bytes'])}{'' if record['finished'] else ', not finished'}"


def _severity(anomaly: Record) -> tuple[int, int]:
    evaluation = anomaly["evaluation"]
    return [*_SUSPICIONS, evaluation].index(evaluation), len(evaluation)


def testu01_failures(records: list[Record]) -> tuple[list[str], list[str]]:
    """Return statistics outside the bounds with both seeds, and those still waiting for a second seed."""
    first = {record["test"]: record for record in records if record["round"] == 1}
    second = {record["test"]: record for record in records if record["round"] == 2}
    failed, pending = [], []
    for test, record in sorted(first.items()):
        for place, (name, p) in enumerate(record["statistics"]):
            if not outside(p):
                continue
            if test not in second:
                pending.append(f"{test} {name}")
            elif outside(second[test]["statistics"][place][1]):
                failed.append(f"{test} {name}")
    return failed, pending


def testu01_verdict(records: list[Record], battery: str) -> str:
    done = [record for record in records if record["round"] == 1]
    if not done:
        return "not begun"
    failed, pending = testu01_failures(records)
    statistics = sum(len(record["statistics"]) for record in done)
    again = len(records) - len(done)
    scope = f"{len(done)} of {TESTS[battery]} tests, {statistics} p-values"
    scope += f", {again} run again with a second seed" if again else ""
    if failed:
        return f"FAILS {', '.join(failed)} ({scope})"
    if pending:
        return f"second seed to come for {', '.join(pending)} ({scope})"
    return f"clean ({scope})"


def verdict(records: list[Record], battery: str) -> str:
    """Return the verdict on one stream by one battery from their records."""
    records = sorted(records, key=lambda record: (record["round"], record.get("test", 0)))
    return practrand_verdict(records) if battery == "practrand" else testu01_verdict(records, battery)


def table(records: list[Record], streams: list[str]) -> str:
    """Return the verdicts as a Markdown table, a row for each stream."""
    rows = ["| stream | PractRand | SmallCrush | Crush |", "|---|---|---|---|"]
    for stream in streams:
        cells = []
        for battery in ("practrand", "smallcrush", "crush"):
            own = [r for r in records if r["stream"] == stream and r["battery"] == battery]
            cells.append(verdict(own, battery))
        rows.append(f"| {stream} | {' | '.join(cells)} |")
    return "\n".join(rows)
