"""Selection of the settings of ``digits-mlp`` by validation error, with a seed that no experiment uses.

    python tools/choose_digits.py

Test images are taken away before training starts.
"""

from __future__ import annotations

import dataclasses
import statistics

import torch

from contdrop.lab.data.data import PreparedData, prepare
from contdrop.lab.store.schema import SELECTION
from contdrop.lab.study.plan import PlannedJob, StudyPlan, Variant
from contdrop.lab.training.trainer import Trainer
from contdrop.replication.recipes import Adam
from contdrop.replication.studies.mnist_studies import DIGITS

SEED, RUNS = 12345, 8
METHODS = ("none", "bernoulli", "uniform", "gaussian")
# Hidden units, rate, epochs.
SETTINGS = [(128, 0.005, 40), (128, 0.005, 80), (128, 0.002, 80), (64, 0.005, 80), (128, 0.01, 80), (256, 0.005, 80)]


def validation_error(hidden: int, rate: float, epochs: int, method: str, run: int, images: PreparedData) -> float:
    model = dataclasses.replace(DIGITS.model, widths=(64, hidden, hidden, 10))
    study = DIGITS.replace(model=model, **Adam(learning_rate=rate, batch_size=25).settings())
    job = PlannedJob(StudyPlan(study, "quick", epochs, 1, epochs, SEED), SELECTION, method, run)
    training = Trainer(job, Variant.parse(method), images)
    return [training.run_epoch().val_error for _ in range(epochs)][-1]


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    images = prepare(dataclasses.replace(DIGITS.data(), test=1), task="classification")  # no test images
    for setting in SETTINGS:
        errors = {
            m: statistics.mean(validation_error(*setting, m, run, images) for run in range(RUNS)) for m in METHODS
        }
        each = ", ".join(f"{method} {error:.2f}" for method, error in errors.items())
        print(f"{setting}: {statistics.mean(errors.values()):.2f} % validation error ({each})", flush=True)


if __name__ == "__main__":
    main()
