"""Monte-Carlo uncertainty on digits, with their negatives as out-of-distribution inputs.

contdrop compare examples/uncertainty.py

The page has a table with a row for each method and way to predict, and a reliability diagram.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from contdrop import lab


def data():
    x, y = load_digits(return_X_y=True)
    return lab.Data(train=((x / 16).astype("float32"), y), test=0.4, validation=0.2, subset=400)


def negatives():
    """Return negatives of the digits, which differ from all training images."""
    return 1 - torch.tensor(load_digits(return_X_y=True)[0][:300] / 16, dtype=torch.float32)


def model():
    return nn.Sequential(
        *(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.25)),
        *(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.25)),
        nn.Linear(128, 10),
    )


study = lab.Study(
    "gallery-uncertainty",
    data,
    model,
    metric=["nll", "error", "ece"],
    measure=lab.uncertainty(samples=30, ood=negatives),
    batch_size=32,
    epochs=20,
    runs=6,
)
