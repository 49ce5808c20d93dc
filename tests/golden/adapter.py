"""What the golden tests do with the inside of the package, such as training and reading stores.

A change of names, modules or file formats changes this file or the imports of the others, and no frozen value.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import platform
import re
import sqlite3
import subprocess
import sys

import numpy as np
import torch

import contdrop as cd
from contdrop import lab
from contdrop.lab.data import fingerprints
from contdrop.lab.store import reader, schema
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import plan
from contdrop.lab.training import checkpoint
from contdrop.replication.studies import common


def machine() -> dict[str, str]:
    """Return what decides the last bits of a result: two machines that agree in it give the same."""
    return {
        "architecture": platform.machine(),
        "vendor": vendor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": str(cd.backend()),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def vendor() -> str:
    """Return who made the processor: MKL and oneDNN take other paths, with other last bits, on others' processors."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    found = re.search(r"^vendor_id\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return found[1] if found else platform.processor()


def study(**settings: object) -> lab.Study:
    """Return a study from settings that are given flat."""
    return common.study(**settings)


def train(study: lab.Study, store: pathlib.Path, **options: object) -> None:
    """Train a study in this process, with one thread."""
    lab.compare(study, store=store, workers=0, device="cpu", threads=1, progress=False, **options)


def fingerprint(*values: object) -> str:
    return fingerprints.of_content(*values)


def planned(study: lab.Study) -> tuple[str, list[str]]:
    """Return the protocol's key and the keys of all jobs of a study at its default size."""
    found = plan(study)
    return found[0].protocol.key, [job.key for job in found]


def jobs(store: pathlib.Path, *, arrays: bool = True) -> list[dict[str, object]]:
    """Return all that a store holds of its jobs, in the order of the plan: plain values, arrays and weights by name."""
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as db, Store(store) as opened:
        db.row_factory = sqlite3.Row
        selected = db.execute("SELECT protocol, method, variant, candidates FROM selections").fetchall()
        found = []
        for row in db.execute("SELECT * FROM jobs ORDER BY id"):
            names = ("key", "protocol", "experiment", "stage", "method", "run", "epochs", "status", "error", "variant")
            job = {name: row[name] for name in names}
            job |= {name: json.loads(row[name] or "{}") for name in ("seeds", "fingerprints", "results")}
            columns = [name for name in schema.EPOCH_COLUMNS if name != "seconds"]
            query = f"SELECT {', '.join(columns)} FROM epochs WHERE job = ? ORDER BY epoch"
            job["curve"] = [dict(each) for each in db.execute(query, (row["id"],))]
            stored = db.execute("SELECT name, content FROM artefacts WHERE job = ? ORDER BY name", (row["id"],))
            job["arrays"] = {
                each["name"]: reader.unpack(each["content"]) for each in stored if each["name"] != "weights"
            }
            saved = opened.weights(row["id"])
            job["weights"] = {} if saved is None else _weights(checkpoint.loads(saved))
            found.append(job)
        for each in selected:
            found.append({**dict(each), "candidates": json.loads(each["candidates"])})
        return found


def _weights(content: object, prefix: str = "") -> dict[str, np.ndarray]:
    if isinstance(content, torch.Tensor):
        return {prefix: content.detach().numpy()}
    if not isinstance(content, dict):
        return {}
    return {n: a for name, each in content.items() for n, a in _weights(each, f"{prefix}/{name}").items()}


def archive_records(path: pathlib.Path) -> list[dict[str, object]]:
    """Return the lines of an archive as they are in the file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def command(*arguments: object, cwd: pathlib.Path | None = None) -> str:
    """Run the command line in a process of its own, and return what it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    result = subprocess.run(
        [sys.executable, "-m", "contdrop.cli", *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout
