"""Metrics of a study: against scikit-learn and naive loops, in every form that outputs and targets take."""

import math
import types
import warnings
from functools import partial

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contdrop.errors import UserError
from contdrop.lab.data.batch import examples_of, prediction_of, target_of
from contdrop.lab.training import metric_values, metrics
from contdrop.lab.training.losses import default_loss
from contdrop.lab.training.metrics import EpochMetrics, Metric, chosen, find

CLASSIFICATION = ("error", "accuracy", "top2", "nll", "perplexity", "brier", "ece", "auroc", "f1")
ONE_CLASS_EACH = ("ece", "auroc", "f1")
REGRESSION = ("rmse", "mse", "mae", "r2")


def _value(name, output, batch):
    metric = find(name)
    return metric.value(metric.contributions(output, batch))


def _classes(n=200, c=4, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, c, generator=generator, dtype=dtype) * 2
    # Coarse, so that there are ties; but between softmaxes of three, only rounding would tell ties from others.
    return ((logits * 4).round() / 4 if c in (2, 4) else logits), torch.randint(c, (n,), generator=generator)


def _oracles(logits, target):
    probabilities = logits.double().softmax(1).numpy()
    y, predicted = target.numpy(), logits.argmax(1).numpy()
    c = probabilities.shape[1]
    wrong = int((predicted != y).sum())
    nll = sklearn.metrics.log_loss(y, probabilities, labels=range(c))
    area = probabilities[:, 1] if c == 2 else probabilities
    return {
        "error": 100 * wrong / len(y),
        "accuracy": 100 * sklearn.metrics.accuracy_score(y, predicted),
        "nll": nll,
        "perplexity": math.exp(nll),
        "brier": sklearn.metrics.brier_score_loss(y, probabilities, labels=range(c)),
        "ece": _naive_ece(probabilities.max(1), predicted == y),
        "auroc": sklearn.metrics.roc_auc_score(y, area, multi_class="ovr"),
        "f1": sklearn.metrics.f1_score(y, predicted, average="macro"),
    }


def _naive_ece(confidence, correct):
    total = 0.0
    for number in range(15):
        inside = [i for i, p in enumerate(confidence) if number / 15 < p <= (number + 1) / 15]
        if inside:
            gap = sum(float(correct[i]) for i in inside) - sum(float(confidence[i]) for i in inside)
            total += abs(gap) / len(confidence)
    return total


@pytest.mark.parametrize("c", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_classification_agrees_with_sklearn(c, seed):
    logits, target = _classes(c=c, seed=seed, dtype=torch.float64)
    for name, expected in _oracles(logits, target).items():
        assert _value(name, logits, (None, target)) == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize("c", [3, 7])
def test_top_k_agrees_with_sklearn_where_there_are_no_ties(c):
    logits = torch.randn(100, c, generator=torch.Generator().manual_seed(1))
    target = torch.arange(100) % c
    for k in range(1, c):
        right = sklearn.metrics.top_k_accuracy_score(target, logits, k=k, labels=range(c))
        assert _value(f"top{k}", logits, (None, target)) == pytest.approx(100 * (1 - right), abs=1e-12)


@given(st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=30), st.integers(0, 9))
def test_top1_is_the_error_and_top_k_falls_with_k_whatever_the_ties(rows, seed):
    logits = torch.tensor(rows, dtype=torch.float32)
    target = torch.randint(3, (len(rows),), generator=torch.Generator().manual_seed(seed))
    found = [_value(name, logits, (None, target)) for name in ("error", "top1", "top2")]
    assert found[0] == found[1] >= found[2]


@given(st.integers(1, 20_000), st.data())
@settings(max_examples=50)
def test_error_is_to_the_bit_what_counting_gives(n, data):
    wrong = data.draw(st.integers(0, n))
    stored = np.zeros(n, np.float32)
    stored[:wrong] = 100
    assert find("error").value(stored) == 100 * wrong / n


def test_errors_are_stored_exactly_and_small():
    logits, target = _classes()
    found = find("error").contributions(logits, (None, target), examples=len(target))
    assert found.dtype == np.float32
    assert found.tolist() == [100.0 * (row.argmax() != y) for row, y in zip(logits, target)]


def test_contributions_are_stored_without_loss():
    exact = Metric("x", lambda output, batch: output)
    assert exact.contributions(torch.tensor([0.5, math.nan, math.inf]), None).dtype == np.float32
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert exact.contributions(third, None).tolist() == third.tolist()
    assert exact.contributions(torch.tensor([1e300], dtype=torch.float64), None).tolist() == [1e300]
    assert exact.contributions(torch.tensor([True, False]), None).tolist() == [1, 0]
    assert exact.contributions([1, 2], None).tolist() == [1, 2]


def _binary(form):
    z = torch.randn(50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    y = torch.arange(50) % 2
    return (
        {
            "[N]": (z, y),
            "[N], float": (z, y.double()),
            "[N], bool": (z, y.bool()),
            "[N, 1]": (z[:, None], y),
            "[N, 1], float": (z[:, None], y.double()),
            "[N, 1], [N, 1]": (z[:, None], y[:, None].double()),
        }[form],
        torch.stack([torch.zeros_like(z), z], 1),
        y,
    )


@pytest.mark.parametrize("form", ["[N]", "[N], float", "[N], bool", "[N, 1]", "[N, 1], float", "[N, 1], [N, 1]"])
def test_one_logit_for_two_classes_is_two_logits(form):
    (output, target), logits, y = _binary(form)
    names = [n for n in CLASSIFICATION if n != "top2" and not (n in ONE_CLASS_EACH and target.dim() == 2)]
    for name in names:
        assert _value(name, output, (None, target)) == pytest.approx(_value(name, logits, (None, y)), rel=1e-12), name
    loss, expected = default_loss("classification"), torch.nn.functional.cross_entropy(logits, y)
    assert float(loss.mean(output, (None, target))) == pytest.approx(float(expected), rel=1e-12)
    assert float(loss.total(output, (None, target))) == pytest.approx(50 * float(expected), rel=1e-12)


def test_several_labels_per_example_are_as_many_binary_classes():
    logits = torch.tensor([[2.0, -1.0, 3.0], [-1.0, -1.0, 2.0]])
    target = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    assert find("error").contributions(logits, (None, target)).tolist() == pytest.approx([100 / 3, 0])


def _dense(layout):
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(4, (6, 3, 5), generator=generator)
    target[torch.rand(target.shape, generator=generator) < 0.3] = -100
    target[:, 0, 0] = 1  # each example has a position that counts
    logits = torch.randn(6, 4, 3, 5, generator=generator, dtype=torch.float64)
    if layout == "[N, T, C]":
        return logits[:, :, 0].transpose(1, 2), logits[:, :, 0], target[:, 0]
    return logits, logits, target


@pytest.mark.parametrize("layout", ["[N, C, H, W]", "[N, T, C]"])
def test_positions_of_an_example_are_averaged_without_the_ignored(layout):
    output, logits, target = _dense(layout)
    flat, classes = logits.flatten(2), target.flatten(1)
    losses_, errors, brier = [], [], []
    for row, truth in zip(flat, classes):
        kept = [(row[:, place], int(truth[place])) for place in range(len(truth)) if truth[place] != -100]
        errors.append(100 * sum(int(z.argmax()) != y for z, y in kept) / len(kept))
        losses_.append([float(-z.log_softmax(0)[y]) for z, y in kept])
        brier.append(np.mean([float((z.softmax(0) - torch.eye(4)[y]).square().sum()) for z, y in kept]))
    batch = {"labels": target}
    means = [float(np.mean(each)) for each in losses_]
    assert find("error").contributions(output, batch) == pytest.approx(np.array(errors))
    assert find("nll").contributions(output, batch) == pytest.approx(np.array(means))
    assert find("brier").contributions(output, batch) == pytest.approx(np.array(brier))
    assert find("top1").contributions(output, batch) == pytest.approx(np.array(errors))
    every = [loss for each in losses_ for loss in each]
    assert _value("perplexity", output, batch) == pytest.approx(math.exp(np.mean(every)))
    loss = default_loss("classification")
    assert float(loss.mean(output, batch)) == pytest.approx(float(np.mean(every)))
    assert float(loss.total(output, batch)) == pytest.approx(sum(means))


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_an_example_without_any_target_is_refused(name):
    logits, target = _classes(c=4)
    target[7] = -100
    if name == "perplexity":  # of positions, not of examples
        kept = torch.arange(len(target)) != 7
        expected = _value(name, logits[kept], (None, target[kept]))
        assert _value(name, logits, (None, target)) == pytest.approx(expected)
        return
    with pytest.raises(UserError, match=r"^expected a target for each test example; got one with -100 alone"):
        _value(name, logits, (None, target))


def test_as_many_positions_as_classes_are_told_apart_or_refused():
    logits, target = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1, 2]] * 2)
    wrapped = types.SimpleNamespace(logits=logits)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    assert _value("nll", wrapped, (None, target)) == pytest.approx(float(expected))
    other = torch.nn.functional.cross_entropy(logits.transpose(1, 2).flatten(0, 1), target.flatten())
    assert float(other) != pytest.approx(float(expected))


@pytest.mark.parametrize("causal", [False, True])
def test_positions_follow_the_models_own_loss(causal):
    """A causal language model's targets are its inputs; that of token i + 1 is predicted at i."""
    generator = torch.Generator().manual_seed(2)
    logits, labels = torch.randn(4, 6, 9, generator=generator), torch.randint(9, (4, 6), generator=generator)
    labels[0, 4:] = -100
    ours, theirs = (logits[:, :-1], labels[:, 1:]) if causal else (logits, labels)
    loss = torch.nn.functional.cross_entropy(ours.movedim(2, 1), theirs)
    output, batch = types.SimpleNamespace(logits=logits, loss=loss), {"input_ids": labels, "labels": labels}
    for name in ("error", "nll", "perplexity"):
        assert _value(name, output, batch) == pytest.approx(_value(name, ours, (None, theirs))), name
    assert _value("perplexity", output, batch) == pytest.approx(math.exp(float(loss)))
    assert default_loss("classification").mean(output, batch) is loss
    assert float(default_loss("classification").total(output, batch)) == pytest.approx(4 * float(loss))


@pytest.mark.parametrize("wrap", [lambda z: types.SimpleNamespace(logits=z), lambda z: {"logits": z}])
@pytest.mark.parametrize("key", ["labels", "label", "target", "y"])
def test_outputs_and_targets_by_name(wrap, key):
    logits, target = _classes()
    assert _value("error", wrap(logits), {key: target, "x": None}) == _value("error", logits, (None, target))
    loss = default_loss("classification")
    assert float(loss.mean(wrap(logits), {key: target})) == float(loss.mean(logits, (None, target)))


def test_half_precision_is_evaluated_in_single():
    logits, target = _classes()
    for dtype in (torch.float16, torch.bfloat16):
        for name in CLASSIFICATION:  # coarse logits are exact in both
            assert _value(name, logits.to(dtype), (None, target)) == _value(name, logits, (None, target)), name


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_outputs_that_are_no_numbers_have_no_value(name):
    logits, target = _classes()
    logits[3] = math.nan
    assert math.isnan(_value(name, logits, (None, target)))
    assert math.isnan(_value(name, logits, (None, logits.argmax(1).where(~logits.isnan().any(1), 0))))


@pytest.mark.parametrize("name", REGRESSION)
def test_predictions_that_are_no_numbers_have_no_value(name):
    output = torch.tensor([1.0, math.nan, 3.0])
    assert math.isnan(_value(name, output, (None, torch.tensor([1.0, 2.0, 3.0]))))


@pytest.mark.parametrize("name", [*CLASSIFICATION, *REGRESSION])
def test_no_examples_have_no_value(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(find(name).value(np.zeros(0)))
        assert math.isnan(find(name).value(np.zeros((0, 5))))


def test_area_of_one_class_only_has_no_value_and_absent_classes_are_left_out():
    logits, _ = _classes(c=2)
    assert math.isnan(_value("auroc", logits, (None, torch.ones(200, dtype=torch.int64))))
    logits, target = _classes(c=4, dtype=torch.float64)
    assert math.isnan(_value("auroc", logits, (None, torch.ones(200, dtype=torch.int64))))
    target[target == 3] = 0
    p = logits.softmax(1).numpy()
    areas = [sklearn.metrics.roc_auc_score(target == number, p[:, number]) for number in range(3)]
    assert _value("auroc", logits, (None, target)) == pytest.approx(np.mean(areas), rel=1e-12)
    assert 0 < _value("f1", logits, (None, torch.ones(200, dtype=torch.int64))) < 1


def test_f1_is_of_classes_that_occur_and_the_area_of_two_classes_does_not_saturate():
    logits, target = torch.eye(4)[[0, 0, 3, 3]], torch.tensor([0, 3, 3, 1])
    expected = sklearn.metrics.f1_score(target, logits.argmax(1), average="macro")
    assert _value("f1", logits, (None, target)) == pytest.approx(expected) == pytest.approx((2 / 3 + 0.5 + 0) / 3)
    logits = torch.tensor([[0.0, 60.0], [0.0, 50.0], [0.0, 70.0]])  # probabilities that are all 1 in float64
    assert _value("auroc", logits, (None, torch.tensor([1, 0, 1]))) == 1.0


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_area_counts_pairs_and_halves_of_ties(positive, negative):
    found = metric_values.ranked_auroc(positive, negative)
    if not positive or not negative:
        assert math.isnan(found)
        return
    pairs = [(a > b) + (a == b) / 2 for a in positive for b in negative]
    assert found == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert metric_values.ranked_auroc(negative, positive) == pytest.approx(1 - found, abs=1e-12)
    assert metric_values.ranked_auroc(np.exp(positive), np.exp(negative)) == found  # of the order alone


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.sampled_from([1, 5, 15]))
def test_reliability_counts_every_example_once(pairs, bins):
    confidence, correct = np.array([p for p, _ in pairs]), np.array([c for _, c in pairs])
    counts, mean, share = metric_values.reliability(confidence, correct, bins)
    assert counts.sum() == len(pairs)
    assert counts @ mean == pytest.approx(confidence.sum())
    assert counts @ share == pytest.approx(correct.sum())
    for number in np.flatnonzero(counts):
        assert number / bins - 1e-9 <= mean[number] <= (number + 1) / bins + 1e-9


def test_a_confidence_on_an_edge_belongs_below_it():
    counts, _, _ = metric_values.reliability([0.0, 0.2, 0.4, 1.0], [1, 1, 1, 1], 5)
    assert counts.tolist() == [2, 1, 0, 0, 1]


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3)])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_regression_agrees_with_sklearn(shape, shift):
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(shape, generator=generator, dtype=torch.float64) + shift
    output = target + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    batch, (y, f) = (None, target), (target.numpy(), output.numpy())
    square = sklearn.metrics.mean_squared_error(y, f)
    assert _value("mse", output, batch) == pytest.approx(square, rel=1e-12)
    assert _value("rmse", output, batch) == pytest.approx(math.sqrt(square), rel=1e-12)
    assert _value("mae", output, batch) == pytest.approx(sklearn.metrics.mean_absolute_error(y, f), rel=1e-12)
    assert _value("r2", output, batch) == pytest.approx(sklearn.metrics.r2_score(y, f), rel=1e-9)
    loss = default_loss("regression")
    assert float(loss.mean(output, batch)) == pytest.approx(square, rel=1e-12)
    assert float(loss.total(output, batch)) == pytest.approx(40 * square, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_mean_loss_of_half_precision_is_neither_infinite_nor_rounded(dtype):
    found = EpochMetrics(Metric("none"))
    for mean, count in ((300.0, 256), (1.0, 259)):
        found.add(torch.tensor(mean, dtype=dtype), None, torch.zeros(count))
    assert found.values()[0] == pytest.approx((300 * 256 + 259) / 515, rel=1e-12)


def test_r2_of_a_constant_target_has_no_value():
    assert np.isnan(metric_values.r2(np.array([[0.1, 0.1], [0.2, 0.1], [0.1, 0.1]])))  # whose mean is rounded
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(_value("r2", torch.randn(5), (None, torch.ones(5))))


def test_regression_trains_in_the_models_own_precision():
    output = torch.randn(4, requires_grad=True)
    for target in (torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.int64)):
        assert default_loss("regression").mean(output, (None, target)).dtype == torch.float32


def test_classes_may_be_whole_numbers_of_any_type():
    logits, target = _classes()
    for dtype in (torch.int32, torch.uint8):
        assert _value("error", logits, (None, target.to(dtype))) == _value("error", logits, (None, target))
        assert float(default_loss("classification").mean(logits, (None, target.to(dtype)))) > 0


def test_the_usual_loss_is_torchs_to_the_bit():
    logits, target = _classes()
    loss, torchs = default_loss("classification"), torch.nn.functional.cross_entropy
    assert torch.equal(loss.mean(logits, (None, target)), torchs(logits, target))
    assert torch.equal(loss.total(logits, (None, target)), torchs(logits, target, reduction="sum"))


def test_examples_are_counted_by_target_or_first_tensor():
    nodes, graphs = torch.zeros(9, 2), torch.zeros(4)
    assert examples_of((nodes, graphs)) == 4
    assert examples_of({"x": nodes}) == examples_of(nodes) == 9


def test_a_models_own_loss_is_the_default_without_a_task():
    output, batch = types.SimpleNamespace(loss=torch.tensor(2.5)), {"x": torch.zeros(3)}
    assert [metric.name for metric in chosen(None, None)] == ["loss"]
    assert find("loss").contributions(output, batch, examples=3).tolist() == [2.5] * 3
    assert not find("loss").is_mean  # of batches, not of examples
    assert default_loss(None).mean(output, batch) is output.loss
    assert float(default_loss(None).total(output, batch)) == 7.5


def test_metrics_combine_means_or_take_all():
    stored = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]], np.float32)
    assert Metric("ratio", None, lambda mean: mean[0] / mean[1]).value(stored) == 3 / 5
    assert Metric.whole("top", None, lambda every: every[:, 1].max()).value(stored) == 9
    assert Metric.whole("top", None, np.median).value(stored[:, 0]) == 3
    seen = []
    Metric("dtype", None, lambda mean: seen.append(mean.dtype) or 0.0).value(stored)
    assert seen == [np.float64]
    assert isinstance(Metric("x").value([1, 2]), float)


def test_which_values_are_plain_means():
    plain = {name for name, metric in metrics.BUILT_IN.items() if metric.is_mean}
    assert plain == {"error", "accuracy", "top5", "nll", "brier", "mse", "mae"}


def test_metrics_are_frozen_and_compare_by_name():
    assert Metric("a") == Metric("a", unit="%") != Metric("b")
    assert len({Metric("a"), Metric("a", better="higher")}) == 1
    assert Metric("a") != "a"
    with pytest.raises(AttributeError):
        Metric("a").name = "b"
    assert Metric.whole("auc", None, max).better == "higher"
    assert Metric("x").better == "lower"


def _classified(*shapes):
    output, target = shapes
    return torch.zeros(output), (None, torch.zeros(target, dtype=torch.int64))


BROADCAST = [((8, 1), (8,)), ((8,), (8, 1)), ((8, 2), (8,)), ((8,), (7,)), ((1,), (8,))]
UNFIT = [((8,), (8, 1)), ((8, 3), (8, 1)), ((8, 3, 4), (8, 5)), ((), (8,))]
NO_TARGETS = [torch.zeros(3), (torch.zeros(3),), {"x": torch.zeros(3)}, ([1], [2]), None, {}]
FOUND = [torch.tensor(1.0), torch.zeros(2, 3, 4), torch.zeros(5)]
REFUSED = [
    *(partial(_value, f"top{k}", *_classified((4, 4), 4)) for k in (4, 5)),
    lambda: _value("error", torch.zeros(3, 1), (None, torch.tensor([0, 1, 2]))),
    lambda: _value("error", torch.randn(2, 3, 3), (None, torch.tensor([[0, 1, 2]] * 2))),
    *(partial(_value, name, *_classified((6, 4, 3, 5), (6, 3, 5))) for name in ONE_CLASS_EACH),
    *(
        partial(use, torch.zeros(output), (None, torch.zeros(target)))
        for output, target in BROADCAST
        for use in (default_loss("regression").mean, default_loss("regression").total, find("rmse").contributions)
    ),
    *(partial(default_loss("classification").mean, *_classified(*shapes)) for shapes in UNFIT),
    *(partial(find("error").contributions, *_classified(*shapes)) for shapes in (*UNFIT, ((8, 3), (7,)))),
    lambda: find("error").contributions(torch.zeros(3, 2), (None, torch.zeros(3))),
    lambda: default_loss("classification").mean(torch.zeros(3, 2), (None, torch.zeros(3))),
    *(partial(target_of, batch) for batch in NO_TARGETS),
    *(
        partial(prediction_of, output)
        for output in (None, (torch.zeros(3),), {"out": torch.zeros(3)}, types.SimpleNamespace())
    ),
    lambda: examples_of("x"),
    lambda: default_loss(None).mean(torch.zeros(3), {"x": torch.zeros(3)}),
    lambda: find("loss").contributions(torch.zeros(3), {"x": torch.zeros(3)}),
    *(partial(Metric, name) for name in ("labels", "predictions", "groups", "", "a\nb", len)),
    lambda: Metric("a", better="more"),
    lambda: Metric("auroc", better="lower"),
    lambda: Metric("a", 3),
    lambda: Metric("a", combine=max, function=min),
    lambda: Metric("a").contributions(None, None),
    lambda: Metric("a").value([[1.0, 2.0]]),
    lambda: Metric("a").value(np.zeros((2, 2, 2))),
    lambda: Metric.whole("a", None, lambda x: x).value([1.0, 2.0]),
    *(partial(Metric("mine", lambda output, batch: output).contributions, found, None, 4) for found in FOUND),
    *(partial(chosen, given_, "classification") for given_ in ("eror", "top0", ["nll", "nll"], [], [3])),
]


def test_mistakes_are_told_in_one_line(refusals):
    refusals("refusals_of_metrics", REFUSED)


def test_metrics_by_name():
    assert [metric.name for metric in chosen("error", "regression")] == ["error"]
    mine = Metric("mine")
    assert chosen(["nll", mine], None) == (find("nll"), mine)
    assert chosen(mine, None) == (mine,)
    assert chosen(None, "classification") == (find("error"), find("nll"))
    assert [metric.name for metric in chosen(None, "regression")] == ["rmse", "mae", "r2"]
    assert find("top3").unit == "%"
    assert {name for name, metric in metrics.BUILT_IN.items() if metric.better == "higher"} == {
        *("accuracy", "auroc", "f1", "r2")
    }


def test_which_values_of_a_known_name_are_better_needs_no_word():
    assert Metric("accuracy").better == Metric("R2").better == Metric.whole("f1", None, np.mean).better == "higher"
    assert Metric("ece").better == Metric("mine").better == Metric.whole("rmse", None, np.max).better == "lower"
    assert Metric.whole("mine", None, np.max).better == "higher"
    built_in = {name: metric.better for name, metric in metrics.BUILT_IN.items()}
    known = {name: metric_values.better_of(name) for name in metrics.BUILT_IN}
    assert built_in == known | {"top5": "lower"}  # an error here, an accuracy elsewhere


def test_a_metric_of_ones_own_called_error_is_what_training_counts():
    logits, classes = _classes(20)
    for metric, expected in (
        (Metric("error", lambda output, batch: torch.full((len(batch[1]),), 7.0)), 7.0),
        (find("error"), 100 * (logits.argmax(1) != classes).double().mean().item()),
    ):
        found = EpochMetrics(metric)
        found.add(torch.tensor(0.0), logits, (logits, classes))
        assert found.values()[1] == pytest.approx(expected)
