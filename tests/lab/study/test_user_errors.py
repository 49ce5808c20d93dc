"""Digests of a study's functions: an optimizer whose settings the first two losses cannot show."""

import json
import sys

import pytest
import torch
from torch import nn

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.store.writer import Store
from contdrop.lab.study import amendments, user_errors

X = torch.randn(120, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def data():
    return lab.Data(train=(X, Y), test=0.25, validation=0.2)


def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def descent(momentum):
    return lambda network: torch.optim.SGD(network.parameters(), 0.1, momentum=momentum)


STUDY = lab.Study("own", data, model, epochs=1, runs=1, batch_size=16, methods=["original", "none"])


def compare(tmp_path, optimizer, runs=1):
    study = STUDY.replace(optimizer=optimizer, runs=runs)
    return lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)


def test_another_optimizer_is_refused_where_there_are_results(tmp_path):
    compare(tmp_path, descent(0.0))
    compare(tmp_path, descent(0.0), runs=2)
    with pytest.raises(
        UserError, match=r"is not what .*runs\.db was begun with: with original, optimizer has other values"
    ):
        compare(tmp_path, descent(0.9), runs=3)
    with Store(tmp_path / "runs.db") as store:
        assert len(store.jobs()) == 4


def test_users_code_is_what_no_installation_brought():
    mine = [f"{sys.base_prefix}/src/app/my_study.py", "/home/me/my_study.py"]
    theirs = [json.__file__, torch.__file__, amendments.__file__, "/usr/lib/python3/dist-packages/six.py", "<string>"]
    assert [user_errors.is_users(file) for file in mine + theirs] == [True] * 2 + [False] * 5
