"""Synthetic stores for tests of the report, written through the store's own interface.

Errors are paired as real ones are: a run's difficulty is shared by all methods, and the images that are hard for one
network are hard for the others.
"""

from __future__ import annotations

import hashlib
import math
import pathlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from contdrop.lab.store.schema import FINAL, SELECTION, Epoch, SelectionRecord
from contdrop.lab.store.writer import Store

METHODS = ("none", "bernoulli", "adaptive", "dropconnect", "uniform", "gaussian")
ALL_METHODS = ("none", "bernoulli", "uniform", "gaussian", "adaptive", "dropconnect", "fast", "bernoulli-matched")

SMALL = {"methods": ("none", "gaussian", "uniform"), "runs": 3, "epochs": 3, "images": 60, "selection": True}
CANDIDATES = ["gaussian:sigma=0.2", "gaussian:sigma=0.3"]
# Mean test errors, in per cent.
LEVELS = {"none": 3.6, "bernoulli": 3.1, "uniform": 2.7, "gaussian": 2.5, "adaptive": 2.9, "dropconnect": 3.0}
LEVELS |= {"fast": 3.0, "bernoulli-matched": 2.6}
# Parameters with which methods are trained whose labels name none.
DEFAULTS = {"bernoulli": "keep=0.5", "gaussian": "sigma={}", "adaptive": "alpha=1,beta=0", "dropconnect": "keep=0.5"}
DEFAULTS |= {"fast": "keep=0.5", "bernoulli-matched": "sigma={}"}
VERSIONS = {"contdrop": "0.4.0", "python": "3.13.5", "torch": "2.13.0", "numpy": "2.3.5"}
MACHINE = {"system": "Linux", "architecture": "x86_64", "processor": "Example 1", "cores": 2, "threads": 1}


def make_store(
    path: pathlib.Path | str,
    *,
    methods: Sequence[str] = METHODS,
    runs: int = 6,
    epochs: int = 5,
    seed: int = 0,
    experiment: str = "digits-mlp",
    dataset: str = "digits",
    preset: str = "quick",
    reference: str = "gaussian",
    title: str | None = None,
    paper: str = "",
    paper_runs: int | None = None,
    paper_epochs: int | None = None,
    notes: Sequence[str] = (),
    failed: Collection[tuple[str, int]] = (),
    missing: Collection[tuple[str, int]] = (),
    selection: bool = False,
    covariance: bool = False,
    images: int = 500,
    classes: int = 10,
    levels: Mapping[str, float] | None = None,
    noise: float = 0.25,
    margin: float | None = None,
    metric: Mapping[str, str] | None = None,
) -> pathlib.Path:
    """Writes one experiment, to a new store or into one that is there already.

    Args:
        path: Of the store.
        methods: Labels, such as "gaussian" or "gaussian:sigma=0.3"; any text will do.
        seed: Decides all numbers.
        failed: Pairs of method and run that diverge.
        missing: Pairs of method and run that are planned only.
        selection: Whether sigma of "gaussian" is selected first.
        covariance: Whether covariances are measured.
        images: Size of the test set.
        levels: Mean test error by method, where it is not to be that of LEVELS.
        noise: Standard deviation of the error between runs, beyond what all methods share.
        metric: What is compared instead of errors: its name, unit and which values are better. There are no
            predictions then, and the values are the errors that would be made.
    """
    configuration = {
        "experiment": experiment,
        "preset": preset,
        "epochs": epochs,
        "seed": seed,
        "dataset": dataset,
        "split": {"train": 800, "validation": 200},
        "model": {"kind": "mlp", "hidden": [100, 100], "activation": "relu"},
        "recipe": {"optimiser": "hinton", "batch_size": 100, "scale": "paper", "input_keep": 1.0},
        "selection": {
            "runs": 1,
            "epochs": epochs,
            "candidates": {"gaussian": CANDIDATES} if selection else {},
            "follows": {"bernoulli-matched": "gaussian"} if selection else {},
        },
        "measure": {"kind": "covariance", "inputs": 10, "repeats": 10_000} if covariance else None,
    }
    description = {
        "title": title if title is not None else f"Methods on {dataset}",
        "paper": paper,
        "reference": reference,
        "methods": list(methods),
        "notes": list(notes),
        "paper_runs": paper_runs,
        "paper_epochs": paper_epochs,
        **({} if margin is None else {"margin": margin}),
        **({"metric": {"kind": "own", **metric}} if metric else {}),
    }
    key = _digest(repr(sorted(configuration.items(), key=str)))
    candidates = CANDIDATES if selection else []
    jobs = [(SELECTION, candidate, 0) for candidate in candidates]
    jobs += [(FINAL, method, run) for run in range(runs) for method in methods]
    planned = []
    for stage, method, run in jobs:
        job = {"stage": stage, "method": method, "run": run}
        job_key = _digest(f"{key} {stage} {method} {run}")
        planned.append({"key": job_key, **job, "epochs": epochs, "configuration": {**configuration, **job}})
    labels = np.random.default_rng([seed, 1]).integers(0, classes, images).astype(np.int16)
    difficulty = np.random.default_rng([seed, 2]).normal(size=images) + 0.15 * labels
    with Store(path, create=True) as store:
        for number, (stage, method, run) in zip(
            store.add_jobs(configuration, description, key, planned), jobs, strict=True
        ):
            if (method, run) in missing and stage == FINAL:
                continue
            trained = variant(method, sigma=0.2 if selection else 0.3)
            rng = np.random.default_rng([seed, 3, run, *method.encode(), len(stage)])
            shared = np.random.default_rng([seed, 4, run]).normal(0, 0.15)
            level = {**LEVELS, **(levels or {})}.get(method, _level(method))
            error = max(0.1, level + shared + rng.normal(0, noise))
            store.begin(
                number,
                variant=trained,
                seeds={"split": run, "weights": run + 1, "order": run + 2, "masks": int(rng.integers(2**31))},
                fingerprints={
                    name: _digest(f"{dataset} {name} {'' if name == 'data' else (stage, run)}")[:32]
                    for name in ("data", "split", "initial weights", "data order")
                },
                versions=VERSIONS,
                machine=MACHINE,
            )
            if (method, run) in failed and stage == FINAL:
                store.fail(number, "diverged: the training loss is nan in epoch 1", [])
                continue
            predictions = _predictions(labels, difficulty, error, classes, rng)
            test_error = 100 * float((predictions != labels).mean())
            curve = _curve(test_error, epochs, rng, test=stage == FINAL)
            results = {"train_loss": 0.01 * test_error, "train_error": 0.3 * test_error, "val_loss": 0.04 * test_error}
            results["val_error"] = max(0.0, test_error + float(rng.normal(0, 0.1)))
            artefacts = {}
            if stage == FINAL:
                results |= {"test_loss": 0.04 * test_error, "test_error": test_error}
                artefacts |= {} if metric else {"test_predictions": predictions, "test_labels": labels}
            if (strength := relative_variance(trained)) is not None:
                results["relative_variance"] = strength
            if covariance and stage == FINAL:
                artefacts |= _covariances(strength, rng)
            store.finish(number, curve, results, artefacts)
        if selection:
            scores = {name: {"val_error": 2.4 + i / 10, "val_loss": 0.1 + i / 50} for i, name in enumerate(candidates)}
            reason = "lowest validation error of 2 candidates: 2.40 %"
            if metric:
                reason = f"lowest validation {metric['name']} of 2: 2.4"
            store.select(SelectionRecord(key, "gaussian", candidates[0], reason, scores, 1.0))
    return pathlib.Path(path)


def variant(method: str, *, sigma: float = 0.3) -> str:
    """A label with the parameters that are its defaults, or with the sigma selected."""
    return f"{method}:{DEFAULTS[method].format(sigma)}" if method in DEFAULTS else method


def relative_variance(method: str) -> float | None:
    """Of the law of the mask, Var(m) / E[m]^2; None where a method has none."""
    name, _, parameters = method.partition(":")
    values = {key: float(value) for key, value in (item.split("=") for item in parameters.split(",") if "=" in item)}
    if name in ("gaussian", "bernoulli-matched"):
        sigma = values["sigma"] if "sigma" in values else math.sqrt(values.get("variance", 0.09))
        mask = np.clip(0.5 + sigma * np.random.default_rng(0).normal(size=20_000), 0, 1)
        return float(mask.var() / mask.mean() ** 2)
    if name in ("bernoulli", "dropconnect", "fast"):
        return 1 / values.get("keep", 0.5) - 1
    return {"none": 0.0, "uniform": 1 / 3}.get(name)


def _level(method: str) -> float:
    """A sweep's error has its minimum near sigma 0.3, and tends to that of Bernoulli dropout."""
    name, _, parameters = method.partition(":")
    if name == "gaussian" and "=" in parameters:
        value = float(parameters.partition("=")[2])
        sigma = math.sqrt(value) if parameters.startswith("variance") else value
        return 3.1 - 0.6 * math.exp(-(((math.log(max(sigma, 0.01)) - math.log(0.3)) / 0.8) ** 2))
    return LEVELS.get(name, 3.0)


def _predictions(
    labels: np.ndarray, difficulty: np.ndarray, error: float, classes: int, rng: np.random.Generator
) -> np.ndarray:
    wrong = np.argsort(-(difficulty + rng.normal(0, 0.7, len(labels))))[: max(1, round(error / 100 * len(labels)))]
    predictions = labels.copy()
    predictions[wrong] = (labels[wrong] + 1 + rng.integers(0, max(1, min(3, classes - 1)), len(wrong))) % classes
    return predictions


def _curve(final: float, epochs: int, rng: np.random.Generator, *, test: bool) -> list[Epoch]:
    falling = final * (1 + 6 * np.exp(-5 * np.arange(1, epochs + 1) / epochs))
    errors = np.clip(falling + rng.normal(0, 0.05 * final, epochs), 0, 100)
    errors[-1] = final
    rates, none = 0.1 * 0.98 ** np.arange(1, epochs + 1), [None] * epochs
    tests = ((errors / 30).tolist(), errors.tolist()) if test else (none, none)
    columns = (errors / 40, errors * 0.8, errors / 30, errors * 1.02)
    rows = zip(range(1, epochs + 1), *(column.tolist() for column in columns), *tests, rates.tolist(), strict=True)
    return [Epoch(*row, seconds=0.2) for row in rows]


def _covariances(strength: float | None, rng: np.random.Generator) -> dict[str, np.ndarray]:
    edges = np.linspace(-1.0, 1.0, 201)
    kept = {"covariance_edges": edges}
    for layer, width in ((1, 0.06), (2, 0.03)):
        scale = width * math.sqrt(0.2 if strength is None else strength)
        values = rng.laplace(0, scale, 64_000) if scale else np.zeros(64_000)
        kept[f"covariance_layer{layer}"] = np.histogram(values, edges)[0].astype(np.int64)
    return kept


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
