"""Keys, results and masks of version 0.1.0, frozen: whatever is rebuilt inside the package gives them again.

::

    python tests/golden/freeze.py                    # compare everything; prints what differs
    python tests/golden/freeze.py masks claims       # compare some sections
    python tests/golden/freeze.py --write studies    # freeze anew, which is a decision: commit the difference

Sections, each a JSON file in ``frozen/``:

- ``studies``: of the jobs of small studies the keys, seeds, fingerprints, results (floats in hexadecimal), curves and
  the SHA-256 of each array: predictions, contributions of test examples, weights, measures. Digests are over type,
  shape and decoded values, not over stored bytes, because the format of a container may change.
- ``masks``: of every law, type and memory layout the SHA-256 and the sum of the masks of 20 seeds, and of 100; the
  reference back end, which is slower, has 100 for one layout. And outputs and gradients of the layers.
- ``archives``: of the archives in ``results/`` the keys, and digests of what is in a store after ``contdrop import``.
- ``plans``: the keys that each study of the catalogue plans at its default size.
- ``names``: fingerprints of values of classes of the package, and what stands for its functions in keys.
- ``claims``: the ledger of claims as ``contdrop claims --json`` prints it: numbers and verdicts, and sentences apart.

Keys, seeds, fingerprints and Bernoulli masks are the same on every machine. Other floats depend on the instruction set
and the version of torch. Where ``machine`` in the file is another one, they are compared with a tolerance, and digests
of them not at all.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import adapter
import golden_studies
import numpy as np
import torch

import contdrop as cd
from contdrop.lab.study.methods import parse
from contdrop.replication.augmentation import Affine
from contdrop.replication.networks.models import dense_forward
from contdrop.replication.studies import STUDIES

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "frozen"
RESULTS = HERE.parents[1] / "results"
TOLERANCE = 0.05  # of a result after a few steps, relative, on another machine
SEEDS, FEW = 100, 20


def digest(array: np.ndarray) -> str:
    """Return SHA-256 over type, shape and values, 32 digits of it."""
    found = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
    found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:32]


def digest_of(plain: Any) -> str:
    return hashlib.sha256(json.dumps(exact(plain), sort_keys=True).encode()).hexdigest()[:32]


def exact(plain: Any) -> Any:
    """Return plain data with floats in hexadecimal."""
    if isinstance(plain, float):
        return plain.hex()
    if isinstance(plain, dict):
        return {name: exact(each) for name, each in plain.items()}
    return [exact(each) for each in plain] if isinstance(plain, (list, tuple)) else plain


# Studies


def studies() -> dict[str, Any]:
    found = {}
    for study in golden_studies.STUDIES:
        found[study.name] = _jobs(functools.partial(adapter.train, study))
    found["asked"] = _jobs(golden_studies.asked)
    digits = STUDIES["digits-mlp"]
    found["digits-mlp"] = _jobs(lambda store: adapter.train(digits, store, epochs=2, runs=1))
    return found


def _jobs(train: Callable[[pathlib.Path], None]) -> list[Any]:
    with tempfile.TemporaryDirectory() as directory:
        store = pathlib.Path(directory) / "runs.db"
        train(store)
        found = adapter.jobs(store)
    for job in found:
        for name in ("arrays", "weights"):
            if name in job:
                job[name] = {key: digest(array) for key, array in job[name].items()}
        if "curve" in job:  # as rows without names, which are long
            job["curve"] = [list(epoch.values()) for epoch in job["curve"]]
    return [exact(job) for job in found]


# Masks


class Triangular(cd.Law):
    """A law of the user's own."""

    mean = 0.5
    variance = 1 / 24

    def quantile(self, u):
        return torch.where(u < 0.5, (u / 2).sqrt(), 1 - ((1 - u) / 2).sqrt())


LAWS = {
    "bernoulli": cd.Bernoulli(keep=0.5),
    "bernoulli-rare": cd.Bernoulli(keep=0.003),
    "bernoulli-odd": cd.Bernoulli(keep=0.77, value=0.65),
    "uniform": cd.Uniform(),
    "uniform-part": cd.Uniform(0.2, 0.7),
    "gaussian": cd.Gaussian(sigma=0.3),
    "gaussian-wide": cd.Gaussian(sigma=0.9),
    "gaussian-off": cd.Gaussian(mu=0.9, sigma=0.3),
    "normal": cd.Gaussian(sigma=0.5, mu=1.0, low=-math.inf, high=math.inf),
    "open": Triangular(),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BACKENDS = ("native", "reference")
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "sliced": lambda x: torch.cat([x, x], 3)[..., ::2],
}
SHARED = {"elements": (), "maps": (2, 3), "batch": (0,), "channels": (1,)}
CASES = [
    *((layout, "elements") for layout in LAYOUTS),
    *(("contiguous", shared) for shared in SHARED if shared != "elements"),
    ("channels_last", "maps"),
    ("transposed", "channels"),
]


def _numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class _Sum:
    """The digest of some tensors, and the sum of their magnitudes, for machines that round otherwise."""

    def __init__(self) -> None:
        self.content, self.total = hashlib.sha256(), 0.0

    def add(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            self.content.update(f"{whole.dtype} {tuple(whole.shape)} ".encode())
            self.content.update(whole.reshape(-1).view(torch.uint8).numpy().data)
            self.total += float(whole.double().abs().sum())

    @property
    def plain(self) -> list[str]:
        return [self.content.hexdigest()[:32], self.total.hex()]


def _masks_of(law: cd.Law, x: torch.Tensor, axes: tuple[int, ...], seeds: int) -> list[str]:
    """Digest and sum of the first few masks, and of all if there are more."""
    found, after_few = _Sum(), []
    for seed in range(seeds):
        if seed == FEW:
            after_few = found.plain
        torch.manual_seed(seed)
        found.add(cd.functional.dropout(x, law, shared_axes=axes, scale="paper" if seed % 2 else "inverted"))
    return after_few + found.plain


def _layers() -> Iterator[tuple[str, torch.nn.Module, int]]:
    """Layers with the number of inputs each takes."""
    for name, law in LAWS.items():
        yield f"dropout {name}", cd.Dropout(law), 1
        yield f"connect {name}", cd.DropConnectLinear(9, 5, law=law), 1
        yield f"connect-batch {name}", cd.DropConnectLinear(9, 5, law=law, masks="batch", mask_bias=False), 1
        yield f"fast {name}", cd.FastDropoutLinear(9, 5, law=law), 1
    yield "dropout relu", cd.Dropout(LAWS["gaussian"], activation="relu"), 1
    yield "dropout relu bernoulli", cd.Dropout(LAWS["bernoulli"], activation="relu", scale="paper"), 1
    yield "adaptive", cd.AdaptiveDropout(0.7, -0.2), 2


def _passes(layer: torch.nn.Module, inputs: int, dtype: torch.dtype) -> list[str]:
    """Outputs, gradients and what evaluation gives."""
    for number, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(_numbers(*parameter.shape, seed=number + 1))
    layer.to(dtype)
    found = _Sum()
    x = _numbers(7, 9, dtype=dtype, seed=9)
    for seed in range(FEW):
        torch.manual_seed(seed)
        given = [(x * (number + 1)).requires_grad_() for number in range(inputs)]
        y = layer(*given)
        gradients = torch.autograd.grad(y.square().sum(), [*given, *layer.parameters()], allow_unused=True)
        found.add(y, *(each for each in gradients if each is not None))
    if not (isinstance(layer, cd.DropConnectLinear) and layer.inference == "sampled"):
        found.add(layer.eval()(*given))
    return found.plain


def masks() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for back_end in BACKENDS:
        with cd.use_backend(back_end):
            for dtype in DTYPES:
                kind = str(dtype).removeprefix("torch.")
                ones = torch.ones(3, 4, 5, 6, dtype=dtype)
                for name, law in LAWS.items():
                    for layout, shared in CASES:
                        seeds = SEEDS if back_end == "native" or (layout, shared) == CASES[0] else FEW
                        made = _masks_of(law, LAYOUTS[layout](ones), SHARED[shared], seeds)
                        found[f"{back_end} {kind} {name} {layout} {shared}"] = made
            for dtype in (torch.float32, torch.bfloat16):
                for name, layer, inputs in _layers():
                    found[f"{back_end} {str(dtype).removeprefix('torch.')} layer {name}"] = _passes(
                        layer, inputs, dtype
                    )
            x = torch.ones(64, 129)  # with whole vectors and rests
            for name, law in LAWS.items():
                torch.manual_seed(7)
                large = _Sum()
                large.add(cd.functional.dropout(x, law), cd.functional.dropout(x.t(), law))
                found[f"{back_end} float32 {name} large"] = large.plain
    for name, value in found.items():  # what is promised of every back end: Bernoulli masks alike to the bit
        words = name.split()
        if words[0] == "native" and words[2].startswith("bernoulli"):
            other = found[" ".join(["reference", *words[1:]])]
            assert value[: len(other)] == other, name
    return found


# Archives


def archives() -> dict[str, Any]:
    return {path.name: archive(path) for path in sorted(RESULTS.glob("*.jsonl.gz"))}


def archive(path: pathlib.Path) -> dict[str, Any]:
    """What is in a store after the import; of many jobs the keys as one digest, and that of the first and the last."""
    with tempfile.TemporaryDirectory() as directory:
        store = pathlib.Path(directory) / "runs.db"
        adapter.command("import", path, "--store", store)
        found = adapter.jobs(store)
    jobs = [each for each in found if "key" in each]
    keys = [str(job["key"]) for job in jobs]
    arrays = {f"{job['key']} {name}": digest(array) for job in jobs for name, array in job["arrays"].items()}
    plain = [{name: value for name, value in job.items() if name not in ("arrays", "weights")} for job in jobs]
    return {
        "protocols": sorted({str(job["protocol"]) for job in jobs}),
        "jobs": len(jobs),
        "keys": digest_of(keys),
        "ends": [keys[0], keys[-1]],
        "values": digest_of(plain),
        "arrays": [len(arrays), digest_of(arrays)],
        "selections": digest_of([each for each in found if "key" not in each]),
    }


def plans() -> dict[str, Any]:
    """No study of the catalogue needs its data for its keys."""
    found = {}
    for name, study in STUDIES.items():
        protocol, keys = adapter.planned(study)
        found[name] = {"protocol": protocol, "jobs": len(keys), "keys": digest_of(keys), "ends": [keys[0], keys[-1]]}
    return found


# Names


def names() -> dict[str, Any]:
    values: dict[str, Any] = {
        **{f"law {name}": law for name, law in LAWS.items() if name != "open"},
        "method": parse("gaussian:sigma=0.2"),
        "nest": {"a": [1, 2.5, "text", None, True], "b": (torch.arange(3), np.ones(2)), "c": {1, 2}},
    }
    found = {name: adapter.fingerprint(value) for name, value in values.items()}
    functions = {"dense-forward": {"forward": dense_forward}, "affine": {"forward": Affine().forward}}
    for name, settings in functions.items():
        study = golden_studies.lab.Study(name, golden_studies.table, golden_studies.regressor, **settings)
        found[name] = adapter.planned(study)[0]
    return found


# Claims


def claims() -> dict[str, Any]:
    found = json.loads(adapter.command("claims", "--results", RESULTS, "--draws", "2000", "--json"))
    sentences = {}
    for claim in found["claims"]:
        sentences[claim["id"]] = {name: claim.pop(name) for name in ("text", "rule", "reason")}
    return exact({"ledger": found, "sentences": sentences})


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "names": names, "plans": plans, "masks": masks, "claims": claims, "archives": archives, "studies": studies,
}  # fmt: skip


def make(section: str) -> dict[str, Any]:
    """Compute a section anew, with one thread."""
    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = SECTIONS[section]()
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
    return {"machine": adapter.machine(), **content}


def load(section: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FROZEN / f"{section}.json").read_text(encoding="utf-8"))
    return content


def write(section: str, content: dict[str, Any]) -> None:
    """Write a section, one line for each entry of its two upper levels, so that a difference is readable."""
    lines = []
    for name, each in content.items():
        plain = json.dumps(each, ensure_ascii=False, separators=(",", ":"))
        if isinstance(each, list) and each and isinstance(each[0], dict):
            plain = "[\n  " + ",\n  ".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) for e in each) + "]"
        elif section == "claims" and isinstance(each, dict):
            plain = json.dumps(each, ensure_ascii=False, indent=1)
        lines.append(f"{json.dumps(name)}: {plain}")
    FROZEN.mkdir(exist_ok=True)
    (FROZEN / f"{section}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def portable(section: str, content: Any) -> Any:
    """Return the content without the digests of rounded numbers, which another machine may round otherwise."""
    if section == "masks":
        exact_masks = {name for name in content if name.split()[2].startswith("bernoulli")}
        return {name: each if name in exact_masks else each[1::2] for name, each in content.items()}
    if section == "studies":
        return {name: [_without_digests(job) for job in each] for name, each in content.items()}
    return content


def _without_digests(job: dict[str, Any]) -> dict[str, Any]:
    kept = {name: sorted(each) if name in ("arrays", "weights") else each for name, each in job.items()}
    if "fingerprints" in job:
        kept["fingerprints"] = {n: each for n, each in job["fingerprints"].items() if n != "initial weights"}
    return kept


def differences(old: Any, new: Any, *, same_machine: bool, place: str = "") -> Iterator[str]:
    """Say what differs between what is frozen and what was made, place by place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            if name in new and name in old:
                yield from differences(old[name], new[name], same_machine=same_machine, place=f"{place}/{name}")
            else:
                yield f"{place}/{name}: {'new' if name in new else 'gone'}"
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{place}: {len(old)} entries, now {len(new)}"
            return
        for number, (before, now) in enumerate(zip(old, new)):
            yield from differences(before, now, same_machine=same_machine, place=f"{place}/{number}")
    elif old != new and (same_machine or not _near(old, new)):
        yield f"{place}: {old!r:.200}, now {new!r:.200}"


def _near(old: Any, new: Any) -> bool:
    """Whether both are floats, in hexadecimal, of nearly the same value; a key is no float."""
    if not all(isinstance(each, str) and "0x" in each for each in (old, new)):
        return False
    return math.isclose(float.fromhex(old), float.fromhex(new), rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def compare(section: str) -> list[str]:
    """Return what differs from what is frozen; nothing if all is as it was."""
    old, new = load(section), json.loads(json.dumps(make(section)))  # tuples become lists
    same_machine = old.pop("machine") == new.pop("machine")
    if not same_machine:
        old, new = portable(section, old), portable(section, new)
    return list(differences(old, new, same_machine=same_machine))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all by default")
    parser.add_argument("--write", action="store_true", help="freeze anew")
    arguments = parser.parse_args()
    bad = 0
    for section in arguments.sections or SECTIONS:
        if arguments.write:
            write(section, make(section))
            print(f"{section}: written")
            continue
        found = compare(section)
        bad += len(found)
        print(f"{section}: {f'{len(found)} differences' if found else 'as frozen'}")
        for line in found[:20]:
            print(f"  {line}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
