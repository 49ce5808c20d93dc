# ruff: noqa: RUF001  (Greek letters are what is tested)
"""Figures of the report: what they show, that everything fits, and that names are only ever text."""

import itertools
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text

import stores
from contdrop import lab
from contdrop.lab.analysis.comparisons import compare
from contdrop.lab.analysis.verdict import analyze
from contdrop.lab.report import figures, style
from contdrop.lab.report.figures import class_errors, drawing
from contdrop.lab.report.figures.strength import noise, sweep
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from contdrop.lab.study import labels
from contdrop.replication import datasets
from contdrop.replication.claims.claims import CLAIMS
from contdrop.replication.claims.verdicts import VERDICTS, ClaimVerdict
from contdrop.replication.paper_figures import claims_picture as claims_figure
from contdrop.replication.paper_figures import samples, samples_of

ODD = ("<script>alert(1)</script>", "$x_1$ & 50% \\frac{", "a name that goes on and on, and does not end", "gaussian")
SWEEP = (
    "bernoulli",
    *(f"gaussian:sigma={tenths / 10:g}" for tenths in range(1, 7)),
    *(f"gaussian:variance={tenths / 10:g}" for tenths in range(1, 7)),
)
CASES = {
    "eight": {"methods": stores.ALL_METHODS, "runs": 4, "epochs": 12, "covariance": True},
    "one run": {"methods": stores.ALL_METHODS, "runs": 1, "epochs": 3, "dataset": "fashion-mnist"},
    "two": {"methods": ("bernoulli", "gaussian"), "runs": 3, "epochs": 2, "covariance": True},
    "sweep": {"methods": SWEEP, "runs": 2, "epochs": 8, "reference": "bernoulli"},
    "odd": {"methods": ODD, "runs": 3, "epochs": 8, "covariance": True, "missing": [("gaussian", 1)]},
}


def _made(path, **options):
    """The results of a new store, and their pictures by name."""
    with Store(stores.make_store(path, **options)) as store:
        (results,) = collect_all(store)
        return results, {picture.name: picture for picture in figures.figures(store, analyze(results))}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """By name the results and the pictures of each case."""
    directory = tmp_path_factory.mktemp("stores")
    return {name: _made(directory / f"{name}.db", **options) for name, options in CASES.items()}


def test_pictures_and_their_words(cases, snapshot):
    """Which figures apply to each case, with captions and text alternatives."""
    parts = []
    for name, (_, pictures) in cases.items():
        parts += [f"## {name}", ""]
        for picture in pictures.values():
            assert picture.alt.endswith(".")
            assert "preset “quick”" in picture.caption, picture.name
            parts += [f"{picture.name}: {picture.title}", f"- {picture.caption}", f"- {picture.alt}", ""]
    snapshot("pictures", "\n".join(parts))


def _texts(figure):
    """Texts that are drawn, with their boxes in pixels; not those of ticks outside the axes, which are not drawn."""
    with drawing.styled():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        unseen = set()
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                for tick in axis.get_major_ticks():
                    if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                        unseen |= {id(tick.label1), id(tick.label2)}
        shown = [text for text in figure.findobj(Text) if text.get_text().strip() and id(text) not in unseen]
        return [
            (text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown if text.get_visible()
        ]


def _check_texts(figure, *, may_cross=False):
    texts = _texts(figure)
    assert texts
    for text, box in texts:
        inside = box.x0 > -1 and box.y0 > -1 and box.x1 < figure.bbox.width + 1 and box.y1 < figure.bbox.height + 1
        assert inside, (text, box)
    for (first, a), (second, b) in itertools.combinations(texts, 2):
        wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert may_cross or not (wide > 1 and high > 2), (first, second)


@pytest.mark.parametrize("case", CASES)
def test_all_text_is_inside_and_none_hides_another(cases, case):
    for name, picture in cases[case][1].items():
        # Names of classes that are words stand aslant, and their boxes do not.
        _check_texts(picture.draw(), may_cross=case == "one run" and name == "classes")


def test_names_are_text_whatever_they_hold(cases, tmp_path):
    """No mathematics, no markup: the SVG's own text is the name, cut if it is long."""
    for picture in cases["odd"][1].values():
        (path,) = drawing.save(picture.draw(), tmp_path, picture.name, ("svg",))
        root = ElementTree.fromstring(path.read_text())
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert "script" not in tags
        words = {text.strip() for text in root.itertext()}
        assert {"<script>alert(1)</scr…", "$x_1$ & 50% \\frac{"} <= words or picture.name == "noise", picture.name


def test_files_have_the_same_bytes_again_and_nothing_is_left_behind(cases, tmp_path):
    pictures = cases["two"][1]
    formats = {name: ("svg", "png", "pdf") if name == "confusion" else ("svg",) for name in pictures}
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        for name, picture in pictures.items():
            paths = figures.save(picture.draw(), directory, name, formats[name])
            assert paths == [directory / f"{name}.{ending}" for ending in formats[name]]
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
        assert path.suffix != ".svg" or "DejaVu Sans', Verdana" in path.read_text()
    assert len(list(first.iterdir())) == len(pictures) + 2


def test_user_settings_change_nothing_and_are_left_alone(cases, tmp_path):
    picture = cases["two"][1]["pairs"]
    (plain,) = drawing.save(picture.draw(), tmp_path, "plain", ("svg",))
    with matplotlib.rc_context({"font.size": 30, "xtick.major.size": 20, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        (other,) = drawing.save(picture.draw(), tmp_path, "other", ("svg",))
        assert dict(matplotlib.rcParams) == before
    assert plain.read_bytes() == other.read_bytes()


def test_names_in_scripts_that_the_font_lacks_do_not_warn(tmp_path):
    _, pictures = _made(tmp_path / "s.db", methods=("方法", "😀\x00\n", "gaussian"), runs=2)
    for picture in pictures.values():
        svg, _ = figures.save(picture.draw(), tmp_path, picture.name, ("svg", "png"))
        ElementTree.fromstring(svg.read_text())


# ---- what is drawn


def _line(axes, colour, at_least=2):
    """The points of the one line of a colour that has so many."""
    (found,) = (line for line in axes.lines if line.get_color() == colour and len(line.get_xdata()) >= at_least
                and line.get_transform() == axes.transData)  # fmt: skip
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def _floats(values):
    """What error bars keep as objects."""
    return np.asarray(values, dtype=float)


@pytest.fixture
def curves(tmp_path, monkeypatch):
    """Makes a store with two methods; returns the picture, the plots, and a method's test values by run and epoch."""

    def make(change=None, **options):
        class Changed(Store):
            def finish(self, number, curve, results, artefacts):
                if change is _negated:
                    results = {**results, "test_error": -10 - results["test_error"]}
                return super().finish(number, change(number, curve), results, artefacts)

        if change is not None:
            monkeypatch.setattr(stores, "Store", Changed)
        with Store(stores.make_store(tmp_path / "s.db", methods=("none", "gaussian"), **options)) as store:
            (results,) = collect_all(store)
            values = [[e.test_error for e in store.epochs(job.id)] for job in results.by_method["gaussian"]]
            found = [each for each in figures.figures(store, analyze(results)) if each.name == "curves"]
        return (found[0], found[0].draw().axes, values) if found else (None, [], values)

    return make


def _negated(number, curve):
    """Minus ten minus each value: a log-likelihood, say."""
    return [each._replace(test_error=-10 - each.test_error) for each in curve]


def _stopped(number, curve):
    """The curve of each job up to another epoch, the first one after three."""
    return curve[: 2 + number]


def _seldom(number, curve):
    """Test values after every third epoch and after the last one only."""
    return [e if e.epoch % 3 == 0 or e.epoch == len(curve) else e._replace(test_error=None) for e in curve]


def _check_band(band, epoch, values):
    """The band around the last values is of a standard deviation."""
    corners = band.get_paths()[0].vertices
    ends = corners[corners[:, 0] == epoch][:, 1]
    spread = np.array([-1, 1]) * np.std(values, ddof=1)
    np.testing.assert_allclose([ends.min(), ends.max()], np.mean(values) + spread)


def test_curves_are_means_with_bands_of_a_standard_deviation(curves):
    picture, (whole, half), values = curves(runs=5, epochs=12)
    x, y = _line(whole, style.style("gaussian").colour, at_least=12)
    np.testing.assert_allclose(x, range(1, 13))
    np.testing.assert_allclose(y, np.mean(values, axis=0))
    _check_band(half.collections[1], 12, np.array(values)[:, -1])
    assert half.get_xlim() == (6, 12)
    assert "5 runs of 12 epochs each" in picture.caption
    assert "stopped early" not in picture.caption


@pytest.mark.parametrize("epochs", [5, 12])
def test_curves_of_negative_values_have_their_bands_and_no_logarithm(curves, epochs):
    metric = {"name": "evidence lower bound", "unit": "nats", "better": "higher"}
    picture, plots, values = curves(_negated, runs=5, epochs=epochs, metric=metric)
    assert "logarithmic" not in picture.caption
    assert ("Above: all of training. Below: its second half." in picture.caption) == (epochs == 12)
    for axes in plots:
        assert axes.get_yscale() == "linear"
        assert axes.get_ylim()[1] < -10
        _check_band(axes.collections[-1], epochs, np.array(values)[:, -1])
    _check_texts(picture.draw())


def test_a_band_is_cut_on_the_logarithmic_axis_alone(curves):
    levels = {"gaussian": 0.3, "none": 9.0}  # of which runs are as far apart as from 0
    picture, (whole, half), _ = curves(runs=5, epochs=12, levels=levels, noise=2.0, seed=5)
    assert (whole.get_yscale(), half.get_yscale()) == ("log", "linear")
    assert "on a logarithmic axis" in picture.caption
    lowest = [axes.collections[1].get_paths()[0].vertices[:, 1].min() for axes in (whole, half)]
    assert lowest[1] < 0 < lowest[0]


def test_long_training_is_thinned_and_says_so(curves):
    picture, plots, _ = curves(runs=1, epochs=1000)
    x, _ = _line(plots[0], style.style("none").colour)
    assert (len(x), x[0], x[-1]) == (400, 1, 1000)
    assert "400 of 1,000 epochs are drawn" in picture.caption


def test_runs_that_stopped_early_keep_their_last_value(curves):
    picture, plots, values = curves(_stopped, runs=5, epochs=20)
    assert [len(curve) for curve in values] == [4, 6, 8, 10, 12]
    kept = np.array([curve + curve[-1:] * (12 - len(curve)) for curve in values])
    x, y = _line(plots[0], style.style("gaussian").colour, at_least=12)
    np.testing.assert_allclose(x, range(1, 13))
    np.testing.assert_allclose(y, kept.mean(axis=0))
    assert "5 runs of up to 20 epochs each" in picture.caption
    assert "Runs that stopped early keep their last value." in picture.caption
    assert "over 12 epochs for 2 methods" in picture.alt
    assert f"{kept[:, -1].mean():.2f} %" in picture.alt


@pytest.mark.parametrize(("epochs", "plots"), [(2, 0), (10, 1), (40, 2), (2000, 2)])
def test_curves_go_through_the_epochs_that_were_evaluated(curves, epochs, plots):
    picture, axes, values = curves(_seldom, runs=2, epochs=epochs)
    assert len(axes) == plots
    if not plots:
        assert picture is None  # of one point there is no curve
        return
    x, y = _line(axes[0], style.style("gaussian").colour)
    evaluated = [epoch for epoch in range(1, epochs + 1) if epoch % 3 == 0 or epoch == epochs]
    assert set(x) <= set(evaluated)
    assert (x[0], x[-1], len(x)) == (3, epochs, min(400, len(evaluated)))
    np.testing.assert_allclose(y, [np.mean([curve[int(epoch) - 1] for curve in values]) for epoch in x])
    assert ("400 of 667 epochs are drawn." in picture.caption) == (epochs == 2000)
    assert axes[-1].get_xlim()[1] == epochs
    _check_texts(picture.draw())


def test_every_run_is_a_line_and_differences_have_the_tables_sign(cases):
    results, pictures = cases["eight"]
    runs, differences = pictures["pairs"].draw().axes
    grey = [line for line in runs.lines if line.get_color() == style.FAINT]
    errors = results.errors()
    order = sorted(errors, key=lambda method: np.mean(list(errors[method].values())))
    assert len(grey) == 4
    for run, line in enumerate(grey):
        np.testing.assert_allclose(line.get_xdata(), [errors[method][run] for method in order])
    comparison = compare(results)["none"]
    drawn = [line for line in differences.lines if line.get_color() == style.style("none").colour]
    dots, interval, mean = (np.asarray(line.get_xdata()) for line in drawn)
    np.testing.assert_allclose(sorted(dots), sorted(errors["gaussian"][run] - errors["none"][run] for run in range(4)))
    np.testing.assert_allclose(interval, comparison.interval)
    np.testing.assert_allclose(mean, [comparison.difference])
    assert comparison.difference < 0


def test_a_run_that_a_method_lacks_breaks_its_line(cases):
    results, pictures = cases["odd"]
    runs, _ = pictures["pairs"].draw().axes
    grey = [np.asarray(line.get_xdata()) for line in runs.lines if line.get_color() == style.FAINT]
    assert [int(np.isnan(line).sum()) for line in grey] == [0, 1, 0]
    assert compare(results)[ODD[0]].runs == 2


def test_sweep_has_both_readings_over_the_standard_deviation_and_bernoulli_as_a_band(cases):
    results, pictures = cases["sweep"]
    axes = pictures["sweep"].draw().axes[0]
    errors = {method: np.array(list(runs.values())) for method, runs in results.errors().items()}
    sigma, variance = (container[0] for container in axes.containers)
    tenths = np.arange(1, 7) / 10
    np.testing.assert_allclose(_floats(sigma.get_xdata()), tenths)
    np.testing.assert_allclose(_floats(sigma.get_ydata()), [errors[f"gaussian:sigma={x:g}"].mean() for x in tenths])
    np.testing.assert_allclose(_floats(variance.get_xdata()), np.sqrt(tenths))
    np.testing.assert_allclose(
        _floats(variance.get_ydata()), [errors[f"gaussian:variance={x:g}"].mean() for x in tenths]
    )
    (band,) = axes.patches
    mean, sd = errors["bernoulli"].mean(), errors["bernoulli"].std(ddof=1)
    np.testing.assert_allclose([band.get_y(), band.get_y() + band.get_height()], [mean - sd, mean + sd])


@pytest.mark.parametrize(
    ("mean", "said"),
    [
        (0.5, "has the strength and mean of Gaussian: a gap between these two, beyond chance,"),
        (0.7, "is no control of Gaussian here: matched Bernoulli was run with masks of another"),
        (None, "is no control of Gaussian here: masks are unscaled here, and the store does not say"),
    ],
)
def test_noise_plot_calls_only_what_has_the_same_mean_and_strength_a_control(tmp_path, mean, said):
    results, _ = _made(tmp_path / "s.db", methods=("bernoulli", "gaussian", "bernoulli-matched"), runs=2)
    for job in results.finished:
        if mean is not None:
            job.results["mean"] = mean if job.method == "bernoulli-matched" else 0.5
    assert f"Matched Bernoulli {said}" in noise(results).caption


def test_noise_plot_has_every_law_and_names_those_without(cases):
    results, pictures = cases["eight"]
    axes = pictures["noise"].draw().axes[0]
    drawn = {container[0].get_color(): container[0] for container in axes.containers}
    assert len(drawn) == 7
    uniform = drawn[style.style("uniform").colour]
    np.testing.assert_allclose(_floats(uniform.get_ydata()), [np.mean(list(results.errors()["uniform"].values()))])
    assert "not drawn: adaptive." in pictures["noise"].caption
    # Three laws of relative variance 1 stand side by side around it, and none hides another.
    equal = [
        _floats(drawn[style.style(method).colour].get_xdata())[0] for method in ("bernoulli", "dropconnect", "fast")
    ]
    assert np.mean(equal) == pytest.approx(1)
    assert np.diff(sorted(equal)).min() > 0.01


def test_covariances_are_means_over_runs(tmp_path):
    options = {"methods": ("bernoulli", "gaussian"), "runs": 2, "covariance": True}
    with Store(stores.make_store(tmp_path / "s.db", **options)) as store:
        (results,) = collect_all(store)
        counts = np.mean(
            [store.artefact(results.job("gaussian", run).id, "covariance_layer2") for run in (0, 1)], axis=0
        )
        (picture,) = (each for each in figures.figures(store, analyze(results)) if each.name == "covariances")
    first, second = picture.draw().axes
    assert first.get_yscale() == second.get_yscale() == "log"
    _, y = _line(second, style.style("gaussian").colour, at_least=200)
    np.testing.assert_allclose(y, np.where(counts > 0, counts, np.nan))
    assert "10,000 times" in picture.caption


def test_classes_and_wins_by_hand():
    shares = {
        "a": np.array([[90.0, 10, 0], [0, 80, 20], [0, 0, 100]]),
        "b": np.array([[95.0, 5, 0], [0, 80, 20], [3, 0, 97]]),
    }
    errors = {method: class_errors.class_errors(found) for method, found in shares.items()}
    np.testing.assert_allclose(errors["a"], [10, 20, 0])
    assert class_errors.wins(errors) == {"a": 2, "b": 2}


def test_matrices_agree_with_the_errors(cases, tmp_path):
    with Store(stores.make_store(tmp_path / "s.db", methods=("none", "gaussian"), runs=3)) as store:
        (results,) = collect_all(store)
        labels = store.artefact(results.finished[0].id, "test_labels")
        shares = class_errors.matrices(store, results)
    weights = np.bincount(labels) / len(labels)
    for method, runs in results.errors().items():
        np.testing.assert_allclose(shares[method].sum(axis=1), 100)
        assert weights @ class_errors.class_errors(shares[method]) == pytest.approx(np.mean(list(runs.values())))


def test_matrices_of_many_classes_are_not_made(tmp_path, monkeypatch):
    """They would be thrown away, after gigabytes."""
    with Store(stores.make_store(tmp_path / "s.db", methods=("none", "gaussian"), runs=2, classes=21)) as store:
        (results,) = collect_all(store)
        monkeypatch.setattr(class_errors.np, "bincount", None)
        assert class_errors.matrices(store, results) == {}


@pytest.mark.parametrize(("dataset", "first"), [("cifar-10", "airplane"), ("", "0")])
def test_classes_are_those_of_the_data_and_not_of_the_experiments_name(tmp_path, dataset, first):
    results, _ = _made(tmp_path / "s.db", experiment="cifar-10", dataset=dataset, runs=2, epochs=1, images=50)
    assert class_errors._class_names(results, 10)[0] == first


def test_critical_difference_diagram_needs_three_data_sets(tmp_path):
    names = ("digits", "mnist", "svhn")
    for number, name in enumerate(names):
        stores.make_store(tmp_path / "s.db", experiment=f"{name}-mlp", dataset=name, seed=number, runs=3)
        # A second experiment on a data set does not make it count twice.
        stores.make_store(tmp_path / "s.db", experiment=f"{name}-again", dataset=name, seed=number, runs=2)
        with Store(tmp_path / "s.db") as store:
            picture = figures.across(collect_all(store))
        assert (picture is None) == (number < 2)
    assert "over 3 data sets (digits, mnist, svhn)" in picture.caption
    assert "Methods joined by a bar are not told apart by Nemenyi's test at 5 %" in picture.caption
    figure = picture.draw()
    _check_texts(figure)
    assert any(text.startswith("Gaussian 1.") for text, _ in _texts(figure))


def test_samples_show_each_class():
    picture = samples("digits")
    assert picture.name == "samples-digits"
    assert "8x8 pixels" in " ".join(picture.caption.split())
    (image,) = picture.draw().axes[0].images
    found = datasets.load("digits")
    first = found.train_images[found.train_labels == 0][0, 0] / found.divisor
    np.testing.assert_allclose(image.get_array()[:8, :8, 0], first, atol=1e-6)
    assert samples("no such data set") is None
    colour = datasets.Dataset(
        "c", "C", np.zeros((4, 3, 6, 5), np.uint8), np.array([0, 1, 0, 1]), np.zeros((1, 3, 6, 5), np.uint8),
        np.array([0]), 255.0, ("one", "two"), "made up", "0",
    )  # fmt: skip
    assert "5x6 pixels, colour" in samples_of(colour).caption.replace("  ", " ")


def test_nothing_is_drawn_of_an_experiment_without_results(tmp_path):
    jobs = [(method, run) for method in stores.METHODS for run in range(2)]
    with Store(stores.make_store(tmp_path / "s.db", runs=2, missing=jobs[:5], failed=jobs[5:])) as store:
        everything = collect_all(store)
        assert figures.figures(store, analyze(everything[0])) == []
        assert figures.across(everything) is None


# ---- names


def _analysed(methods, **options):
    values = np.random.default_rng(0).normal(5, 1, (len(methods), 6))
    return lab.analyze({method: list(row) for method, row in zip(methods, values)}, **options).results


DEPTHS = [f"own:stochastic depth linear 0.{digit}" for digit in (1, 2, 4)]


def test_names_that_begin_alike_stay_different_when_they_are_cut():
    assert list(drawing.short_names(["none", *DEPTHS]).values()) == [
        "No dropout",
        *(f"stochastic dep…ear 0.{digit}" for digit in (1, 2, 4)),
    ]
    assert drawing.short_names(["x" * 40]) == {"x" * 40: "x" * 21 + "…"}
    middle = [f"{'x' * 40}{letter}{'y' * 40}" for letter in "ab"]  # told apart by neither end
    assert list(drawing.short_names(middle).values()) == [f"{number}: {'x' * 18}…" for number in (1, 2)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text("ab. ", min_size=1, max_size=60).map(str.strip).filter(bool), unique=True, max_size=6))
def test_no_two_short_names_are_alike(names):
    names = list({labels.display_name(name, longest=10_000): name for name in names}.values())
    found = drawing.short_names(names)
    assert list(found) == names
    assert len(set(found.values())) == len(names)
    assert all(len(name) <= drawing.LONGEST for name in found.values())


def test_names_that_differ_at_their_ends_do_so_in_every_figure(tmp_path):
    _, pictures = _made(tmp_path / "s.db", methods=(*DEPTHS, "gaussian"), runs=3, covariance=True)
    for picture in pictures.values():
        shown = [text for text, _ in _texts(picture.draw()) if text.startswith("stochastic")]
        assert len(set(shown)) == (0 if picture.name == "noise" else 3), picture.name
    wide = [f"{'W' * 30}{letter}" for letter in "abc"]
    shown = {text for text, _ in _texts(figures.pairs(analyze(_analysed(wide))).draw()) if text.startswith("W")}
    assert {text[-1] for text in shown if "…" in text} == set("abc")


@pytest.mark.parametrize(
    ("methods", "options"),
    [
        ([f"method number {number}" for number in range(40)], {}),
        (["m0", "m1", "m2"], {"metric": "continuous ranked probability score", "unit": "kilowatt hours"}),
        (["m0", "m1", "m2"], {"metric": "n" * 60, "unit": "u " * 100}),
    ],
    ids=["many methods", "long metric", "endless metric"],
)
def test_pairs_have_room_for_what_stands_around_them(methods, options):
    figure = figures.pairs(analyze(_analysed(methods, **options))).draw()
    _check_texts(figure)
    above = [box for text, box in _texts(figure) if text in ("worse →", "← reference better", "← m0 better")]
    axes = figure.axes[1].get_window_extent()
    assert len(above) == 2
    assert all(axes.y1 < box.y0 < axes.y1 + 5 for box in above)


@pytest.mark.parametrize("others", [1, 25])
def test_sweep_has_room_for_all_names(others):
    widths = [f"gaussian:{what}=0.{tenths}" for what in ("sigma", "variance") for tenths in range(1, 5)]
    picture = sweep(_analysed([*widths, *(f"other {number}" for number in range(others))]))
    _check_texts(picture.draw())


def test_a_long_name_of_a_metric_has_room_beside_every_plot(tmp_path):
    metric = {"name": "continuous ranked probability score", "unit": "kilowatt hours", "better": "lower"}
    _, pictures = _made(tmp_path / "s.db", methods=SWEEP, runs=2, epochs=3, metric=metric)
    assert list(pictures) == ["pairs", "sweep", "noise", "curves"]
    for picture in pictures.values():
        _check_texts(picture.draw())


# ---- places and colours


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.08))
def test_spread_keeps_order_and_distance(wanted, gap):
    found = drawing.spread(wanted, gap, 0.0, 1.0)
    order = np.argsort(wanted, kind="stable")
    placed = np.array(found)[order]
    assert (np.diff(placed) >= gap - 1e-6).all()
    assert ((placed >= -1e-6) & (placed <= 1 + 1e-6)).all()
    if len(wanted) > 1 and np.diff(np.sort(wanted)).min() >= gap + 1e-6:
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def _luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("method", [*stores.ALL_METHODS, "gaussian:sigma=0.05", "gaussian:sigma=1", "my own", "方法"])
def test_colours_stand_out_on_light_and_dark(method):
    """By 3 to 1, what WCAG 2 asks of graphics."""
    look = style.style(method)
    assert _contrast(look.colour, style.PAPER) >= 3
    assert _contrast(look.dark, style.DARK_PAPER) >= 3
    assert style.dark(look.colour) == look.dark
    assert _contrast(style.dark(style.INK), style.DARK_PAPER) >= 7
    assert _contrast(style.INK, style.PAPER) >= 7


@pytest.mark.parametrize("verdict", VERDICTS)
def test_verdicts_can_be_read_on_light_and_dark(verdict):
    """By 4.5 to 1, what WCAG 2 asks of text: its ground is light on a dark page too."""
    axes = claims_figure([ClaimVerdict(CLAIMS[0], verdict, "")]).draw().axes[0]
    (word,) = (text.get_color() for text in axes.texts if text.get_text() == verdict)
    ground = to_hex(axes.patches[-1].get_facecolor())
    assert _contrast(word, ground) >= 4.5
    assert _contrast(style.dark(word), style.dark(ground)) >= 4.5


def test_every_method_has_a_look_of_its_own():
    looks = [style.style(method) for method in stores.ALL_METHODS]
    assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(looks)
    assert style.style("mine") == style.style("mine") != style.style("yours")


def test_names_of_methods():
    names = {
        "none": "No dropout", "gaussian:variance=0.3": "Gaussian σ²=0.3", "gaussian:oops": "gaussian:oops",
        "adaptive:alpha=-1,beta=0.5": "Adaptive α=-1 β=0.5", "bad\x00\u202ename\n two": "bad\ufffd\ufffdname two",
        "x" * 40: "x" * 27 + "…",
    }  # fmt: skip
    assert {method: labels.display_name(method) for method in names} == names


def test_stats_analysis_and_report_import_neither_torch_nor_pyplot():
    root = pathlib.Path(style.__file__).parents[2]
    names = [
        ".".join(path.with_suffix("").relative_to(root.parent).parts)
        for package in ("stats", "analysis", "report")
        for path in (root / "lab" / package).rglob("*.py")
    ]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {names}]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "contdrop.lab.report.page" in loaded
    assert not {"torch", "matplotlib.pyplot"} & set(loaded)
