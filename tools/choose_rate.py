"""Selection of the initial rates of the MNIST recipes by validation error, with an otherwise unused seed.

    python tools/choose_rate.py --epochs 8 relu:1:none relu:1:bernoulli sigmoid:5:none

trains 784-800-800-10 by the recipe of the quick preset with that activation, rate and method, and prints the validation
error after every epoch. Test images are taken away before training starts.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch

from contdrop.lab.data.data import prepare
from contdrop.lab.store.schema import SELECTION
from contdrop.lab.study.plan import PlannedJob, StudyPlan, Variant
from contdrop.lab.training.trainer import DivergenceError, Trainer
from contdrop.replication.studies import mnist_studies

SEED = 777
STUDIES = {"relu": mnist_studies.RELU, "sigmoid": mnist_studies.SIGMOID}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="+", metavar="ACTIVATION:RATE:METHOD")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    data = mnist_studies.RELU.data()
    images = prepare(dataclasses.replace(data, test=1), task="classification")  # no test images
    for setting in options.settings:
        activation, rate, name = setting.split(":", 2)
        size = mnist_studies.quick(float(rate))
        study = STUDIES[activation].replace(sizes={"quick": size}).at("quick")
        protocol = StudyPlan(study, "quick", options.epochs, 1, options.epochs, SEED)
        training = Trainer(PlannedJob(protocol, SELECTION, name, 0), Variant.parse(name), images)
        try:
            errors = [training.run_epoch().val_error for _ in range(options.epochs)]
        except DivergenceError as reason:
            print(f"{setting}: {reason}", flush=True)
            continue
        print(f"{setting}: {', '.join(f'{error:.2f}' for error in errors)} % validation error", flush=True)


if __name__ == "__main__":
    main()
