"""Small studies that together use every family of methods and every kind of setting; trained in a second or two each.

The names of their functions are part of the frozen keys.
"""

from __future__ import annotations

import dataclasses

import adapter
import torch
from torch import nn
from torch.nn import functional as F

from contdrop import lab
from contdrop.replication.augmentation import Affine, Crop
from contdrop.replication.networks import CNN, MLP, ConvLocal
from contdrop.replication.networks.models import Glorot, Normal
from contdrop.replication.recipes import Adam, AdamCosine, Authors, Hinton, LayeredPlateau, Plateau, Steps
from contdrop.replication.studies.common import CommonNoise, Covariance, InOrder, UnusedError

ALL = ("none", "bernoulli", "uniform", "gaussian", "normal", "adaptive", "dropconnect", "fast", "bernoulli-matched")
AUTHORS = ("none", "none:mean=0.5", "adaptive-authors", "dropconnect-authors", "bernoulli-matched:uniform", "gaussian")
CONTROLS = ("original", "none", "bernoulli:match", "gaussian:match", "uniform:match", "normal:r=0.3", "uniform:r=0.2")


def _random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _pixels(number, *shape, seed=0):
    return torch.randint(256, (number, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def _classes(number, seed=1):
    return torch.randint(10, (number,), generator=torch.Generator().manual_seed(seed))


def images():
    x, y = _pixels(120, 1, 8, 8), _classes(120)
    return lab.Data(train=(x[:80], y[:80]), test=(x[80:], y[80:]), validation=20, subset=50, stratify=False)


def images_in_order():
    return dataclasses.replace(images(), batches=InOrder(10))


def floating():
    whole = images()
    return dataclasses.replace(
        whole, train=(whole.train[0] / 255, whole.train[1]), test=(whole.test[0] / 255, whole.test[1])
    )


def colours():
    x, y = _pixels(60, 3, 12, 12), _classes(60)
    return lab.Data(train=(x[:40], y[:40]), test=(x[40:], y[40:]), validation=10, stratify=False)


def table():
    x = _random(90, 6)
    return lab.Data(train=(x, x[:, :1] * 0.5 + x[:, 1:2]), test=0.25, validation=0.2)


def classes():
    x = _random(90, 6)
    return lab.Data(train=(x, (x[:, 0] + x[:, 1] > 0).long()), test=0.25, validation=0.2)


def nested():
    pictures, tables = _random(90, 1, 8, 8), _random(90, 5, seed=1)
    labels = (pictures.mean((1, 2, 3)) * 8 + tables[:, 0] > 0).long()
    part = {"input": {"picture": pictures, "table": tables}, "target": labels}
    return lab.Data(train=part, test=0.3, validation=0.2, stratify=labels)


class Items:
    """A map-style data set."""

    def __len__(self):
        return 60

    def __getitem__(self, place):
        return {"x": _random(6, seed=100 + place).numpy(), "name": f"item {place}", "y": place % 3}


def together(items):
    return {
        "x": torch.stack([torch.from_numpy(each["x"]) for each in items]),
        "y": torch.tensor([e["y"] for e in items]),
    }


def jitter(item, generator):
    return {**item, "x": item["x"] + torch.randn(6, generator=generator).numpy()}


def items():
    groups = [place // 3 for place in range(60)]
    options = {"collate": together, "transform": jitter, "groups": groups, "version": "1", "resplit": False}
    return lab.Data(train=Items(), test=0.2, validation=0.2, **options)


def items_forward(model, batch):
    return model(batch["x"])


def items_loss(output, batch):
    return F.cross_entropy(output, batch["y"])


def items_losses(output, batch):
    return F.cross_entropy(output, batch["y"], reduction="none")


_CHANGES = Affine(side=6, flip=True)
_CROP = Crop(6)


def augmented():
    return dataclasses.replace(images(), transform=_CHANGES.draw)


def cropped():
    return dataclasses.replace(images(), transform=_CROP.draw, stratify=True)


def crop_forward(model, batch):
    return model(batch[0][..., :6, :6])


def regressor():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 1))


def classifier():
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)
    )


def three_classes():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))


def normalised():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Linear(144, 16),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(16, 10),
    )


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.2))
        self.table = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.15))
        self.output = nn.Linear(16, 2)

    def forward(self, picture, table):
        return self.output(torch.cat([self.picture(picture), self.table(table)], 1))


def nested_forward(model, batch):
    return model(**batch["input"])


def nested_loss(output, batch):
    return F.cross_entropy(output, batch["target"])


def nested_target(output, batch):
    return F.cross_entropy(output, batch["target"], reduction="none")


def with_method(method):
    noise = {"own:little": nn.Dropout(0.1), "own:shifted": nn.AlphaDropout(0.3)}.get(str(method), nn.Identity())
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), noise, nn.Linear(16, 1))


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def cosine(optimiser, total):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)


def far():
    return 5 * _random(30, 6, seed=4)


def loop(job):
    model = job.build(regressor)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(job.seed))
    job.same("data", {"x": x, "note": ("text", 1, 0.5)})
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(1, 4):
        optimiser.zero_grad()
        losses = (model(x) - x[:, :1]).square()
        losses.mean().backward()
        optimiser.step()
        job.log(epoch, train_loss=float(losses.mean().detach()), test=float(losses.detach().mean()))
    return {"loss": float(losses.mean().detach()), "val": float(losses.detach().median())}


def asked(store):
    """Train with a loop around ``lab.ask``."""
    study = lab.Study(
        "asked",
        table,
        regressor,
        task="regression",
        metric=lab.Metric("loss"),
        methods=["original", "none", "gaussian:match"],
        runs=2,
    )
    for job in lab.ask(study, store=store):
        job.seed_everything()
        model = job.build(regressor)
        x = _random(32, 6, seed=job.seed)
        job.same("data", x)
        model.train()
        losses = (model(x) - x[:, :1]).square().mean(1).detach()
        job.log(1, train_loss=float(losses.mean()))
        job.tell(float(losses.mean()), per_example=losses)


def _lab_model(**options):
    return {"model": MLP(widths=(64, 24, 16, 10), initialisation=Glorot(), **options)}


def _study(name, data=classes, model=classifier, **options):
    given = {"batch_size": 10, "epochs": 2, "runs": 2, "threads": 1, **options}
    return adapter.study(name=name, data=data, **({} if model is None else {"model": model}), **given)


STUDIES = [
    _study("mlp", images, methods=ALL, reference="bernoulli", **_lab_model(), **AdamCosine(batch_size=10).settings()),
    _study(
        "mlp-authors",
        images_in_order,
        methods=AUTHORS,
        reference="none",
        scale="paper",
        **_lab_model(scale="paper", activation="sigmoid", input_keep=0.8, whole_inputs=("none",)),
        **Authors(batch_size=10).settings(),
        measure=UnusedError(batch_size=16),
    ),
    _study(
        "mlp-hinton",
        images,
        methods=("none", "gaussian", "uniform"),
        reference="none",
        scale="paper",
        runs=1,
        evaluate="last",
        **_lab_model(scale="paper"),
        **Hinton(batch_size=10, learning_rate=1.0).settings(),
        measure=Covariance(("hidden1", "hidden2"), inputs=3, repeats=50, bins=20, largest=2.0),
    ),
    _study(
        "mlp-common-noise",
        images,
        methods=("none", "bernoulli:r=1", "gaussian:variance=0.1"),
        reference="none",
        runs=1,
        **_lab_model(),
        **Adam(batch_size=10).settings(),
        measure=CommonNoise(_lab_model()["model"], repeats=50),
    ),
    _study(
        "cnn",
        images,
        CNN(maps=(4,), kernel=3, hidden=16, image=(1, 8, 8)),
        methods=("none", "gaussian", "uniform", "fast"),
        reference="none",
        evaluation_batch_size=16,
        **Plateau(batch_size=10).settings(),
    ),
    _study(
        "conv-local",
        colours,
        ConvLocal(image=(3, 12, 12), maps=(4, 4, 4, 4), hidden=16),
        runs=1,
        methods=("none", "gaussian", "adaptive"),
        reference="none",
        networks=2,
        **LayeredPlateau(batch_size=10).settings(),
    ),
    _study("regression", table, regressor, methods=CONTROLS, task="regression", margin=0.01),
    _study(
        "classification", metric=["error", "nll", "auroc", "ece", "f1", "brier"], optimizer=momentum, scheduler=cosine
    ),
    _study(
        "applied",
        methods=("original", "adaptive", "dropconnect", "fast", "uniform", "gaussian:sigma=0.2"),
        clip=1.0,
        accumulate=2,
    ),
    _study(
        "own", table, with_method, methods=("none", "own:little", "own:shifted"), reference="none", task="regression"
    ),
    lab.Study("own-loop", metric=lab.Metric("loss"), run=loop, runs=2, methods=["original", "none", "normal:r=0.5"]),
    _study(
        "candidates",
        methods=("none", "bernoulli", "gaussian", "bernoulli-matched"),
        reference="none",
        epochs=3,
        selection=lab.Selection(
            candidates={"gaussian": ("gaussian:sigma=0.2", "gaussian:sigma=0.4", "gaussian:sigma=0.3@0.5")},
            follows={"bernoulli-matched": "gaussian"},
            runs=2,
            epochs=1,
        ),
        model=MLP(widths=(6, 12, 2), initialisation=Normal(0.1)),
    ),
    _study("networks", networks=2, methods=("original", "gaussian:match"), epoch_steps=4, steps=7),
    _study(
        "augmented",
        augmented,
        MLP(widths=(36, 16, 10)),
        methods=("none", "uniform"),
        reference="none",
        forward=_CHANGES.forward,
        **Steps(batch_size=10).settings(),
    ),
    _study(
        "cropped",
        cropped,
        MLP(widths=(36, 16, 10)),
        methods=("none", "gaussian"),
        reference="none",
        runs=1,
        forward=crop_forward,
        **Adam(batch_size=10).settings(),
    ),
    _study(
        "convolutional", floating, convolutional, methods=("original", "bernoulli:match", "none"), evaluate=2, epochs=3
    ),
    _study(
        "items",
        items,
        three_classes,
        forward=items_forward,
        loss=items_loss,
        methods=("original", "gaussian:match"),
        metric=lab.Metric("loss", items_losses),
        task=None,
    ),
    _study(
        "nested",
        nested,
        Both,
        forward=nested_forward,
        loss=nested_loss,
        task=None,
        metric=lab.Metric("loss", nested_target),
        methods=("original", "uniform:match"),
    ),
    _study(
        "weights",
        model=normalised,
        weights="last",
        keep="best",
        patience=1,
        epochs=4,
        methods=("original", "gaussian:match"),
    ),
    _study(
        "uncertainty",
        runs=1,
        methods=("original", "none", "gaussian:match"),
        measure=lab.uncertainty(5, ood=far, batch_size=32),
    ),
    _study("bfloat16", precision="bfloat16", methods=("original", "gaussian:match"), runs=1),
]
