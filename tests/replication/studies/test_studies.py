"""The catalogue's studies: that they are consistent, plain settings that anybody's study may use."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from contdrop import coadaptation
from contdrop.lab.data.data import prepare
from contdrop.lab.study.methods import parse
from contdrop.lab.study.study import Study
from contdrop.lab.training import random_streams
from contdrop.replication import datasets, studies
from contdrop.replication.networks import CNN, MLP
from contdrop.replication.networks.models import Glorot
from contdrop.replication.studies import dose, evidence
from contdrop.replication.studies.common import Covariance, Images, InOrder

every_study = pytest.mark.parametrize("study", studies.STUDIES.values(), ids=list(studies.STUDIES))
DIVISORS = {"digits": 16.0, "mnist": 255.0, "fashion-mnist": 255.0}


of_images = pytest.mark.parametrize(
    "study", [each for each in studies.STUDIES.values() if isinstance(each.data, Images)], ids=lambda study: study.name
)


@of_images
def test_study_network_and_data_agree(study):
    for preset in study.presets:
        sized = study.at(preset)
        assert sized.scale == sized.model.scale
        assert sized.model.divisor == DIVISORS[sized.data.name]
        source = datasets.find(sized.data.name)
        assert sized.data.train + sized.data.validation <= source.train
        network = sized.model(parse("gaussian"))
        logits = network(torch.zeros(2, *source.shape, dtype=torch.uint8))
        assert logits.shape == (2, len(source.classes))
        assert sized.training.evaluation_batch_size == 1000
        assert sized.reference in sized.methods
        if sized.data.batches:
            assert sized.data.batches.batch_size == sized.batch_size


@every_study
def test_optimizer_and_schedule_are_of_one_recipe_at_every_size(study):
    for preset, size in study.presets.items():
        sized = study.at(preset)
        recipe = sized.optimizer.__self__
        settings = {**vars(sized), **vars(sized.training)}
        assert {name: each for name, each in settings.items() if name in recipe.settings()} == recipe.settings()
        ramps = hasattr(recipe, "original_epochs")
        whole = preset == "paper" or study in (*dose.STUDIES, evidence.AUTHORS_300, evidence.AUTHORS_1000)
        assert not ramps or recipe.original_epochs == (3000 if whole else 1000)
        optimizer = sized.optimizer(MLP((4, 3, 2))(parse("none")))
        scheduler = sized.training.scheduler
        assert scheduler is None or scheduler(optimizer, size.epochs).optimizer is optimizer


def test_the_shorter_authors_run_is_the_start_of_the_longer_one():
    settings = []
    for study in (evidence.AUTHORS_100, evidence.AUTHORS_300):
        optimizer = study.optimizer(MLP((4, 3, 2))(parse("none")))
        table = study.training.scheduler(optimizer, study.sizes["quick"].epochs)
        steps = []
        for _ in range(100):
            steps.append({name: each for name, each in optimizer.param_groups[0].items() if name != "params"})
            optimizer.step()
            table.step()
        settings.append(steps)
    assert settings[0] == settings[1]
    assert settings[0][0] != settings[0][99]


def test_the_second_protocol_changes_one_thing_between_neighbours():
    for group in (evidence.MNIST_1000, evidence.MNIST_5000, evidence.FASHION_5000, evidence.FASHION_CNN_1000):
        for study, epochs in zip(group, evidence.LENGTHS, strict=True):
            assert study.name.endswith(f"-{epochs}")
            assert study.sizes["quick"].epochs == epochs
            assert study.seed == evidence.SEED != 0
            assert study.configuration == group[0].configuration
            assert set(study.methods) <= set(group[0].methods)


@every_study
def test_a_study_reaches_another_process(study):
    again = pickle.loads(pickle.dumps(study))
    assert again.configuration == study.configuration
    assert isinstance(again, Study)


def test_divisors_are_those_of_the_data():
    assert datasets.load("digits").divisor == DIVISORS["digits"]


def test_settings_of_the_mnist_tables():
    for study, rate in zip(studies.find("mnist-mlp"), (2.0, 1.0)):
        for preset in study.presets:
            described = study.at(preset).configuration
            assert {"kind": "hinton", "learning_rate": rate}.items() <= described["training"]["optimiser"].items()
            assert described["model"]["initialisation"] == {"kind": "normal", "std": 0.01}
            assert described["model"]["input_keep"] == 1.0
            assert described["data"]["batches"] is None
    for study, activation, gain in zip(studies.find("mnist-mlp-authors"), ("sigmoid", "relu"), (4.0, 1.0)):
        described = study.at("quick").configuration
        assert described["training"]["optimiser"]["kind"] == "authors"
        model = {"activation": activation, "input_keep": 0.8, "whole_inputs": ["none"]}
        model["initialisation"] = {"kind": "glorot", "gain": gain, "zero_output": True}
        assert model.items() <= described["model"].items()
        assert described["data"]["batches"] == {"kind": "in-order", "batch_size": 100}
    for name, kind in (("mnist-cnn-gaussian", "normal"), ("mnist-cnn-uniform", "glorot")):
        assert studies.STUDIES[name].model.initialisation.kind == kind


@every_study
def test_a_margin_of_tables_1_to_3_is_of_the_table_and_the_units_of_its_study(study):
    """Its reason quotes the paper's errors, and a variant of another study inherits those of another table."""
    if "Table I " in study.description.margin_reason:
        expected = {"sigmoid": (0.1, "1.15 and 1.35"), "relu": (0.05, "0.95 and 1.06")}[study.model.activation]
        assert (study.margin, study.description.margin_reason[-15:-2]) == expected
    elif isinstance(study.model, CNN) and study.data.name == "mnist":
        is_uniform = isinstance(study.model.initialisation, Glorot)
        figures = "Table III, 0.521 and 0.558 %" if is_uniform else "Table II, 0.534 and 0.551 %"
        assert study.description.margin_reason.endswith(figures)


def test_notes_of_the_authors_recipe_name_only_what_is_done():
    study = studies.STUDIES["replication-authors-relu"]
    assert not study.selection.candidates
    for word in ("selected on validation", "adaptive", "dropconnect"):
        assert word not in " ".join(study.description.notes)


@pytest.mark.parametrize("name", ["mlp-sigmoid", "mlp-relu", "cnn-gaussian", "cnn-uniform"])
def test_fashion_is_trained_as_mnist_is(name):
    fashion, mnist = studies.STUDIES[f"fashion-{name}"], studies.STUDIES[f"mnist-{name}"]
    assert fashion.data == dataclasses.replace(mnist.data, name="fashion-mnist")
    for preset in mnist.presets:
        theirs = mnist.at(preset).configuration | {"data": fashion.data.as_dict()}
        assert fashion.at(preset).configuration == theirs
    assert fashion.description.title == mnist.description.title.replace("MNIST", "Fashion-MNIST")
    assert fashion.methods == mnist.methods
    assert fashion.description.paper == ""
    assert fashion.margin == 0.2


# Their data and what they measure.


def test_images_of_a_run():
    prepared = prepare(Images("digits", train=100, validation=300)(), task="classification")
    found = datasets.load("digits")
    for run in range(2):
        parts = prepared.parts(5, "final", run)
        order = np.random.Generator(np.random.Philox(random_streams.seed(5, "final", run, random_streams.SPLIT)))
        chosen = order.permutation(len(found.train_labels))
        wanted = {"train": np.sort(chosen[:100]), "validation": np.sort(chosen[100:400])}
        for name, indices in wanted.items():
            part = getattr(parts, name)
            (batch,) = part.batches(part.order(None, 1000))
            assert batch[0].dtype == torch.uint8
            assert np.array_equal(batch[0].numpy(), found.train_images[indices])
            assert np.array_equal(batch[1].numpy(), found.train_labels[indices])
        assert len(parts.test) == len(found.test_labels)


def test_data_are_read_from_where_they_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CONTDROP_DATA", str(tmp_path))
    with pytest.raises(datasets.MissingError, match=str(tmp_path)):
        Images("mnist", train=1, validation=1)()


def test_batches_in_order():
    assert [list(batch) for batch in InOrder(3)("examples", None)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    images = Images("digits", train=100, validation=300, batches=InOrder(40))
    part = prepare(images(), task="classification").parts(0, "final", 0).train
    for seed in (1, 2):
        assert [batch.tolist() for batch in part.order(seed, 7)] == [[*range(40)], [*range(40, 80)], [*range(80, 100)]]


def test_covariances_are_those_of_validation_images_drawn_by_the_seed():
    prepared = prepare(Images("digits", train=100, validation=300)(), task="classification")
    parts = prepared.parts(0, "final", 0)
    model = MLP((64, 12, 8, 10), divisor=16.0, scale="paper", initialisation=Glorot())
    torch.manual_seed(3)
    network = model(parse("bernoulli")).eval()
    measure = Covariance(layers=model.hidden_layers, inputs=4, repeats=60, bins=11, largest=0.05)
    kept = measure(network, parts, 17)
    (images, _), *_ = parts.validation.batches(parts.validation.order(None, 300))
    pixels = images[random_streams.permutation(300, 17)[:4].tolist()].to(torch.float32) / 16
    found = coadaptation(network, pixels, ["hidden1", "hidden2"], 60, seed=17)
    assert list(kept) == ["covariance_edges", "covariance_layer1", "covariance_layer2"]
    edges = torch.linspace(-0.05, 0.05, 12, dtype=torch.float64)
    assert np.array_equal(kept["covariance_edges"], edges.numpy())
    for number in (1, 2):
        counts = kept[f"covariance_layer{number}"]
        assert np.array_equal(counts, found.histogram(f"hidden{number}", edges)[0].numpy())
        assert (counts > 0).sum() > 1
    assert any(not np.array_equal(kept[name], other) for name, other in measure(network, parts, 18).items())
