"""The catalogue's studies: that they are consistent, plain settings that anybody's study may use."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from contdrop import coadaptation
from contdrop.lab import catalogue, data, streams
from contdrop.lab.batches import prepare
from contdrop.lab.catalogue import evidence, replication
from contdrop.lab.catalogue.covariance import Covariance
from contdrop.lab.catalogue.sources import Images, InOrder
from contdrop.lab.data import registry
from contdrop.lab.initialisation import Glorot
from contdrop.lab.methods import parse
from contdrop.lab.models import CNN, MLP
from contdrop.lab.study import Study

every_study = pytest.mark.parametrize("study", catalogue.STUDIES.values(), ids=list(catalogue.STUDIES))
DIVISORS = {"digits": 16.0, "mnist": 255.0, "fashion-mnist": 255.0}


of_images = pytest.mark.parametrize(
    "study",
    [each for each in catalogue.STUDIES.values() if isinstance(each.data, Images)],
    ids=lambda study: study.name,
)


@of_images
def test_study_network_and_data_agree(study):
    for preset in study.presets:
        sized = study.at(preset)
        assert sized.scale == sized.model.scale
        assert sized.model.divisor == DIVISORS[sized.data.name]
        source = registry.find(sized.data.name)
        assert sized.data.train + sized.data.validation <= source.train
        network = sized.model(parse("gaussian"))
        logits = network(torch.zeros(2, *source.shape, dtype=torch.uint8))
        assert logits.shape == (2, len(source.classes))
        assert sized.evaluation_batch_size == 1000
        assert sized.reference in sized.methods
        if sized.data.batches:
            assert sized.data.batches.batch_size == sized.batch_size


@every_study
def test_optimiser_and_schedule_are_of_one_recipe_at_every_size(study):
    for preset, size in study.presets.items():
        sized = study.at(preset)
        recipe = sized.optimiser.__self__
        assert {name: getattr(sized, name) for name in recipe.settings()} == recipe.settings()
        ramps = hasattr(recipe, "original_epochs")
        whole = preset == "paper" or study in (*replication.STUDIES, evidence.AUTHORS_300, evidence.AUTHORS_1000)
        assert not ramps or recipe.original_epochs == (3000 if whole else 1000)
        optimiser = sized.optimiser(MLP((4, 3, 2))(parse("none")))
        assert sized.scheduler is None or sized.scheduler(optimiser, size.epochs).optimizer is optimiser


def test_the_shorter_authors_run_is_the_start_of_the_longer_one():
    settings = []
    for study in (evidence.AUTHORS_100, evidence.AUTHORS_300):
        optimiser = study.optimiser(MLP((4, 3, 2))(parse("none")))
        table = study.scheduler(optimiser, study.sizes["quick"].epochs)
        steps = []
        for _ in range(100):
            steps.append({name: each for name, each in optimiser.param_groups[0].items() if name != "params"})
            optimiser.step()
            table.step()
        settings.append(steps)
    assert settings[0] == settings[1]
    assert settings[0][0] != settings[0][99]


def test_the_second_protocol_changes_one_thing_between_neighbours():
    for studies in (evidence.MNIST_1000, evidence.MNIST_5000, evidence.FASHION_5000, evidence.FASHION_CNN_1000):
        for study, epochs in zip(studies, evidence.LENGTHS, strict=True):
            assert study.name.endswith(f"-{epochs}")
            assert study.sizes["quick"].epochs == epochs
            assert study.seed == evidence.SEED != 0
            assert study.configuration == studies[0].configuration
            assert set(study.methods) <= set(studies[0].methods)


@every_study
def test_a_study_reaches_another_process(study):
    again = pickle.loads(pickle.dumps(study))
    assert again.configuration == study.configuration
    assert isinstance(again, Study)


def test_divisors_are_those_of_the_data():
    assert data.load("digits").divisor == DIVISORS["digits"]


def test_settings_of_the_mnist_tables():
    sigmoid, relu = catalogue.find("mnist-mlp")
    for study, rate in ((sigmoid, 2.0), (relu, 1.0)):
        for preset in study.presets:
            described = study.at(preset).configuration
            assert described["training"]["optimiser"]["kind"] == "hinton"
            assert described["training"]["optimiser"]["learning_rate"] == rate
            assert described["model"]["initialisation"] == {"kind": "normal", "std": 0.01}
            assert described["model"]["input_keep"] == 1.0
            assert described["data"]["batches"] is None
    gains = {}
    for study in catalogue.find("mnist-mlp-authors"):
        described = study.at("quick").configuration
        assert described["training"]["optimiser"]["kind"] == "authors"
        assert described["model"]["input_keep"] == 0.8
        assert described["model"]["whole_inputs"] == ["none"]
        assert described["model"]["initialisation"]["zero_output"]
        assert described["data"]["batches"] == {"kind": "in-order", "batch_size": 100}
        gains[described["model"]["activation"]] = described["model"]["initialisation"]["gain"]
    assert gains == {"sigmoid": 4.0, "relu": 1.0}
    kinds = {
        name: catalogue.STUDIES[name].model.initialisation.kind for name in ("mnist-cnn-gaussian", "mnist-cnn-uniform")
    }
    assert kinds == {"mnist-cnn-gaussian": "normal", "mnist-cnn-uniform": "glorot"}


@every_study
def test_a_margin_of_tables_1_to_3_is_of_the_table_and_the_units_of_its_study(study):
    """Its reason quotes the paper's errors, and a variant of another study inherits those of another table."""
    if "Table I " in study.margin_reason:
        expected = {"sigmoid": (0.1, "1.15 and 1.35"), "relu": (0.05, "0.95 and 1.06")}[study.model.activation]
        assert (study.margin, study.margin_reason[-15:-2]) == expected
    elif isinstance(study.model, CNN) and study.data.name == "mnist":
        is_uniform = isinstance(study.model.initialisation, Glorot)
        figures = "Table III, 0.521 and 0.558 %" if is_uniform else "Table II, 0.534 and 0.551 %"
        assert study.margin_reason.endswith(figures)


def test_notes_of_the_authors_recipe_name_only_what_is_done():
    study = catalogue.STUDIES["replication-authors-relu"]
    text = " ".join(study.notes)
    assert not study.candidates
    assert "selected on validation" not in text
    assert "adaptive" not in text
    assert "dropconnect" not in text


@pytest.mark.parametrize("name", ["mlp-sigmoid", "mlp-relu", "cnn-gaussian", "cnn-uniform"])
def test_fashion_is_trained_as_mnist_is(name):
    fashion, mnist = catalogue.STUDIES[f"fashion-{name}"], catalogue.STUDIES[f"mnist-{name}"]
    assert fashion.data == dataclasses.replace(mnist.data, name="fashion-mnist")
    for preset in mnist.presets:
        theirs = mnist.at(preset).configuration | {"data": fashion.data.as_dict()}
        assert fashion.at(preset).configuration == theirs
    assert fashion.title == mnist.title.replace("MNIST", "Fashion-MNIST")
    assert fashion.methods == mnist.methods
    assert fashion.paper == ""
    assert fashion.margin == 0.2


# Their data and what they measure.


def test_images_of_a_run():
    prepared = prepare(Images("digits", train=100, validation=300)(), task="classification")
    found = data.load("digits")
    for run in range(2):
        parts = prepared.parts(5, "final", run)
        order = np.random.Generator(np.random.Philox(streams.seed(5, "final", run, streams.SPLIT)))
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
    with pytest.raises(registry.MissingError, match=str(tmp_path)):
        Images("mnist", train=1, validation=1)()


def test_batches_in_order():
    assert [list(batch) for batch in InOrder(3)("examples", None)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    images = Images("digits", train=100, validation=300, batches=InOrder(40))
    part = prepare(images(), task="classification").parts(0, "final", 0).train
    for seed in (1, 2):
        assert [batch.tolist() for batch in part.order(seed, 7)] == [
            list(range(40)),
            list(range(40, 80)),
            list(range(80, 100)),
        ]


def test_covariances_are_those_of_validation_images_drawn_by_the_seed():
    prepared = prepare(Images("digits", train=100, validation=300)(), task="classification")
    parts = prepared.parts(0, "final", 0)
    model = MLP((64, 12, 8, 10), divisor=16.0, scale="paper", initialisation=Glorot())
    torch.manual_seed(3)
    network = model(parse("bernoulli")).eval()
    measure = Covariance(layers=model.hidden_layers, inputs=4, repeats=60, bins=11, largest=0.05)
    kept = measure(network, parts, 17)
    (images, _), *_ = parts.validation.batches(parts.validation.order(None, 300))
    pixels = images[streams.permutation(300, 17)[:4].tolist()].to(torch.float32) / 16
    found = coadaptation(network, pixels, ["hidden1", "hidden2"], 60, seed=17)
    assert list(kept) == ["covariance_edges", "covariance_layer1", "covariance_layer2"]
    edges = torch.linspace(-0.05, 0.05, 12, dtype=torch.float64)
    assert np.array_equal(kept["covariance_edges"], edges.numpy())
    for number in (1, 2):
        counts = kept[f"covariance_layer{number}"]
        assert np.array_equal(counts, found.histogram(f"hidden{number}", edges)[0].numpy())
        assert (counts > 0).sum() > 1
    assert any(not np.array_equal(kept[name], other) for name, other in measure(network, parts, 18).items())
