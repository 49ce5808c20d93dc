"""Tabular regression: disease progression of 442 patients from scikit-learn.

contdrop compare examples/tabular_regression.py
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

from contdrop import lab


def data():
    x, y = load_diabetes(return_X_y=True)
    return lab.Data(
        train=(20 * x.astype("float32"), ((y - y.mean()) / y.std()).astype("float32")[:, None]),
        test=0.25,
        validation=0.2,
    )


def model():
    return nn.Sequential(
        *(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2)),
        nn.Linear(64, 1),
    )


def optimizer(network):
    return torch.optim.AdamW(network.parameters(), lr=0.003)


study = lab.Study(
    "gallery-regression", data, model, task="regression", optimizer=optimizer, batch_size=32, epochs=30, runs=10
)
