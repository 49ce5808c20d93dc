"""The summary: one sheet, with the verdict in words that can be searched, whatever the experiment."""

import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from test_figures import _check_texts

from contdrop import lab
from contdrop.lab import stats
from contdrop.lab.analysis.comparisons import compare
from contdrop.lab.analysis.verdict import verdict
from contdrop.lab.report import cells, figures, page, pdf_summary
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from contdrop.lab.study import labels
from stores import ALL_METHODS, make_store

A4 = b"/MediaBox [ 0 0 595.44 841.68 ]"
LONG = "a-method-with-a-very-long-name-that-nobody-would-choose-but-somebody-will"


def drawn(path):
    with Store(path) as store:
        (results,) = collect_all(store)
    comparisons = compare(results)
    found = verdict(results, None, comparisons)
    return pdf_summary.draw(results, comparisons, found, "runs.db"), found


def test_one_sheet_with_the_verdict_in_letters(tmp_path):
    path = make_store(tmp_path / "runs.db", methods=ALL_METHODS, runs=6, epochs=2, images=100)
    figure, found = drawn(path)
    (pdf,) = figures.save(figure, tmp_path, "summary", ("pdf",))
    content = pdf.read_bytes()
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert A4 in content
    assert b"/CreationDate" not in content
    assert content.count(b"/FontFile2") >= 2  # letters, of fonts that are in the file, and no outlines
    assert b"/Subtype /Type3" not in content
    text = " ".join(each.get_text() for each in figure.texts)
    assert found.headline in text
    for word in ("digits-mlp", "Bernoulli", "reference", "95 % interval", "contdrop run digits-mlp --preset quick"):
        assert word in text
    figures.save(drawn(path)[0], tmp_path, "again", ("pdf",))
    assert (tmp_path / "again.pdf").read_bytes() == content


@pytest.mark.parametrize(
    "methods", [("gaussian", LONG), (*ALL_METHODS, *(f"gaussian:sigma=0.{n}" for n in range(1, 25)))]
)
def test_nothing_leaves_the_sheet_or_meets_the_foot(tmp_path, methods):
    figure, _ = drawn(
        make_store(tmp_path / "runs.db", methods=methods, runs=6, epochs=2, images=50, title=f"{LONG} " * 5)
    )
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.texts]
    assert min(box.x0 for box in boxes) > 0
    assert min(box.y0 for box in boxes) > 0
    assert max(box.x1 for box in boxes) < figure.bbox.x1
    assert max(box.y1 for box in boxes) < figure.bbox.y1
    foot = next(box for text, box in zip(figure.texts, boxes) if "To do it again" in text.get_text())
    pictures = [axes.get_tightbbox(renderer) for axes in figure.axes]
    assert len(pictures) == 2
    assert min(box.y0 for box in pictures) > foot.y1
    table = next(box for text, box in zip(figure.texts, boxes) if "standard deviation" in text.get_text())
    assert max(box.y1 for box in pictures) < table.y0


ELBO = {"name": "evidence lower bound", "unit": "nats", "better": "higher"}
PERPLEXITY = {"name": "held-out perplexity", "unit": "", "better": "lower"}
PERCENT = {"name": "error", "unit": "%", "better": "lower"}


@pytest.mark.parametrize(
    ("metric", "level", "methods"),
    [
        (ELBO, -10233.5, ("gaussian-dropout", "none", "bernoulli")),
        (PERPLEXITY, 23.9, ("variational-dropout", "none", "gaussian-dropout-of-equal-strength")),
        (PERPLEXITY, 1e13, ("gaussian", "none")),
        (ELBO, 123456.7, (LONG, f"no-{LONG}")),
        (PERCENT, 3.0, ("W" * 30, "i" * 40, "gaussian")),
        (PERCENT, 3.0, ("gaussian", "none")),
    ],
)
def test_no_text_is_printed_over_another(metric, level, methods):
    draws = np.random.default_rng(0).normal(0, abs(level) * 1e-6, (len(methods), 8))
    values = {method: list(level * (1 + 2e-5 * n) + draws[n]) for n, method in enumerate(methods)}
    results = lab.analyze(values, metric=metric["name"], unit=metric["unit"], better=metric["better"]).results
    comparisons = compare(results)
    figure = pdf_summary.draw(results, comparisons, verdict(results, None, comparisons), "runs.db")
    _check_texts(figure)
    shown = {text.get_text() for text in figure.texts}
    assert all(labels.display_name(method, longest=34) in shown for method in methods if len(method) < 20)
    assert {cells.mean_sd(stats.summary(each), results.measure) for each in values.values()} <= shown


@pytest.mark.parametrize("methods", [("m0", "m1"), ("a", "b", "c"), ("gaussian", LONG)])
def test_headings_are_whole_however_short_the_names(methods):
    values = {method: [5.0 + n, 6.0 + n, 5.5 + n, 5.2] for n, method in enumerate(methods)}
    results = lab.analyze(values, metric="continuous ranked probability score", unit="kilowatt hours").results
    comparisons = compare(results)
    figure = pdf_summary.draw(results, comparisons, verdict(results, None, comparisons), "runs.db")
    assert {"Method", "runs"} <= {text.get_text() for text in figure.texts}


def test_names_in_the_table_stay_different():
    methods = [f"own:{'weight decay of all of its layers ' * 2}{power}" for power in ("1e-3", "1e-4")]
    results = lab.analyze({method: [5.0, 6.0, 5.5, 5.2 + n] for n, method in enumerate(methods)}).results
    comparisons = compare(results)
    figure = pdf_summary.draw(results, comparisons, verdict(results, None, comparisons), "runs.db")
    names = {
        text.get_text() for text in figure.texts if text.get_text().startswith("weight") and text.get_ha() == "left"
    }
    assert {name[-1] for name in names} >= {"3", "4"}


@pytest.mark.parametrize("inches", [-1.0, 0.0, 1.0])
def test_without_room_there_is_no_picture(tmp_path, inches):
    with Store(make_store(tmp_path / "runs.db", methods=ALL_METHODS, runs=3, epochs=1, images=50)) as store:
        (results,) = collect_all(store)
    sheet = pdf_summary._Sheet()
    pdf_summary._picture(sheet, results, compare(results), sheet.y + inches)
    assert sheet.figure.axes == []


def foot(results):
    comparisons = compare(results)
    figure = pdf_summary.draw(results, comparisons, verdict(results, None, comparisons), "runs.db")
    _check_texts(figure)
    texts = [text.get_text() for text in figure.texts]
    (begin,) = (place for place, text in enumerate(texts) if "To do it again:" in text)
    return [text for text in texts[begin + 1 :] if text]


def test_a_long_command_is_whole_or_said_not_to_be(tmp_path):
    def results_of(names):
        path = tmp_path / f"{len(names)}.db"
        with Store(make_store(path, methods=names, reference=names[0], runs=2, epochs=1, images=50)) as store:
            (results,) = collect_all(store)
        results.protocol.description["methods"] = []  # so that the command has to name them
        return results

    some = [f"gaussian:sigma=0.{n}" for n in range(10, 18)]
    lines = foot(results_of(some))
    assert f"--methods {','.join(some)} --runs" in "".join(line if line.endswith(",") else f"{line} " for line in lines)
    assert lines[-1] == "contdrop report --store runs.db"
    lines = foot(results_of([f"gaussian:sigma=0.{n}" for n in range(10, 60)]))
    assert len(lines) == 4
    assert lines[-1] == "… (the whole command is on the page)"
    lines = foot(results_of([LONG * 3, "gaussian"]))  # a name that no line has room for
    assert lines[-1] == "… (the whole command is on the page)"


@pytest.mark.parametrize(("number", "said"), [(13, " 1 more method is on the page."), (14, " 2 more methods are on")])
def test_methods_that_are_left_out_are_counted(tmp_path, number, said):
    names = [f"gaussian:sigma=0.{n}" for n in range(10, 10 + number)]
    path = make_store(tmp_path / "runs.db", methods=names, reference=names[0], runs=2, epochs=1, images=50)
    assert any(said in text.get_text() for text in drawn(path)[0].texts)


def test_the_page_leads_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])
    monkeypatch.setattr(page.figures, "samples", lambda *_: None)
    store = make_store(tmp_path / "runs.db", runs=6, epochs=1, images=50)
    written = page.write(store, tmp_path / "out")
    assert written.summaries == (tmp_path / "out" / "summary.pdf",)
    assert 'href="summary.pdf"' in written.index.read_text()
    assert page.write(store, tmp_path / "live", refresh=5).summaries == ()
    make_store(store, methods=("gaussian", "none"), runs=6, epochs=1, images=50, experiment="other")
    written = page.write(store, tmp_path / "two")
    assert [path.name for path in written.summaries] == ["digits-mlp-quick-summary.pdf", "other-quick-summary.pdf"]
    assert all(f'href="{path.name}"' in written.index.read_text() for path in written.summaries)
