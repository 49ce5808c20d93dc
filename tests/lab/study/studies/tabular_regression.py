"""Tabular regression: arrays in, five lines of study."""

from sklearn.datasets import load_diabetes
from torch import nn

from contdrop import lab


def data():
    x, y = load_diabetes(return_X_y=True)
    y = (y - y.mean()) / y.std()
    return lab.Data(train=(x.astype("float32") * 20, y.astype("float32")[:, None]), test=0.25, validation=0.2)


def model():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))


study = lab.Study("tabular-regression", data, model, task="regression", epochs=3, runs=2)
