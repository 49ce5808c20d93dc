"""The study on features of the published network in network: its data, its recipe, and a tiny run with its page."""

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.lab.data.data import prepare
from contdrop.replication import studies
from contdrop.replication.studies import cifar_studies

RANDOM = np.random.default_rng(0)
STUDY = studies.STUDIES["cifar10-nin-head"]


class Found:
    """What CIFAR-10 has, with fewer training images."""

    name = "cifar-10"
    train_labels = RANDOM.integers(0, 10, 500)
    test_labels = RANDOM.integers(0, 10, 10_000)


FEATURES = {
    "train": 33 * RANDOM.random((500, 640)).astype(np.float32),
    "test": np.arange(10_000, dtype=np.float32)[:, None] * np.ones(640, np.float32),
}


@pytest.fixture
def made(monkeypatch, tmp_path):
    monkeypatch.setenv("CONTDROP_DATA", str(tmp_path))
    folder = tmp_path / "nin-cifar10"
    folder.mkdir()
    (folder / "cifar10_nin.caffemodel").write_bytes(b"")
    monkeypatch.setattr(cifar_studies.datasets, "load", lambda name: Found)
    monkeypatch.setattr(cifar_studies.pretrained, "nin_features", lambda found, path, part: FEATURES[part])
    return prepare(STUDY.data(), task="classification").parts(0, "final", 0)


def test_nothing_is_validated_on_images_that_the_network_has_seen(made):
    assert made.sizes == {"train": 500, "validation": 2000, "test": 8000}
    scale = np.sqrt(np.mean(FEATURES["train"].astype(np.float64) ** 2))
    numbers = {}
    for part in (made.validation, made.test):
        ((features, labels),) = part.batches(part.order(None, 10_000))
        numbers[part.name] = np.round(features[:, 0].numpy() * scale).astype(int)
        np.testing.assert_array_equal(labels, Found.test_labels[numbers[part.name]])
    assert sorted([*numbers["validation"], *numbers["test"]]) == list(range(10_000))
    assert numbers["validation"][:5].tolist() == [3, 6, 28, 40, 42]  # results rest on these


def test_features_have_a_mean_square_of_one(made):
    ((features, _),) = made.train.batches(made.train.order(None, 500))
    assert float(features.double().square().mean()) == pytest.approx(1, rel=1e-5)


def test_without_the_weights_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("CONTDROP_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"^nin-cifar10: the weights are missing; put cifar10_nin\.caffemodel into "):
        STUDY.data()


def test_every_continuous_law_has_its_control():
    assert {"gaussian", "bernoulli-matched", "uniform", "bernoulli-matched:uniform"} <= set(STUDY.methods)
    assert STUDY.selection.follows["bernoulli-matched"] == "gaussian"
    assert STUDY.scale == "inverted"
