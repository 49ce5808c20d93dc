"""Published weights: both kinds of file, shapes layer by layer, the network in network, and ``contdrop weights``."""

import functools
import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("typer")

from caffe_files import field, layer, model, varint
from contdrop.errors import UserError
from contdrop.replication import pretrained
from contdrop.replication.networks.models import convolutions, published_nin
from contdrop.replication.preprocessing import Whitening
from data_files import REAL, real
from fuzzing import by_file, mutants, refusal, refuses, survives

RANDOM = np.random.default_rng(0)
LAYERS = {
    "conv": (RANDOM.normal(size=(4, 3, 5, 5)), RANDOM.normal(size=4)),
    "fc": (RANDOM.normal(size=(7, 16)), RANDOM.normal(size=7)),
}


def network():
    found = nn.Sequential()
    found.add_module("conv", nn.Conv2d(3, 4, 5))
    found.add_module("fc", nn.Linear(16, 7))
    return found


@pytest.fixture
def file(tmp_path):
    def write(content):
        (tmp_path / "file").write_bytes(content)
        return tmp_path / "file"

    return write


@pytest.mark.parametrize("old", [True, False])
def test_a_caffe_model(file, old):
    made = network()
    assigned = pretrained.assign(made, pretrained.read(file(model(LAYERS, old))), "file")
    assert assigned.layers == {"conv": (4, 3, 5, 5), "fc": (7, 16)}
    assert (assigned.left, assigned.unused) == ((), ())
    for name, (weight, bias) in LAYERS.items():
        np.testing.assert_array_equal(made.get_submodule(name).weight.detach(), weight.astype(np.float32))
        np.testing.assert_array_equal(made.get_submodule(name).bias.detach(), bias.astype(np.float32))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_state_dict(tmp_path, nested, legacy):
    torch.manual_seed(1)
    saved, made = network(), network()
    content = {"state_dict": saved.state_dict(), "epoch": 3} if nested else saved.state_dict()
    torch.save(content, tmp_path / "file", _use_new_zipfile_serialization=not legacy)
    pretrained.assign(made, pretrained.read(tmp_path / "file"), "file")
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), made.parameters()))


def test_layers_that_are_in_one_place_only(file):
    content = pretrained.read(file(model({"conv": LAYERS["conv"], "loss3": LAYERS["fc"]})))
    made = network()
    before = made.fc.weight.clone()
    assigned = pretrained.assign(made, content, "file")
    assert (assigned.left, assigned.unused) == (("fc",), ("loss3",))
    assert torch.equal(made.fc.weight, before)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"conv": (np.ones((4, 3, 3, 3)), np.ones(4))}, "expected weights of 4x3x5x5 and 4; got 4x3x3x3 and 1x1x1x4"),
        ({"conv": (np.ones((3, 4, 5, 5)), np.ones(4))}, "expected weights of 4x3x5x5 and 4; got 3x4x5x5 and 1x1x1x4"),
        ({"conv": (np.ones((4, 3, 5, 5)),)}, "expected weights of 4x3x5x5 and 4; got 4x3x5x5"),
        ({"x": (np.ones(1),)}, "file: expected layers such as conv, fc; got x"),
    ],
)
def test_other_shapes_change_nothing(file, layers, message):
    made = network()
    before = [parameter.clone() for parameter in made.parameters()]
    found = pretrained.read(file(model(layers if "x" in layers else {"fc": LAYERS["fc"], **layers})))
    assert message in refusal(pretrained.assign, made, found, "file")
    assert all(torch.equal(a, b) for a, b in zip(before, made.parameters()))


GOOD = model(LAYERS)


REFUSED = [
    (b"", "expected a Caffe model; it is empty"),
    (GOOD[:-9], "damaged or no Caffe model: the field at byte "),
    (GOOD + b"\x12", "it ends in the middle of a number, at byte "),
    (GOOD + layer("conv", [np.ones(1)]), "two layers are called 'conv'"),
    (varint(2 << 3 | 2) + varint(2**40), "would end 1,099,511,627,776 bytes after what it is in"),
    (
        field(2, field(4, b"a") + field(6, field(1, 2**40) + field(5, bytes(8)))),
        "'a' has 2 values where its shape ",
    ),
    (field(2, field(6, field(7, field(1, varint(2) * 99)))), "a shape has more than 8 dimensions"),
    (field(2, field(6, varint(5 << 3 | 5) + bytes(4))), "values that are not packed numbers of single precision"),
    (field(2, field(6, field(5, bytes(7)))), "values that are not packed numbers of single precision"),
    (b"\x80" * 11, "a number of more than ten bytes"),
    (b"\x08\x01" * 100_001, "it has more than 100,000 fields"),
    (b"\x0b\x00", "byte 0 starts a field of no known type"),
    (b'name: "net" layers { name: "data" }', "damaged or no Caffe model: "),
    (field(1, b"net"), "expected a Caffe model with weights; it has none"),
    (b"PK\x03\x04", "damaged, or more than the tensors of a state_dict ("),
    (b"\x80\x02cposix\nsystem\nU\x04true\x85R.", "damaged, or more than the tensors of a state_dict ("),
]


def test_other_files_get_one_line(file):
    path = file(b"")
    refuses(lambda: pretrained.read(path), path, REFUSED, 2_000_000)


def test_what_is_no_file(tmp_path):
    for path, what in ((tmp_path, "a directory"), (tmp_path / "nothing", "not there")):
        with pytest.raises(UserError, match=f"expected a file of weights; it is {what}"):
            pretrained.read(path)


def test_a_state_dict_of_something_else(tmp_path):
    torch.save({"weight": torch.ones(1), "count.weight": torch.ones(1, dtype=torch.int64)}, tmp_path / "file")
    layers = pretrained.read(tmp_path / "file")
    assert list(layers) == [""]
    torch.save([1, 2], tmp_path / "file")
    with pytest.raises(UserError, match="expected a state_dict, tensors called layer"):
        pretrained.read(tmp_path / "file")


def reader(path):
    return by_file(path, lambda path: pretrained.assign(network(), pretrained.read(path), "file"))


SMALL = model({"conv": (np.ones((2, 1, 2, 2)), np.ones(2)), "fc": (np.ones((2, 2)), np.ones(2))}, old=False)
FILES = [(GOOD, range(40)), (SMALL, ())]


@mutants
def test_mutated_files(tmp_path, mutants):
    assert survives(reader(tmp_path / "file"), FILES, mutants) > 0.3 * mutants


def test_mutated_state_dicts(tmp_path):
    torch.save(network().state_dict(), tmp_path / "good")
    content = (tmp_path / "good").read_bytes()
    assert survives(reader(tmp_path / "file"), [(content, range(len(content) - 1500, len(content)))], 300) > 30


# Network in network


def test_nin_is_the_network_of_the_model_zoo():
    made = published_nin()
    assert sum(parameter.numel() for parameter in made.parameters()) == 966_986
    maps = nn.Sequential(*convolutions().values())(torch.rand(2, 3, 32, 32))
    assert maps.shape == (2, 10, 8, 8)
    assert made(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_pooling_is_that_of_caffe():
    """Windows that reach over the edge are cut off there, and averaged over what is left."""
    maps = torch.rand(1, 1, 16, 16)
    pool = convolutions()["pool2"](maps)
    assert pool.shape == (1, 1, 8, 8)
    for row in range(8):
        for column in range(8):
            window = maps[0, 0, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            assert pool[0, 0, row, column] == pytest.approx(float(window.mean()), abs=1e-6)


def _published():
    real("nin-cifar10")
    return pretrained.find("nin-cifar10").path(REAL)


def test_published_weights_fit():
    assigned = pretrained.assign(published_nin(), pretrained.read(_published()), "file")
    assert len(assigned.layers) == 9
    assert (assigned.left, assigned.unused) == ((), ())


@pytest.mark.slow
def test_published_error():
    """Reader, preprocessing, network and import together; published: 10.4 %."""
    path = _published()
    real("cifar-10")
    assert pretrained.error_on_test_images(path, REAL) <= 10.9


class Small:
    """A data set of a few images, of random noise."""

    train_images = RANDOM.integers(0, 256, (30, 3, 32, 32)).astype(np.uint8)
    test_images = RANDOM.integers(0, 256, (20, 3, 32, 32)).astype(np.uint8)
    test_labels = RANDOM.integers(0, 10, 20)
    fingerprint = "small"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Random weights of the network, saved, and CIFAR-10 that is small."""
    monkeypatch.setenv("CONTDROP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrained.datasets, "load", lambda name, directory: Small)
    # The eigenvectors of a matrix of 3072 rows take a while, and 30 images do not tell their covariance.
    fitted = Whitening(np.zeros(3072, np.float32), np.eye(3072, dtype=np.float32))
    monkeypatch.setattr(pretrained, "nin_whitening", lambda found: fitted)
    torch.manual_seed(0)
    torch.save(published_nin().state_dict(), tmp_path / "nin.pt")
    return tmp_path / "nin.pt"


def test_features_are_the_maps_before_the_last_pooling(small, monkeypatch):
    made = published_nin()
    pretrained.assign(made, pretrained.read(small), "file")
    images = torch.from_numpy(pretrained.nin_whitened(Small.test_images, pretrained.nin_whitening(Small)))
    with torch.no_grad():
        logits = made.eval()(images)
    found = pretrained.nin_features(Small, small, "test")
    assert found.shape == (20, 640)
    np.testing.assert_allclose(found.reshape(20, 10, 64).mean(2), logits, atol=1e-5)
    wrong = 100 * float((logits.argmax(1).numpy() != Small.test_labels).mean())
    assert pretrained.error_on_test_images(small) == pytest.approx(wrong)
    monkeypatch.setattr(pretrained, "_in_batches", None)  # kept: not computed again
    np.testing.assert_array_equal(pretrained.nin_features(Small, small, "test"), found)


def test_features_of_random_layers_are_refused_also_if_they_are_kept(small):
    pretrained.nin_features(Small, small, "test")
    found = torch.load(small, weights_only=True)
    names = [name for name in found if name.startswith("cccp3")]
    torch.save({name: found[name] for name in found if name not in names}, small)
    with pytest.raises(UserError, match=r"nin.pt: expected weights of every layer [^;]*; got none of cccp3, which"):
        pretrained.nin_features(Small, small, "test")


class TestPretrained:
    """Networks that start from a published one with the layers "first" and "second"."""

    @pytest.fixture(autouse=True)
    def published(self, monkeypatch, tmp_path):
        monkeypatch.setenv("CONTDROP_DATA", str(tmp_path))
        known = pretrained.Published("two", "two layers", ("two.pt",), "nowhere", lambda: self.made("first", "second"))
        monkeypatch.setattr(pretrained, "PUBLISHED", (known,))
        (tmp_path / "two").mkdir()
        return tmp_path / "two" / "two.pt"

    @staticmethod
    def made(*names):
        return nn.Sequential(OrderedDict((name, nn.Linear(2, 2)) for name in names))

    def test_layers_that_the_published_network_does_not_have_stay_random(self, published):
        torch.save(self.made("first", "second").state_dict(), published)
        network = pretrained.Pretrained(lambda method: self.made("first", "new"), "two")(None)
        torch.testing.assert_close(network.first.weight, torch.load(published)["first.weight"])

    def test_layers_that_it_has_and_the_file_has_not_are_refused(self, published):
        torch.save(self.made("first").state_dict(), published)
        with pytest.raises(
            UserError, match=r"two.pt: expected weights of every layer [^;]*; got none of second, which"
        ):
            pretrained.Pretrained(lambda method: self.made("first", "second", "new"), "two")(None)
        pretrained.Pretrained(lambda method: self.made("first", "new"), "two")(None)  # it needs no more


# The command


@pytest.fixture
def run(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CONTDROP_DATA", str(tmp_path))
    return functools.partial(cli, "weights")


def test_list(run, tmp_path):
    assert run()[0] == 0
    code, out, err = run("list")
    assert (code, err) == (0, "")
    assert "nin-cifar10" in out
    assert "966,986" in out
    assert "138,357,544" in out
    row, vgg16 = json.loads(run("list", "--json")[1])["weights"]
    assert (vgg16["name"], vgg16["place"]) == ("vgg16", str(tmp_path / "vgg16" / "VGG_ILSVRC_16_layers.caffemodel"))
    assert (row["present"], row["place"]) == (False, str(tmp_path / "nin-cifar10" / "cifar10_nin.caffemodel"))


def test_check(run, small, tmp_path):
    code, out, err = run("check", "nin-cifar10", "--weights", str(small))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "conv1: ok, 192x3x5x5, 14,400 weights"
    assert len(lines) == 10
    assert lines[-1].startswith("test error on cifar-10: ")
    assert lines[-1].endswith(" % (published: 10.4 %)")
    found = json.loads(run("check", "nin-cifar10", "--weights", str(small), "--json")[1])
    assert found["test_error"] == pytest.approx(pretrained.error_on_test_images(small))


def test_check_says_what_stays_random_and_what_is_missing(run, tmp_path):
    state = published_nin().state_dict()
    torch.save(state, tmp_path / "whole.pt")
    del state["cccp6.weight"]
    torch.save(state | {"extra.weight": torch.ones(1)}, tmp_path / "part.pt")
    _, out, _ = run("check", "nin-cifar10", "--weights", str(tmp_path / "part.pt"))
    assert "\nno published weights, so random: cccp6\n" in out
    assert "\nnot used: 1 layer of the file, extra\n" in out
    assert out.endswith("test error: not measured, as some layers would be random\n")
    _, out, _ = run("check", "nin-cifar10", "--weights", str(tmp_path / "whole.pt"))
    assert "\ntest error: not measured, cifar-10: 6 of 6 files are missing; put data_batch_1.bin" in out
