"""Calibration and detection of inputs from elsewhere, as what a study measures of its models."""

import json
from functools import partial

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

import contdrop as cd
from contdrop import lab
from contdrop.lab import uncertainty
from contdrop.lab.data.data import Data, prepare
from contdrop.lab.report import supplementary_tables
from contdrop.lab.store.reader import pack, unpack
from contdrop.lab.training import metric_values, random_streams
from contdrop.lab.training.metric_values import UNCERTAINTY as VALUES
from contdrop.lab.training.metric_values import WAYS
from contdrop.lab.training.metrics import find

N, FEATURES, CLASSES = 90, 6, 3


def _net(*, dropout=True, out=CLASSES, seed=0):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, out)]
    return torch.nn.Sequential(*layers[:2], *[cd.GaussianDropout(0.4)] * dropout, layers[2])


def _inputs(seed=0, n=N):
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(seed))


def _targets(classes=CLASSES):
    return torch.randint(classes, (N,), generator=torch.Generator().manual_seed(9))


def _parts(x=None, y=None, **options):
    part = (_inputs() if x is None else x, _targets() if y is None else y)
    part = x if isinstance(x, dict) else part
    return prepare(Data(train=part, test=part, validation=0.2, **options), task="classification").parts(0, "final", 0)


def _far():
    return 5 * _inputs(4, 40)


def _ways(kept):
    return {name.split("_")[1] for name in kept}


def test_what_is_kept_of_each_way():
    kept = uncertainty(5, ood=_far, batch_size=32)(_net(), _parts(), 1)
    assert _ways(kept) == set(WAYS)
    for way in WAYS:
        found = {name.removeprefix(f"uncertainty_{way}_"): array for name, array in kept.items() if f"_{way}_" in name}
        masks = () if way == "point" else ("mutual_information",)
        by_example = {"contribution_nll", "contribution_brier", "confidence", "correct", "entropy", *masks}
        elsewhere = {"ood_entropy", *(f"ood_{name}" for name in masks)}
        values = set(VALUES) - (set() if masks else {"auroc_mutual_information"})
        assert set(found) == {*by_example, *elsewhere, *values, "reliability"}
        assert {found[name].shape for name in by_example} == {(N,)}
        assert {found[name].shape for name in elsewhere} == {(40,)}
        assert {found[name].shape for name in values} == {()}
        assert found["reliability"].shape == (3, 15)
        assert found["reliability"][0].sum() == N
    for array in kept.values():
        assert array.dtype.kind in "fu"
        assert np.isfinite(array).all()
        again = unpack(pack(array))
        assert again.shape == array.shape
        assert (again == array).all()


def test_without_dropout_it_is_what_the_metrics_say():
    model, x, y = _net(), _inputs(), _targets()
    kept = uncertainty(3, ood=_far)(model, _parts(), 1)
    with torch.no_grad():
        logits, far = model.eval()(x).double(), model(_far()).double()
    for name in ("nll", "brier", "ece"):
        metric = find(name)
        expected = metric.value(metric.contributions(logits, (x, y)))
        assert float(kept[f"uncertainty_point_{name}"]) == pytest.approx(expected, rel=1e-12)
    entropies = [scipy.stats.entropy(z.softmax(1).numpy(), axis=1) for z in (logits, far)]
    assert kept["uncertainty_point_entropy"] == pytest.approx(entropies[0], rel=1e-6)
    truth = np.repeat([0, 1], [N, 40])
    expected = sklearn.metrics.roc_auc_score(truth, np.concatenate(entropies))
    assert float(kept["uncertainty_point_auroc_entropy"]) == pytest.approx(expected, abs=1e-3)
    assert (kept["uncertainty_point_correct"] == (logits.argmax(1) == y).numpy()).all()


def test_monte_carlo_is_the_mean_of_passes():
    """Of probabilities, not of logits or losses; by hand, with the masks that the seed gives."""
    model, x, y = _net(), _inputs(), _targets().numpy()
    kept = uncertainty(7, ood=_far, moments=False)(model, _parts(), 11)
    assert _ways(kept) == {"point", "mc"}

    def passes(inputs, name):
        torch.manual_seed(random_streams.seed(11, "measure", 0, name, 0))
        with torch.no_grad():
            return np.stack([model.train()(inputs).double().softmax(1).numpy() for _ in range(7)])

    every, far = passes(x, "test"), passes(_far(), "ood")
    mean = every.mean(0)
    losses = -np.log(mean[range(N), y])
    assert kept["uncertainty_mc_contribution_nll"] == pytest.approx(losses, rel=1e-6)
    assert float(kept["uncertainty_mc_nll"]) == pytest.approx(losses.mean(), rel=1e-12)
    assert float(kept["uncertainty_mc_brier"]) == pytest.approx(np.square(mean - np.eye(3)[y]).sum(1).mean(), rel=1e-12)
    whole, within = scipy.stats.entropy(mean, axis=1), scipy.stats.entropy(every, axis=2).mean(0)
    assert kept["uncertainty_mc_entropy"] == pytest.approx(whole, rel=1e-6)
    assert kept["uncertainty_mc_mutual_information"] == pytest.approx(whole - within, rel=1e-4, abs=1e-7)
    far_information = scipy.stats.entropy(far.mean(0), axis=1) - scipy.stats.entropy(far, axis=2).mean(0)
    expected = metric_values.ranked_auroc(far_information, whole - within)
    assert float(kept["uncertainty_mc_auroc_mutual_information"]) == pytest.approx(expected, abs=1e-3)
    counts, confidence, accuracy = kept["uncertainty_mc_reliability"]
    assert counts @ confidence == pytest.approx(mean.max(1).sum())
    assert counts @ accuracy == (mean.argmax(1) == y).sum()


def test_moments_agree_with_many_passes():
    kept = uncertainty(500)(_net(), _parts(), 2)
    for name, tolerance in {"nll": 0.02, "brier": 0.01}.items():
        two = [float(kept[f"uncertainty_{way}_{name}"]) for way in ("mc", "moments")]
        assert two[0] == pytest.approx(two[1], abs=tolerance)
    two = [kept[f"uncertainty_{way}_mutual_information"] for way in ("mc", "moments")]
    assert np.corrcoef(two)[0, 1] > 0.95


def test_ways_that_are_not_possible_are_left_out_and_errors_of_the_model_are_not():
    assert _ways(uncertainty(3)(_net(dropout=False), _parts(), 1)) == {"point"}

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = _net()

        def forward(self, x):
            return self.net(x).sort(1).values  # moments of order statistics are not known

    assert _ways(uncertainty(3)(Odd(), _parts(), 1)) == {"point", "mc"}

    class Broken(torch.nn.Module):
        def forward(self, x):
            raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        uncertainty(3)(Broken(), _parts(), 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("flat", [False, True])
def test_one_logit_for_two_classes(dtype, flat):
    model, y = _net(out=1), _targets(2).to(dtype)
    if flat:
        model.append(torch.nn.Flatten(0))
    kept = uncertainty(4)(model, _parts(y=y), 1)
    assert _ways(kept) == {"point", "mc"}
    with torch.no_grad():
        p = model.eval()(_inputs()).double().flatten().sigmoid().numpy()
    assert float(kept["uncertainty_point_nll"]) == pytest.approx(sklearn.metrics.log_loss(y.numpy(), p))
    assert float(kept["uncertainty_point_brier"]) == pytest.approx(sklearn.metrics.brier_score_loss(y.numpy(), p))


def test_models_of_named_inputs_and_own_forward():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = _net()

        def forward(self, a, b):
            return {"logits": self.net(torch.cat([a, b], 1))}

    x, plain = _inputs(), uncertainty(4, ood=_far, moments=False)(_net(), _parts(), 1)
    parts = _parts({"a": x[:, :2], "b": x[:, 2:], "labels": _targets()})

    def far():
        return {"a": _far()[:, :2].numpy(), "b": _far()[:, 2:].numpy()}

    kept = uncertainty(4, ood=far)(Named(), parts, 1)
    assert {name: array.tolist() for name, array in kept.items()} == {n: a.tolist() for n, a in plain.items()}

    def forward(model, batch):
        return model(batch[0] * 0)

    kept = uncertainty(4, forward=forward)(_net(), _parts(), 1)
    assert _ways(kept) == {"point", "mc"}
    assert np.ptp(kept["uncertainty_point_entropy"]) == 0


def test_a_seed_decides_all_and_nothing_else_changes():
    model, parts = _net(), _parts()
    state = torch.get_rng_state()
    first, again, other = (uncertainty(4, ood=_far)(model, parts, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
    assert {name: array.tolist() for name, array in first.items()} == {n: a.tolist() for n, a in again.items()}
    changed = {name.split("_")[1] for name in first if (first[name] != other[name]).any()}
    assert changed == {"mc", "moments"}


def test_only_some_examples():
    kept = uncertainty(3, ood=_far, examples=30, batch_size=20, bins=5)(_net(), _parts(), 1)
    assert kept["uncertainty_mc_entropy"].shape == kept["uncertainty_mc_ood_entropy"].shape == (30,)
    assert kept["uncertainty_mc_reliability"].shape == (3, 5)
    whole = uncertainty(3)(_net(), _parts(), 1)
    assert kept["uncertainty_point_entropy"] == pytest.approx(whole["uncertainty_point_entropy"][:30], rel=1e-6)


def test_settings_can_be_written_down():
    written = {"kind": "uncertainty", "samples": 50, "ood": "_far", "forward": None, "moments": True}
    written |= {"examples": None, "batch_size": 256, "bins": 15}
    assert json.loads(json.dumps(uncertainty(50, ood=_far).as_dict())) == written


def _dense():
    return torch.nn.Sequential(_net(), torch.nn.Unflatten(1, (3, 1)))


ELSEWHERE = [torch.zeros(0, FEATURES), (torch.zeros(2), torch.zeros(3)), torch.tensor(1.0)]
REFUSED = [
    lambda: uncertainty(samples=1),
    lambda: uncertainty(samples=2.0),
    lambda: uncertainty(examples=0),
    lambda: uncertainty(bins=True),
    lambda: uncertainty(ood=torch.zeros(3)),
    lambda: uncertainty(forward=3),
    *(partial(uncertainty(3, ood=lambda x=x: x), _net(), _parts(), 1) for x in ELSEWHERE),
    lambda: uncertainty(3)(_net(), _parts(y=torch.rand(N) + 0.1, stratify=False), 1),
    lambda: uncertainty(3)(_dense(), _parts(), 1),
]


def test_what_is_refused(refusals):
    refusals("refusals_of_uncertainty", REFUSED)


def test_a_study_has_a_table_of_it_and_its_page_too(tmp_path):
    x, y = torch.randn(90, FEATURES, generator=torch.Generator().manual_seed(0)), torch.arange(90) % CLASSES
    study = lab.Study(
        "sure",
        lambda: Data(train=(x, y), test=0.3, validation=0.2),
        _net,
        methods=["original", "none"],
        epochs=1,
        measure=lab.uncertainty(4, ood=_far),
    )
    result = lab.compare(study, runs=2, store=tmp_path / "runs.db", workers=0, progress=False)
    table = supplementary_tables.uncertainty(result.results)
    assert table.headings == ("Method", "Prediction", *VALUES.values())
    assert [row[1].text for row in table.rows] == 2 * list(WAYS.values())
    jobs = [job for job in result.results.finished if job.method == "original"]
    for row, way in zip(table.rows, WAYS):
        for cell, name in zip(row[2:], VALUES):
            values = [job.results.get(f"test:uncertainty_{way}_{name}") for job in jobs]
            assert cell.value == (None if None in values else pytest.approx(np.mean(values)))
    without = [row[-1].value for row in table.rows[3:]]
    assert without == [None, 0.5, 0.5]  # no mask, no information, whatever the rounding errors
    others = supplementary_tables.secondary_metrics(result.results)
    assert not any("uncertainty" in heading for heading in others.headings)
    assert others.headings[-2:] == ("Seconds per epoch", "Memory, MB")
    page = result.report(tmp_path / "page").read_text()
    assert "AUROC of mutual information" in page
    assert "Memory, MB" in page
