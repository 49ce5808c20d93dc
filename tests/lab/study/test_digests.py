"""Digests of a study's functions: an optimizer whose settings the first two losses cannot show."""

import json
import sys

import pytest
import torch
from torch import nn

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.store.writer import Store
from contdrop.lab.study import digests, user_errors
from contdrop.replication.recipes import Adam

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
    with pytest.raises(UserError, match=r"the code of optimizer is not what the results in .*runs\.db were made with"):
        compare(tmp_path, descent(0.9), runs=3)
    with Store(tmp_path / "runs.db") as store:
        assert len(store.jobs()) == 4


def test_a_store_that_knows_no_digest_of_the_optimizer_goes_on(tmp_path, monkeypatch):
    of_study = digests.of_study
    monkeypatch.setattr(
        digests, "of_study", lambda study: {n: each for n, each in of_study(study).items() if n != "optimizer"}
    )
    compare(tmp_path, descent(0.0))
    monkeypatch.undo()
    assert len(compare(tmp_path, descent(0.0), runs=2).results.finished) == 4


def test_every_function_has_its_digest_and_recipes_have_the_same_each_time():
    found = digests.of_study(STUDY)
    assert set(found) == {"metric", "run", "measure", "scheduler", "loss", "forward", "optimizer"}
    one, other = (digests.of_study(STUDY.replace(**Adam().settings())) for _ in range(2))
    assert one == other


def test_users_code_is_what_no_installation_brought():
    mine = [f"{sys.base_prefix}/src/app/my_study.py", "/home/me/my_study.py"]
    theirs = [json.__file__, torch.__file__, digests.__file__, "/usr/lib/python3/dist-packages/six.py", "<string>"]
    assert [user_errors.is_users(file) for file in mine + theirs] == [True] * 2 + [False] * 5
