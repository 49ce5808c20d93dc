"""Tabular classification: 569 tumours from scikit-learn, compared by the area under the ROC curve.

contdrop compare examples/tabular_classification.py
"""

from sklearn.datasets import load_breast_cancer
from torch import nn

from contdrop import lab


def data():
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype("float32")
    return lab.Data(train=(x, y), test=0.4, validation=0.2)


def model():
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 2))


study = lab.Study("gallery-classification", data, model, metric=["auroc", "nll", "error"], epochs=20, runs=10)
