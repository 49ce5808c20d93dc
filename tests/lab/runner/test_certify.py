"""``contdrop certify``: certificates of a small study's networks, and what it refuses."""

import json

import pytest
import torch

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab import api
from contdrop.lab.data.data import prepare
from contdrop.lab.runner import certify
from contdrop.lab.study import source

pytestmark = pytest.mark.usefixtures("one_thread")

STUDY = """
import torch
from contdrop import lab

def data():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (900,), generator=generator)
    x = 2 * torch.eye(3)[y] + torch.randn(900, 3, generator=generator)
    return lab.Data(train=(x[:600], y[:600]), test=(x[600:], y[600:]), validation=300, groups=GROUPS)

def model():
    return torch.nn.Sequential(
        torch.nn.Linear(3, 16), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.3)), torch.nn.Linear(16, 3)
    )

class Doubling(torch.nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)

def doubling():
    return Doubling(*model())

def normalised():
    return torch.nn.Sequential(torch.nn.BatchNorm1d(3), *model())

def coupled():
    return torch.nn.Sequential(torch.nn.BatchNorm1d(3, track_running_stats=False), *model())

def plateau(optimizer, total):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

def cosine(optimizer, total):
    assert total == 3 * 5  # steps of 64 examples
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

study = lab.Study(
    name="small", data=data, model=MODEL, task="classification", methods=METHODS, reference=METHODS[0], epochs=3,
    runs=1,
).replace(EXTRA)
"""
METHODS = ("original", "none", "gaussian:match")


@pytest.fixture
def study(tmp_path):
    def made(extra='weights="last"', run=True, model="model", methods=METHODS, groups=None):
        path = tmp_path / "small.py"
        replaced = {"EXTRA": extra, "MODEL": model, "METHODS": repr(methods), "GROUPS": str(groups)}
        text = STUDY
        for name, value in replaced.items():
            text = text.replace(name, value)
        path.write_text(text)
        if run:
            api.compare(source.load_file(path), store=tmp_path / "small.db", workers=0, device="cpu", progress=False)
        return path

    return made


def test_certificates_of_a_study_file(study, cli, tmp_path):
    path = study()
    options = ["--store", "small.db", "--pac-bayes", 2, "--members", 10, "--json", "--plot", "bounds.svg"]
    code, out, err = cli("certify", path, *options)
    assert code == 0, err
    found = {each["method"]: each for each in json.loads(out)["methods"]}
    assert set(found) == {"original", "none", "gaussian:match"}
    assert "member" not in found["none"]
    for each in found.values():
        assert each["mean"]["n"] == 300
        assert each["mean"]["errors"] / 300 < each["mean"]["bound"] < 1
        made = each["pac_bayes"]
        assert made["n"] == 300
        assert made["empirical"] < made["bound"] <= 1
    gaussian = found["gaussian:match"]
    assert gaussian["brier"]["mixture"] == pytest.approx(gaussian["brier"]["members"] - gaussian["brier"]["diversity"])
    assert (tmp_path / "bounds.svg").read_text().startswith("<?xml")
    assert json.loads(cli("certify", path, *options)[1])["methods"] == list(found.values())  # all of it seeded
    code, out, _ = cli("certify", path, "--store", "small.db")
    assert code == 0
    assert "<=" in out
    code, _, err = cli("certify", path, "--store", "small.db", "--masks", "fixed")
    assert code == 2
    assert "is a torch.Dropout; use masks='fresh'" in err


PLATEAU = 'scheduler=plateau, schedule_by="epoch"'
SIZE = 'sizes={"odd": lab.Size(runs=1, epochs=3, settings={"keep": "best"})}'


@pytest.mark.parametrize(
    ("extra", "options", "message"),
    [
        ('weights="last"', ("--part", "train"), "train examples, which were trained on"),
        ('weights="last", keep="best"', ("--part", "validation"), "examples, which chose parameters or epochs"),
        ('weights="last", keep="best"', ("--pac-bayes", 1), "examples, which chose parameters or epochs"),
        (f'weights="last", {SIZE}', ("--part", "validation"), "examples, which chose parameters or epochs"),
        (f'weights="last", {PLATEAU}', ("--part", "validation"), "examples, which decided the learning rate"),
        (f'weights="last", {PLATEAU}', ("--pac-bayes", 1), "examples, which decided the learning rate"),
        ("", (), "were not kept; give the study weights='last'"),
        ('weights="last"', ("--run", 7), "--run: expected a run with a finished network; got 7"),
    ],
)  # fmt: skip
def test_what_would_not_hold_is_refused_in_one_line(study, cli, extra, options, message):
    code, out, err = cli("certify", study(extra), "--store", "small.db", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("contdrop:") == 1


def test_a_schedule_without_a_look_at_the_validation_examples_leaves_them_unseen(study, cli):
    path = study('weights="last", scheduler=cosine', methods=("original",))
    code, _, err = cli("certify", path, "--store", "small.db", "--part", "validation", "--members", 2)
    assert code == 0, err


def test_test_examples_do_not_mind_how_the_validation_examples_were_used(study, cli):
    path = study(f'weights="last", {PLATEAU}', methods=("original",))
    code, _, err = cli("certify", path, "--store", "small.db", "--members", 2)
    assert code == 0, err


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"model": "coupled"}, (), "0 is a BatchNorm1d that keeps no running statistics"),
        ({"model": "coupled", "methods": ("none",)}, (), "0 is a BatchNorm1d that keeps no running statistics"),
        ({"model": "normalised"}, ("--pac-bayes", 1), "--pac-bayes: pac_bayes_certificate: expected linear layers and"),
        ({"model": "doubling"}, ("--pac-bayes", 1), "got Doubling with a forward or hooks of its own"),
        ({"groups": "y[:600] + 3 * (torch.arange(600) // 10)"}, ("--part", "validation"), "groups of dependent ones"),
    ],
)  # fmt: skip
def test_networks_and_data_that_no_bound_holds_for_are_refused_in_one_line(study, cli, change, options, message):
    code, out, err = cli("certify", study(**change), "--store", "small.db", "--members", 2, *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("contdrop:") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--delta", 0), "--delta: expected a number above 0 and at most 0.5; got 0"),
        (("--part", "odd"), "--part: expected test or validation; got 'odd'"),
        (("--members", 1), "--members, --pac-bayes: expected at least 2 masks"),
        (("--masks", "odd"), "--masks: expected fresh or fixed; got 'odd'"),
        (("--plot", "bounds.gif"), "--plot: expected a file name that ends in"),
    ],
)
def test_bad_options_are_one_line(study, cli, options, message):
    code, _, err = cli("certify", study(run=False), *options)
    assert code == 2
    assert message in err


def test_outputs_and_targets_that_are_no_classes_are_refused():
    for output in (1, 3):
        network = torch.nn.Sequential(torch.nn.Linear(3, output), torch.nn.Unflatten(1, (output, 1)))
        with pytest.raises(UserError, match=rf"one logit per class, \[N, classes\]; got output \[2, {output}, 1\] for"):
            certify._check_logits(network, torch.zeros(4, 3))
    with pytest.raises(UserError, match=r"got output \[2, 1\] for 2 examples"):
        certify._check_logits(torch.nn.Linear(3, 1), torch.zeros(4, 3))
    x, y = torch.zeros(40, 3), torch.zeros(40, 2)
    own = lab.Study("own", lambda: lab.Data(train=(x, y), test=0.2), lambda: torch.nn.Linear(3, 2))
    part = prepare(own.data(), task="classification").parts(0, "final", 0).test
    with pytest.raises(
        UserError, match=r"own: certify: expected one class per example, .* got targets of float32 \[8, 2\]"
    ):
        certify._examples(part, own)
