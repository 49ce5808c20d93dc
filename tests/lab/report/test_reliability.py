"""The reliability diagram: what is drawn of what a study measured, and that everything fits."""

import numpy as np
import pytest
from test_figures import ODD, _check_texts, _floats, _texts

import stores
from contdrop.lab.analysis.verdict import analyze
from contdrop.lab.report import figures, style
from contdrop.lab.report.figures.reliability import WAYS, calibrations
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from contdrop.lab.training import metric_values

METHODS = ("none", "bernoulli", "gaussian")


def _measured(ways, seed, confident):
    """As lab.uncertainty() keeps it, of made-up predictions; ``confident`` adds to what they believe."""
    kept = {}
    for way in ways:
        rng = np.random.default_rng([seed, len(way)])
        right = rng.uniform(0.3, 0.9, 400)
        correct = rng.uniform(size=400) < right
        confidence = np.minimum(right + confident, 1)
        kept[f"uncertainty_{way}_reliability"] = np.stack(metric_values.reliability(confidence, correct)).astype(
            np.float64
        )
        kept[f"uncertainty_{way}_ece"] = np.asarray(
            metric_values.calibration_error(np.stack([confidence, correct], axis=1))
        )
    return kept


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes a store whose jobs measured; returns their artefacts by method and run, the results and the picture."""

    def make(ways_of, **options):
        finish, made = Store.finish, {}

        def finish_measured(self, job, epochs, results, artefacts):
            row = next(each for each in self.jobs() if each.id == job)
            shift = 0.02 * len(row.method)
            made[row.method, row.run] = _measured(ways_of(row.method), row.run, shift)
            finish(self, job, epochs, results, {**artefacts, **made[row.method, row.run]})

        monkeypatch.setattr(Store, "finish", finish_measured)
        with Store(stores.make_store(tmp_path / "s.db", **options)) as store:
            (results,) = collect_all(store)
            pictures = {picture.name: picture for picture in figures.figures(store, analyze(results))}
            return made, calibrations(store, results), pictures

    return make


def _ways_of(method):
    return ["point"] if method == "none" else list(WAYS)


def test_bins_of_all_runs_are_pooled(make):
    made, found, _ = make(_ways_of, methods=METHODS, runs=3)
    assert {way: list(methods) for way, methods in found.items()} == {
        "point": list(METHODS),
        "mc": ["bernoulli", "gaussian"],
        "moments": ["bernoulli", "gaussian"],
    }
    runs = [made["gaussian", run] for run in range(3)]
    pooled = found["mc"]["gaussian"]
    assert pooled.errors == [float(run["uncertainty_mc_ece"]) for run in runs]
    counts = sum(run["uncertainty_mc_reliability"][0] for run in runs)
    right = sum(np.prod(run["uncertainty_mc_reliability"][[0, 2]], axis=0) for run in runs)
    believed = sum(np.prod(run["uncertainty_mc_reliability"][:2], axis=0) for run in runs)
    enough = counts >= 10
    assert 0 < enough.sum() < 15
    np.testing.assert_allclose(pooled.accuracy, right[enough] / counts[enough])
    np.testing.assert_allclose(pooled.confidence, believed[enough] / counts[enough])


def test_what_is_drawn(make):
    _, found, pictures = make(_ways_of, methods=METHODS, runs=3)
    figure = pictures["reliability"].draw()
    diagrams, errors = figure.axes[:3], figure.axes[3:]
    assert [axes.get_title(loc="left") for axes in diagrams] == ["dropout off", "Monte Carlo", "moments"]
    for axes, below, (way, methods) in zip(diagrams, errors, found.items(), strict=True):
        lines = {line.get_color(): line for line in axes.lines}
        assert len(lines) == 1 + len(methods)
        points = {container[0].get_color(): container[0] for container in below.containers}
        assert len(points) == len(methods), way
        for method, each in methods.items():
            colour = style.style(method).colour
            np.testing.assert_allclose(lines[colour].get_xdata(), each.confidence)
            np.testing.assert_allclose(lines[colour].get_ydata(), each.accuracy)
            np.testing.assert_allclose(_floats(points[colour].get_xdata()), [np.mean(each.errors)])
    drawn = [text for text, _ in _texts(figure)]
    assert {"No dropout", "Bernoulli", "Gaussian"} <= set(drawn), drawn


def test_words(make, snapshot):
    _, _, pictures = make(_ways_of, methods=METHODS, runs=3)
    snapshot("reliability", f"{pictures['reliability'].caption}\n{pictures['reliability'].alt}\n")


def test_one_way_and_one_run(make):
    _, _, pictures = make(lambda method: ["point"], methods=METHODS, runs=1)
    picture = pictures["reliability"]
    assert "standard deviation" not in picture.caption
    assert "Monte Carlo" not in picture.caption
    assert len(picture.draw().axes) == 2
    _check_texts(picture.draw())


def test_without_measurement_there_is_no_diagram(make):
    _, found, pictures = make(lambda method: [], methods=METHODS, runs=2)
    assert not found
    assert "reliability" not in pictures


@pytest.mark.parametrize("methods", [stores.ALL_METHODS, ODD, ("gaussian",)])
@pytest.mark.parametrize("ways", [["point"], ["point", "mc"], list(WAYS)])
def test_all_text_is_inside_and_none_hides_another(make, methods, ways):
    _, _, pictures = make(lambda method: ways, methods=methods, runs=2)
    _check_texts(pictures["reliability"].draw())


def test_a_perfect_model_can_be_drawn(make, monkeypatch):
    """Whose calibration error is 0, and whose examples are all in one bin."""
    bins = np.zeros((3, 15))
    bins[:, -1] = 400, 1, 1
    perfect = {"uncertainty_point_reliability": bins, "uncertainty_point_ece": np.asarray(0.0)}
    monkeypatch.setattr(f"{__name__}._measured", lambda ways, seed, confident: perfect)
    _, _, pictures = make(lambda method: ["point"], methods=METHODS, runs=2)
    _check_texts(pictures["reliability"].draw())


def test_bins_of_few_examples_are_left_out(make, monkeypatch):
    """Eight in two runs together are few, ten are not."""
    bins = np.zeros((3, 15))
    bins[:, 4], bins[:, 9], bins[:, 14] = (4, 0.3, 0.5), (5, 0.65, 0.6), (400, 0.95, 0.9)
    kept = {"uncertainty_point_reliability": bins, "uncertainty_point_ece": np.asarray(0.1)}
    monkeypatch.setattr(f"{__name__}._measured", lambda ways, seed, confident: kept)
    _, found, _ = make(lambda method: ["point"], methods=METHODS, runs=2)
    np.testing.assert_allclose(found["point"]["gaussian"].confidence, [0.65, 0.95])
    np.testing.assert_allclose(found["point"]["gaussian"].accuracy, [0.6, 0.9])
