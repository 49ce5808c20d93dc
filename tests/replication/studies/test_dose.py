"""The studies of the replication: their noise, what they measure, and one tiny run of a cell of the dose table."""

import pytest
import torch

from contdrop import coadaptation
from contdrop.lab.data.data import prepare
from contdrop.lab.store.schema import FINAL
from contdrop.lab.study.methods import parse
from contdrop.lab.study.plan import plan
from contdrop.lab.training import random_streams
from contdrop.replication import studies
from contdrop.replication.networks import MLP
from contdrop.replication.networks.models import Glorot
from contdrop.replication.studies import dose
from contdrop.replication.studies.common import UNUSED, CommonNoise, Images, UnusedError, unused

DIGITS = Images("digits", train=60, validation=100)
SMALL = MLP((64, 12, 8, 10), divisor=16.0, initialisation=Glorot())


@pytest.mark.parametrize("study", dose.STUDIES, ids=lambda study: study.name)
def test_every_study_is_planned_as_the_protocol_has_it(study):
    jobs = [job for job in plan(study) if job.stage == FINAL]
    assert len(jobs) == len(study.methods) * study.presets["quick"].runs
    assert {job.epochs for job in jobs} == {study.presets["quick"].epochs}
    assert bool(study.selection.candidates) == (study.name == "cifar10-nin-head")
    assert study.margin
    assert study.description.margin_reason
    assert (study.scale == "paper") == (study.name == "replication-authors-relu")


def test_each_shape_of_the_dose_table_has_its_bernoulli_of_equal_strength():
    for study in (dose.DOSE_1000, dose.DOSE_5000):
        strengths = {label: parse(label).law.relative_variance for label in study.methods}
        for label, strength in strengths.items():
            if label != "none":
                assert strength == pytest.approx(strengths[f"bernoulli:{label.partition(':')[2]}"], rel=1e-12)
        assert len({round(r, 9) for r in strengths.values()}) == 8
        assert study.presets["quick"].runs == 30


def test_masks_have_mean_one_but_for_the_authors_recipe():
    for study in dose.STUDIES:
        if study.name != "replication-authors-relu":
            noises = [parse(label).noise(study.scale) for label in study.methods]
            assert {noise["mean"] for noise in noises if noise} == {1.0}  # adaptive dropout has no law of its own


def test_the_group_names_them_in_the_order_of_their_value():
    assert studies.find("replication") == list(dose.STUDIES)
    assert studies.GROUPS["replication"][:2] == ("dose-1000", "dose-5000")


def test_unused_images_are_neither_trained_nor_validated_on():
    prepared = prepare(DIGITS(), task="classification")
    parts = prepared.parts(0, "final", 0)
    part = unused(parts, 10_000)
    used = {*parts.train.positions.tolist(), *parts.validation.positions.tolist()}
    everything = set(range(len(parts.train.source)))
    assert set(part.positions.tolist()) == everything - used
    network = SMALL(parse("none"))
    ((images, labels),) = part.batches(part.order(None, 10_000))
    expected = 100 * float((network(images).argmax(1) != labels).double().mean())
    found = UnusedError(batch_size=7)(network, parts, 0)
    assert found[UNUSED].ndim == 0
    assert float(found[UNUSED]) == pytest.approx(expected)
    assert len(unused(parts, 30)) == 30


def test_covariance_under_one_common_noise():
    parts = prepare(DIGITS(), task="classification").parts(0, "final", 0)
    torch.manual_seed(1)
    plain, masked = SMALL(parse("none")), SMALL(parse("gaussian:r=0.3"))
    masked.load_state_dict(plain.state_dict())
    measure = CommonNoise(SMALL, inputs=4, repeats=300)
    found = [measure(network.eval(), parts, 5) for network in (plain, masked)]
    common = [name for name in found[0] if name.startswith("common")]
    assert len(common) == 4
    assert list(found[0]) == common
    assert set(found[1]) == {*common, "own layer2 covariance", "own layer2 correlation"}
    # Equal weights, so the common noise sees no difference between the two.
    assert all(found[0][name] == found[1][name] > 0 for name in common)
    images, _ = next(parts.validation.batches([torch.from_numpy(random_streams.permutation(100, 5)[:4])]))
    own = coadaptation(masked, images.float() / 16, ["hidden2"], 300, seed=5).summary()["hidden2"]
    assert float(found[1]["own layer2 covariance"]) == pytest.approx(own.root_mean_square, rel=1e-5)
