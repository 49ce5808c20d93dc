"""The studies of the paper's other data sets: their settings, and tiny runs with generated pictures and their pages."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from test_trainer import resume

import caffe_files
from contdrop.errors import UserError
from contdrop.lab import api
from contdrop.lab.data.data import Data, prepare
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from contdrop.lab.study.methods import parse
from contdrop.lab.study.plan import plan
from contdrop.lab.study.study import Study
from contdrop.lab.training.trainer import Trainer
from contdrop.replication import augmentation, datasets, paper_tables, pretrained, studies
from contdrop.replication.datasets import builtin
from contdrop.replication.networks import NIN, VGG, ConvLocal, VGGHead
from contdrop.replication.networks.models import dense_forward, dense_probabilities, published_nin
from contdrop.replication.studies import cifar_studies, common
from contdrop.replication.studies.image_studies import Ilsvrc

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("cifar10-nin", "svhn-local", "norb-local", "ilsvrc-vgg16")
STUDIES = [studies.STUDIES[name] for name in NAMES]
every_study = pytest.mark.parametrize("study", STUDIES, ids=NAMES)
SHOWN = ("none", "gaussian")


@pytest.fixture
def nothing_here(monkeypatch, tmp_path):
    """No data set, no weights, and nothing computed before."""
    monkeypatch.setenv("CONTDROP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CONTDROP_CACHE", str(tmp_path / "cache"))
    return tmp_path


# ---- settings


def test_iterations_rates_and_networks_are_the_paper_s():
    nin, svhn, norb, vgg16 = STUDIES
    for study, iterations, runs in ((nin, 10_000, 30), (vgg16, 100_000, 10)):
        size = study.sizes["paper"]
        assert (study.training.epoch_steps * size.epochs, size.runs) == (iterations, runs)
    assert nin.configuration["training"]["optimiser"]["learning_rate"] == 0.01
    expected = {"learning_rate": 1e-4, "weight_decay": 5e-4, "batch_size": 64, "every": 0.5}
    assert expected.items() <= vgg16.configuration["training"]["optimiser"].items()
    assert vgg16.training.clip == 35
    assert [metric.name for metric in vgg16.metrics][:2] == ["error", "top5"]
    assert not vgg16.selection.candidates
    assert str(parse("gaussian")) == "gaussian:sigma=0.3"
    for study in (svhn, norb):
        assert study.training.networks == 5
        assert study.configuration["training"]["optimiser"]["kind"] == "layered-plateau"
        assert (study.forward.__self__, study.data.changes) == (study.forward.__self__,) * 2
    assert (svhn.data.name, svhn.model.image) == ("svhn-extra", (3, 28, 28))
    assert svhn.data.changes == augmentation.Affine(side=28, flip=True)
    assert (norb.data.name, norb.model.image, norb.model.classes) == ("norb", (2, 48, 48), 6)


@every_study
def test_a_study_is_of_a_table_of_the_paper(study):
    theirs = paper_tables.table_of(study.name)
    assert study.description.paper == f"Table {theirs.number}"
    assert set(theirs.results) <= set(study.methods)
    assert theirs.runs == study.sizes["paper"].runs


@every_study
def test_missing_data_are_one_line_that_says_where_they_are_to_be_had(study, nothing_here):
    with pytest.raises(UserError, match=r"^[^\n]*(contdrop data get|its owner offers it at http)[^\n]*$"):
        study.data()


def test_missing_weights_are_one_line(nothing_here):
    for study in (STUDIES[0], STUDIES[3]):
        with pytest.raises(UserError, match=r"^[^\n]*the weights are missing; put [^\n]*$"):
            study.model(parse("none"))


# ---- data


@pytest.mark.parametrize("source", [builtin.SVHN, builtin.NORB, builtin.ILSVRC], ids=lambda source: source.name)
def test_generated_pictures_go_through_the_reader_and_say_what_they_are(source, tmp_path):
    found, again = source.load(tmp_path), source.load(tmp_path)
    assert found.fingerprint == again.fingerprint
    assert not list(tmp_path.iterdir())
    assert found.title.startswith("generated pictures in the format of")
    assert (len(found.train_labels), len(found.test_labels)) == (source.train, source.test)
    assert found.train_images.shape[1:] == source.shape
    assert set(found.train_labels) == set(found.test_labels) == set(range(len(source.classes)))
    means = np.stack([found.train_images[found.train_labels == label].mean((0, 1)) for label in range(2)])
    assert np.abs(means[0] - means[1]).max() > 20  # classes differ


def test_a_stand_in_is_marked_and_the_real_thing_is_not(nothing_here, monkeypatch):
    quick = STUDIES[2].at("quick")
    found = quick.data()
    assert (found.name, found.mark) == ("norb-generated", "generated pictures in the format of NORB")
    real = datasets.load("norb-generated")
    monkeypatch.setattr(datasets, "load", lambda name: dataclasses.replace(real, name=name))
    monkeypatch.setattr(common, "first_here", lambda names: names[0])
    assert (quick.data().name, quick.data().mark) == ("norb", "")


def test_first_here_is_the_first_that_is_here(nothing_here):
    assert datasets.first_here(("svhn", "svhn-subset", "svhn-generated", "norb-generated")) == "svhn-generated"
    assert datasets.first_here(("svhn", "norb")) == "svhn"


def test_ilsvrc_gives_crops_to_train_on_and_whole_images_to_test_on(nothing_here):
    dataclasses.replace(builtin.ILSVRC, folder="ilsvrc", train=20, test=20).write(nothing_here / "data" / "ilsvrc")
    with pytest.raises(
        UserError, match=r"^ilsvrc: expected folders of 1,000 classes in \S+; got 10, by which classes "
    ):
        STUDIES[3].data()
    small = Ilsvrc(smaller=48, side=32, validation=5, loader_workers=0, classes=10)
    prepared = prepare(small(), task="classification")
    parts = prepared.parts(0, "final", 0)
    assert parts.sizes == {"train": 15, "validation": 5, "test": 20}
    images, labels = next(parts.train.batches(parts.train.order(0, 4), seed=0))
    assert (images.shape, images.dtype, labels.shape) == ((4, 3, 32, 32), torch.uint8, (4,))
    images, _ = next(parts.test.batches(parts.test.order(None, 4)))
    assert images.shape == (4, 3, 48, 64)


def test_evaluation_counts_examples_where_images_are_a_list():
    random = np.random.default_rng(0)
    images = [(random.integers(0, 256, (3, 8, 8 + 4 * (n % 2))).astype(np.uint8), n % 3) for n in range(8)]
    study = Study(
        "several-sizes",
        lambda: Data(
            train=images,
            test=images,
            validation=images,
            transform=augmentation.Crop(8).draw,
            collate=augmentation.as_they_are,
        ),
        VGG(stages=((4,),), hidden=4, classes=3, side=8),
        methods=("none",),
        reference="none",
        forward=dense_forward,
        batch_size=4,
    )
    (job,) = plan(study, runs=1)
    trained = Trainer(job, job.variant({}), prepare(study.data(), task="classification"))
    found = trained.evaluate(trained.parts.test)
    each = [dense_forward(trained.network.eval(), (torch.from_numpy(x)[None], None))[0, y] for x, y in images]
    assert found.loss == pytest.approx(-float(torch.stack(each).mean()), rel=1e-5)


def test_images_of_several_sizes_are_a_list():
    images, labels = augmentation.as_they_are([(torch.zeros(3, 4, 5), 1), (torch.zeros(3, 5, 4), np.int64(2))])
    assert [image.shape for image in images] == [(3, 4, 5), (3, 5, 4)]
    assert labels.tolist() == [1, 2]


def test_crops_are_parts_of_an_image_or_of_its_mirror_image():
    image = torch.arange(2 * 5 * 6).reshape(2, 5, 6)
    crop, seen = augmentation.Crop(4), set()
    for seed in range(200):
        found, label = crop.draw((image, 3), torch.Generator().manual_seed(seed))
        assert label == 3
        places = [
            (mirrored, top, left)
            for mirrored, top, left in itertools.product((False, True), range(2), range(3))
            if torch.equal(found, (image.flip(-1) if mirrored else image)[:, top : top + 4, left : left + 4])
        ]
        seen |= set(places)
        assert len(places) == 1
        both = torch.stack([image, image.flip(-1)])
        assert torch.equal(crop.draw((both, 3), torch.Generator().manual_seed(seed))[0], found)
    assert len(seen) == 12


# ---- networks and weights


def test_nin_has_the_published_layers_and_two_more(tmp_path):
    network, published = NIN()(parse("gaussian")), published_nin()
    torch.save(published.state_dict(), tmp_path / "nin.pt")
    assigned = pretrained.assign(network, pretrained.read(tmp_path / "nin.pt"), "nin")
    assert assigned.left == ("hidden1", "output")
    x = torch.randn(2, 3, 32, 32)
    maps = torch.nn.Sequential(*list(published.children())[:-2])(x).flatten(1)
    torch.testing.assert_close(network[:-2](x), maps / 33)
    assert network(x).shape == (2, 10)


def test_vgg_takes_weights_by_the_names_of_the_published_model():
    small = VGG(stages=((2,), (3,)), hidden=4, classes=5, side=8)
    network = small(parse("adaptive"))
    layers = {
        "conv1_1": (np.ones((2, 3, 3, 3), np.float32), np.ones(2, np.float32)),
        "fc7": (np.full((4, 4), 7, np.float32), np.ones(4, np.float32)),
    }
    assigned = pretrained.assign(network, layers, "file")
    assert set(assigned.layers) == {"conv1_1", "fc7"}
    assert assigned.left == ("conv2_1", "fc6", "fc8")
    assert (network.fc7.linear.weight == 7).all()
    assert (network.convolutions.conv1_1.weight == 1).all()


@pytest.mark.parametrize("method", ["none", "gaussian", "dropconnect"])
def test_a_head_on_maps_is_the_whole_network(method):
    """Logits of crops that are aligned with the maps, and dense evaluation, with the images of one or several sizes."""
    whole = VGG(stages=((4,), (6,)), hidden=5, classes=3, side=8)(parse(method)).eval()
    head = VGGHead(maps=6, side=2, hidden=5, classes=3)(parse(method)).eval()
    head.load_state_dict({name: value for name, value in whole.state_dict().items() if name.startswith("fc")})
    images = torch.randint(0, 256, (2, 3, 12, 16), dtype=torch.uint8)
    maps = torch.stack([whole.convolutions(whole.means(each.float())) for each in (images, images.flip(3))], 1)
    expected = dense_probabilities(whole, images)
    torch.testing.assert_close(dense_probabilities(head, maps), expected)
    torch.testing.assert_close(dense_forward(whole, (images, None)).exp(), expected)
    torch.testing.assert_close(dense_forward(whole, (list(images), None)).exp(), expected)
    torch.testing.assert_close(expected.sum(1), torch.ones(2))


def test_maps_are_of_the_published_convolutions_if_they_are_here(nothing_here, monkeypatch):
    monkeypatch.setattr(pretrained, "VGG", lambda **options: VGG(stages=((2,), (3,)), side=8, **options))
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8)).astype(np.uint8)
    found = builtin.ILSVRC.dataset((images, np.arange(3)), (images[:1], np.arange(1)), "")
    random = pretrained.vgg_maps(found, "train")
    assert (random.shape, pretrained.is_vgg_here()) == ((3, 2, 3, 2, 2), False)
    torch.manual_seed(1)
    network = VGG(stages=((2,), (3,)), side=8, hidden=1, classes=2)(parse("none"))
    for layer in (network.convolutions.conv1_1, network.convolutions.conv2_1):
        torch.nn.init.kaiming_normal_(layer.weight)
    folder = nothing_here / "data" / "vgg16"
    folder.mkdir(parents=True)
    torch.save(network.convolutions.state_dict(), folder / "vgg16-convolutions.pt")
    expected = network.convolutions(network.means(torch.from_numpy(images).float().flip(3))).detach().numpy()
    published = pretrained.vgg_maps(found, "train")
    assert pretrained.is_vgg_here()
    np.testing.assert_allclose(published[:, 1], expected, rtol=1e-5, atol=1e-4)
    assert not np.allclose(random, published)
    kept = {name: value for name, value in network.convolutions.state_dict().items() if "conv2" not in name}
    torch.save(kept, folder / "vgg16-convolutions.pt")
    with pytest.raises(UserError, match=r"expected weights of every layer [^;]*; got none of conv2_1, which would be"):
        pretrained.vgg_maps(found, "train")


# ---- runs


@pytest.fixture
def small_networks(nothing_here, monkeypatch):
    """CIFAR-10 of 60 images, a file of random weights in the published format, and a VGG of two convolutions."""
    pixels = np.random.default_rng(0).integers(0, 256, (90, 3, 32, 32)).astype(np.uint8)
    labels = np.arange(90) % 10
    here = datasets.find("cifar-10").dataset((pixels[:60], labels[:60]), (pixels[60:], labels[60:]), "")
    real = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name, *rest: here if name == "cifar-10" else real(name, *rest))
    monkeypatch.setattr(pretrained, "nin_whitened", lambda images, fitted: images.astype(np.float32) / 100)
    monkeypatch.setattr(pretrained, "nin_whitening", lambda found: None)
    folder = nothing_here / "data" / "nin-cifar10"
    folder.mkdir(parents=True)
    layers = {
        name: [module.weight.detach().numpy(), module.bias.detach().numpy()]
        for name, module in published_nin().named_modules()
        if isinstance(module, torch.nn.Conv2d)
    }
    (folder / "cifar10_nin.caffemodel").write_bytes(caffe_files.model(layers))
    stages = ((4,), (4,), (4,), (8,), (512,))
    monkeypatch.setattr(pretrained, "VGG", lambda **options: VGG(stages=stages, **options))
    return nothing_here


def small(study):
    """The quick size with fewer data and smaller networks."""
    size = study.sizes["quick"]
    settings = {**size.settings, "methods": SHOWN, "candidates": {}, "follows": {}, "epoch_steps": 3}
    if isinstance(study.model, ConvLocal):
        settings["model"] = dataclasses.replace(study.model, maps=(4, 4, 4, 4), hidden=16)
    if study.name == "cifar10-nin":
        settings["data"] = cifar_studies.Whitened(train=16, validation=6, test=10)
        settings |= cifar_studies.Steps(batch_size=4).settings()
    return study.replace(sizes={"quick": dataclasses.replace(size, epochs=2, settings=settings)})


MARKS = {
    "svhn-local": "generated pictures in the format of SVHN",
    "norb-local": "generated pictures in the format of NORB",
    "ilsvrc-vgg16": "generated pictures in the format of ILSVRC-2012; convolutions of random weights",
}


@every_study
def test_a_tiny_run_has_a_page_with_its_table_and_figures(study, small_networks, tmp_path):
    result = api.compare(small(study), store=tmp_path / "runs.db", workers=0, runs=2)
    page = result.report(tmp_path / "page")
    text = page.read_text()
    with Store(tmp_path / "runs.db") as store:
        (results,) = collect_all(store)
    assert sorted((job.method, job.run) for job in results.finished) == sorted(itertools.product(SHOWN, range(2)))
    assert MARKS.get(study.name, "") in text
    (table,) = page.parent.glob("tables/*comparison.md")
    assert MARKS.get(study.name, "CIFAR-10") in table.read_text()
    names = "".join(path.name for path in page.parent.glob("figures/*.svg"))
    assert "samples" in names
    assert "confusion" in names
    assert "classes" in names
    if study.name == "ilsvrc-vgg16":
        assert "top5" in (page.parent / table).with_name(table.name.replace("comparison", "others")).read_text()


@every_study
def test_a_run_resumes_bit_for_bit_from_the_middle_of_a_pass(study, small_networks):
    study = small(study)
    job = plan(study, labels=["gaussian"], runs=1)[-1]
    prepared = prepare(job.protocol.study.data(), task="classification")
    variant = job.variant({})
    first, _ = resume(lambda epochs: Trainer(job, variant, prepared), epochs=2, interrupted=1)
    assert first.shown


@pytest.mark.slow
@every_study
def test_the_quick_size_with_what_is_here(study, tmp_path):
    """All methods, by the real data and weights."""
    sized = study.at("quick")
    try:
        sized.data()
        sized.model(parse("none"))
    except UserError as missing:
        pytest.skip(str(missing))
    result = api.compare(study, store=tmp_path / "runs.db", preset="quick", progress=False)
    assert result.report(tmp_path / "page").is_file()
    with Store(tmp_path / "runs.db") as store:
        (results,) = collect_all(store)
    assert len(results.finished) == 2 * len(study.methods)
