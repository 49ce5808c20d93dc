"""A small study, with its dry run, its training and its comparison in this process."""

import torch
from torch import nn

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.study import dry_run
from contdrop.lab.study.plan import Variant, plan
from contdrop.lab.training.trainer import Trainer

X = torch.randn(120, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def data():
    return lab.Data(train=(X, Y), test=0.25, validation=0.2)


def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


STUDY = lab.Study("own", data, model, epochs=2, runs=1, batch_size=16, methods=["original", "none"])  # 5 steps a pass


def rehearse(**change):
    study = STUDY.replace(**change)
    return dry_run.dry_run(plan(study), prepare(study.data(), task=study.task))


def begin(label="original", **change):
    study = STUDY.replace(**change)
    job = next(job for job in plan(study) if job.method == label.partition("@")[0])
    return Trainer(job, Variant.parse(label), prepare(study.data(), task=study.task))


def compare(tmp_path, *, options=None, **change):
    chosen = {"store": tmp_path / "runs.db", "workers": 0, "device": "cpu", "progress": False, **(options or {})}
    return lab.compare(STUDY.replace(**change), **chosen)
