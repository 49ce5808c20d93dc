"""Monte-Carlo uncertainty: does a network know that an input is from elsewhere? Digits, and digits turned to negatives.

contdrop compare examples/uncertainty.py

or, for the figures of each way to predict: python examples/uncertainty.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from contdrop import lab
from contdrop.lab.uncertainty import VALUES, WAYS, uncertainty


def data():
    x, y = load_digits(return_X_y=True)
    return lab.Data(train=((x / 16).astype("float32"), y), test=0.4, validation=0.2, subset=400)


def negatives():
    """What no training image is like."""
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
    measure=uncertainty(samples=30, ood=negatives),
    batch_size=32,
    epochs=20,
    runs=6,
)


def main() -> None:
    result = lab.compare(study)
    print(result)
    finished = result.results.finished
    print("\nmean over runs     " + "".join(f"{name[:16]:>18}" for name in VALUES))
    for method in study.methods:
        for way in WAYS:
            found = [
                [job.results.get(f"test:uncertainty_{way}_{name}", float("nan")) for name in VALUES]
                for job in finished
                if job.method == method
            ]
            means = torch.tensor(found).mean(0).tolist()
            print(f"{method:>16} {way:<8}" + "".join(f"{value:>14.3f}" for value in means))


if __name__ == "__main__":
    main()
