"""The page: what it says about any store, that it holds everything, and that nothing in a store can act on it."""

import ast
import base64
import hashlib
import html.parser
import inspect
import itertools
import os
import re
import sys
import threading
import time

import pytest

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab import stats
from contdrop.lab.analysis.comparisons import compare
from contdrop.lab.analysis.verdict import analyze
from contdrop.lab.extensions import Extension
from contdrop.lab.report import page, protocol
from contdrop.lab.report.figures import drawing
from contdrop.lab.report.formats import MINUS
from contdrop.lab.report.page_files import FigurePool, InlineFigures
from contdrop.lab.store import imports, schema
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from stores import ALL_METHODS, METHODS, make_store

EVIL = "<script>alert(1)</script>"
QUOTED = "\"><img src=x onerror='alert(2)'>"


class Reader(html.parser.HTMLParser):
    """All elements of a page with their attributes, and its text outside of style and script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.inside, self._open = [], [], {"style": "", "script": ""}, None
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open = tag if tag in self.inside else None

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open:
            self.inside[self._open] += data
        else:
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def one_figure(monkeypatch):
    """Figures have tests of their own, and take time: one will do."""
    real = page.figures.figures
    monkeypatch.setattr(page.figures, "figures", lambda *arguments: real(*arguments)[:1])
    monkeypatch.setattr(page, "extension", lambda: Extension())
    monkeypatch.setattr(page.drawing, "FORMATS", ("svg",))


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A page on a store in which everything that can be named has a dangerous name."""
    directory = tmp_path_factory.mktemp("evil")
    store = make_store(
        directory / "<b>.db", methods=[EVIL, "gaussian", "bernoulli", QUOTED], runs=6, epochs=3, images=100,
        experiment=EVIL, title=f"{EVIL}</title></style>", paper=EVIL, paper_runs=30, paper_epochs=99, notes=[EVIL],
        preset=QUOTED, failed={(EVIL, 1)}, missing={("bernoulli", 2)},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.drawing, "FORMATS", ("svg",))
        written = page.write(store, directory / "out")
    return written, written.index.read_text(encoding="utf-8")


def test_names_are_text(evil):
    written, text = evil
    reader = Reader(text)
    assert len(reader.all("script")) == len(reader.all("style")) == 1
    assert reader.all("img") == []
    assert not any(name.startswith("on") or name == "style" for _, attributes in reader.elements for name in attributes)
    assert EVIL in reader.text
    assert QUOTED in reader.text
    assert written.verdicts[0].experiment == EVIL
    shown = " ".join(reader.text.split())
    assert f"contdrop run '{EVIL}' --preset " in shown
    assert all(re.fullmatch(r"[a-z0-9.-]+", path.name) for path in (*written.tables, *written.figures))
    assert all(EVIL not in path.read_text() for path in written.figures)


def test_nothing_is_loaded_from_elsewhere(evil):
    _, text = evil
    reader = Reader(text)
    for tag, attributes in reader.elements:
        for name, value in attributes.items():
            if name in ("href", "src", "srcset", "action", "data", "poster", "xlink:href"):
                assert re.match(r"#|tables/|figures/|data:image/png;base64,", value), f"<{tag} {name}={value}>"
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_policy_allows_this_style_and_this_script_alone(evil):
    _, text = evil
    reader = Reader(text)
    (policy,) = (m["content"] for m in reader.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(reader.inside[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    # Before anything that it governs.
    assert text.index("Content-Security-Policy") < text.index("<style")


def test_links_lead_somewhere(evil):
    written, text = evil
    reader = Reader(text)
    identifiers = [attributes["id"] for _, attributes in reader.elements if attributes.get("id")]
    assert len(identifiers) == len(set(identifiers))
    links = [a["href"] for tag, a in reader.elements if tag in ("a", "use") and a.get("href")]
    for link in links:
        assert link[1:] in identifiers if link.startswith("#") else (written.index.parent / link).is_file(), link
    for path in (*written.tables, *written.figures):
        assert f"{path.parent.name}/{path.name}" in links
    assert {path.suffix for path in written.tables} == {".md", ".tex", ".csv", ".json"}
    assert not [path for path in written.index.parent.rglob("*") if path.name.startswith(".")]


def test_a_page_of_analyses_compares_nothing_again(tmp_path, one_figure, monkeypatch):
    store = make_store(tmp_path / "s.db", runs=6, epochs=1, images=50)
    expected = page.write(store, tmp_path / "out").index.read_text()
    with Store(store) as opened:
        analyses = [analyze(results) for results in collect_all(opened)]
    monkeypatch.setattr(stats, "compare_paired", lambda *_, **__: pytest.fail("compared again"))
    assert page.write(store, tmp_path / "again", analyses=analyses).index.read_text() == expected


def test_no_level_of_headings_is_left_out(tmp_path, one_figure):
    store = make_store(tmp_path / "s.db", methods=ALL_METHODS, runs=6, epochs=1, images=50)
    levels = [int(level) for level in re.findall(r"<h(\d)", page.write(store, tmp_path / "out").index.read_text())]
    assert levels[0] == 1
    assert max(after - before for before, after in itertools.pairwise(levels)) == 1


def test_samples_are_of_data_that_the_lab_trained_on(tmp_path, monkeypatch):
    """Neither the name of an experiment nor of a file tells what is in it."""
    asked = []
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])
    monkeypatch.setattr(page, "extension", lambda: Extension(samples=lambda name, directory: asked.append(name)))

    def report(store):
        page.write(store, tmp_path / "out", refresh=1)
        return [asked.pop() for _ in list(asked)]

    assert report(make_store(tmp_path / "lab.db", runs=2, epochs=1, images=50)) == ["digits"]
    (tmp_path / "mnist.csv").write_text("method,run,value\na,0,1\na,1,2\nb,0,2\nb,1,3\n")
    imports.import_file(tmp_path / "mnist.csv", tmp_path / "imported.db")
    assert report(tmp_path / "imported.db") == []
    study = lab.Study(
        "mnist",
        run=lambda job: 1.0 + job.run,
        metric=lab.Metric("loss"),
        runs=2,
        methods=["none", "uniform"],
        reference="none",
    )
    lab.compare(study, store=tmp_path / "own.db", workers=0, progress=False)
    assert report(tmp_path / "own.db") == []


def test_protocol_is_told(tmp_path, one_figure, snapshot):
    store = make_store(
        tmp_path / "runs.db", methods=ALL_METHODS, selection=True, covariance=True, paper="Table I, ReLU",
        paper_runs=30, paper_epochs=3000, notes=["Chosen by us."], runs=6, images=100,
    )  # fmt: skip
    text = Reader(page.write(store, tmp_path / "out").index.read_text(encoding="utf-8")).text
    assert "Not a replication of the paper's Table I, ReLU" in text
    assert text.index("Gaussian is ") < text.index("The evidence")
    told = text[text.index("Protocol Size") :].partition("Terms")[0].replace(". ", ".\n")
    snapshot("protocol", re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "(a time)", told))


def test_comparisons_are_made_once_for_a_report(tmp_path, one_figure, monkeypatch):
    store = make_store(tmp_path / "runs.db", methods=METHODS, runs=6, epochs=1, images=50)
    made, real = [], stats.compare_paired
    monkeypatch.setattr(stats, "compare_paired", lambda *a, **k: made.append(k["names"]) or real(*a, **k))
    page.write(store, tmp_path / "out")
    assert sorted(made) == sorted(("gaussian", method) for method in METHODS if method != "gaussian")


def test_one_sign_on_the_page(tmp_path, one_figure):
    """Negative means that the reference errs less: in the sentences, in the picture above and in the table."""
    store = make_store(tmp_path / "runs.db", methods=["gaussian", "none"], runs=8, images=2000, noise=0.05)
    text = page.write(store, tmp_path / "out", margin=0.2).index.read_text(encoding="utf-8")
    with Store(store) as opened:
        (found,) = compare(collect_all(opened)[0]).values()
    assert found.interval[1] < 0
    words = Reader(text).text
    shown = f"{found.difference:.2f}".replace("-", MINUS)
    low, high = (f"{end:.2f}".replace("-", MINUS) for end in found.interval)
    assert f"{shown} [{low}, {high}]" in words  # the picture
    assert f"interval of the difference {low} to {high}" in words
    low, high = (f"{end:.3f}".replace("-", MINUS) for end in found.interval)
    assert f"[{low}, {high}]" in words.split("against each method", 1)[1]  # the table
    assert "Error of Gaussian minus that of each method" in words
    assert "The margin of ±0.20 points was chosen after the fact" in words
    assert "small-sample widened BCa" in words
    assert "Swipe the table to see all its columns" in words


def _of(tmp_path, name="runs", seed=0, **description):
    """Results of a study whose description says this, too."""
    path = make_store(tmp_path / f"{name}.db", methods=["gaussian", "none"], runs=2, epochs=3, images=50, seed=seed)
    with Store(path) as store:
        (results,) = collect_all(store)
    results.protocol.description.update(description)
    return results


def test_commands_and_protocol_name_what_differs_from_the_study(tmp_path):
    others = _of(tmp_path, "others", seed=3, methods=["gaussian", "none", "bernoulli"])
    from_file = _of(tmp_path, "file", file="my study.py", code={"3.11": {}})
    asked = _of(tmp_path, "asked")
    asked.protocol.configuration["run"] = "around_ask"
    calls = [protocol.commands(each, "my runs.db").split("\n")[0] for each in (others, from_file, asked)]
    assert calls[:2] == [
        "contdrop run digits-mlp --preset quick --methods gaussian,none --runs 2 --epochs 3 --seed 3 "
        "--store 'my runs.db'",
        "contdrop compare 'my study.py' --preset quick --runs 2 --epochs 3 --seed 0 --store 'my runs.db'",
    ]
    assert protocol.commands(others, "my runs.db").endswith("\ncontdrop report --store 'my runs.db'")
    assert calls[2].startswith("for job in lab.ask(study, runs=2, store='my runs.db'): ...")
    ast.parse(calls[2])
    assert len(dict(protocol.protocol(from_file))["Training"]) == 1
    from_file.protocol.configuration["patience"] = 3
    found = dict(protocol.protocol(from_file))["Training"][1]
    assert found == "a run stops early after 3 evaluations without a better validation error"


def test_a_study_from_python_is_done_again_there(tmp_path):
    """The command line knows neither its name nor where it is."""
    results = _of(tmp_path, code={"3.11": {}}, methods=["gaussian", "none", "bernoulli"])
    results.protocol.configuration["seed"] = 7
    call, report = protocol.commands(results, "it's.db").split("\n")
    assert report == """contdrop report --store 'it'"'"'s.db'"""
    assert call.endswith("  # in Python; study is the one named 'digits-mlp'")
    given = {each.arg: ast.literal_eval(each.value) for each in ast.parse(call).body[0].value.keywords}
    assert call.startswith("lab.compare(study, ")
    assert given == {
        "preset": "quick", "methods": ["gaussian", "none"], "runs": 2, "epochs": 3, "seed": 7, "store": "it's.db",
    }  # fmt: skip
    assert given.keys() <= inspect.signature(lab.compare).parameters.keys()


def _told(written):
    """The words of a page without times and the terms, a sentence to a line, and what its files are."""
    text = Reader(written.index.read_text(encoding="utf-8")).text.partition(" Terms In run i ")[0]
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "(a time)", text)
    names = [path.name for path in (*written.tables, *written.figures)]
    assert len(set(names)) == len(names)
    verdicts = [verdict.experiment for verdict in written.verdicts]
    return "\n".join([f"{verdicts}, {written.failed} failed", *names, text.replace(". ", ".\n"), ""])


def test_pages_of_every_state(tmp_path, one_figure, snapshot):
    everything = {(method, run) for method in METHODS for run in range(2)}
    Store(tmp_path / "empty.db", create=True).close()
    make_store(tmp_path / "failed.db", runs=2, failed=everything)
    make_store(tmp_path / "planned.db", runs=2, missing=everything)
    make_store(tmp_path / "some.db", runs=6, epochs=1, images=50, failed={("none", 1)}, missing={("bernoulli", 2)})
    for epochs in (2, 4):
        make_store(tmp_path / "sizes.db", runs=3, epochs=epochs, images=50)
    states = ("empty", "failed", "planned", "some", "sizes")
    told = {name: _told(page.write(tmp_path / f"{name}.db", tmp_path / name)) for name in states}
    snapshot("pages", "\n".join(f"## {name}\n{text}" for name, text in told.items()))


def test_runs_that_are_not_paired_leave_everything_as_it_was(tmp_path, one_figure):
    path = make_store(tmp_path / "runs.db", runs=2, epochs=1, images=50)
    out = tmp_path / "out"
    page.write(path, out)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with Store(path) as store, store.amending(store.protocols()[0].key) as db:
        schema.update(db, "jobs", {"fingerprints": {"split": "other"}}, "method = 'none' AND run = 1")
    with pytest.raises(UserError, match=r"digits-mlp: in run 1 .* not paired"):
        page.write(path, out)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    with pytest.raises(UserError, match="not paired"):
        page.write(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_somebody_elses_page_is_left_alone(tmp_path):
    Store(tmp_path / "runs.db", create=True).close()
    (tmp_path / "index.html").write_text("<h1>Mine</h1>")
    with pytest.raises(UserError, match=r"index.html is not a report of contdrop, and stays as it is"):
        page.write(tmp_path / "runs.db", tmp_path)
    assert (tmp_path / "index.html").read_text() == "<h1>Mine</h1>"
    with pytest.raises(UserError, match=r"--out: expected a directory; .* is a file"):
        page.write(tmp_path / "runs.db", tmp_path / "index.html")
    (tmp_path / "index.html").unlink()
    for _ in range(2):  # one of ours is replaced
        assert page.write(tmp_path / "runs.db", tmp_path).index.exists()


def test_only_a_watched_page_reloads(tmp_path):
    Store(tmp_path / "runs.db", create=True).close()
    still = page.write(tmp_path / "runs.db", tmp_path / "out").index.read_text()
    live = page.write(tmp_path / "runs.db", tmp_path / "out", refresh=7).index.read_text()
    assert 'http-equiv="refresh"' not in still
    assert "data-refresh" not in still
    assert '<noscript><meta http-equiv="refresh" content="7"></noscript>' in live
    assert '<body data-refresh="7">' in live


# ---- embedding

SVG = """<?xml version="1.0"?>
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" height="9pt" viewBox="0 0 9 9" xmlns="http://www.w3.org/2000/svg">
<metadata>x</metadata><defs><style type="text/css">*{stroke: red}</style><path id="m" d="M0 0"/></defs>
<g clip-path="url(#c)"><use xlink:href="#m" style="fill: #0072b2; stroke: #ffffff"/></g>
<text style="font: 9px 'DejaVu Sans'">&lt;script&gt; style="}" id="m"</text>
<script>alert(1)</script><use xlink:href="https://example.org/x"/><g onclick="alert(2)" style="x: url(evil)}"/>
<image xlink:href="data:image/png;base64,AAAA"/>
</svg>"""


def test_embedding():
    embedding = InlineFigures()
    found = embedding.embed(SVG, "f1", 'a "picture"')
    assert found.startswith('<svg viewBox="0 0 9 9" role="img" aria-label="a &quot;picture&quot;" class="drawing">')
    assert '<path id="f1-m" d="M0 0">' in found
    assert '<g clip-path="url(#f1-c)"><use href="#f1-m" class="d0">' in found
    assert ">&lt;script&gt; style=&quot;}&quot; id=&quot;m&quot;</text>" in found
    assert '<image href="data:image/png;base64,AAAA">' in found
    for gone in ("<script", "onclick", "example.org", "<style", "metadata", "url(evil)"):
        assert gone not in found
    assert embedding.colours == {"0072b2", "ffffff"}
    assert embedding.rules() == (
        ".d0 { fill: var(--c-0072b2, #0072b2); stroke: var(--c-ffffff, #ffffff) }\n.d1 { font: 9px 'DejaVu Sans' }"
    )
    assert 'class="d0"' in embedding.embed(SVG, "f2", "")


@pytest.mark.slow
def test_a_full_report_takes_less_than_15_seconds(tmp_path):
    store = make_store(tmp_path / "runs.db", methods=METHODS, runs=30, epochs=100, images=10_000, covariance=True)
    began = time.process_time()
    page.write(store, tmp_path / "out")
    assert time.process_time() - began < 15


@pytest.fixture
def no_other_threads(monkeypatch):
    """What runs the tests has some, that only wait."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def test_figures_of_several_experiments_are_drawn_by_other_processes(
    tmp_path, monkeypatch, one_figure, no_other_threads
):
    for number in range(3):
        store = make_store(tmp_path / "runs.db", methods=("none", "gaussian"), runs=3, experiment=f"number-{number}")
    pages, drawers = [], []
    for alone in (True, False):
        directory = tmp_path / str(alone)

        def save(figure, *arguments, directory=directory):
            (directory / f"drawn-{os.getpid()}").touch()
            return drawing.save(figure, *arguments)

        monkeypatch.setattr(page.figures, "save", save)
        monkeypatch.setattr(page, "FigurePool", lambda alone, really=alone: FigurePool(alone=really))
        pages.append(page.write(store, directory).index.read_text())
        drawers.append(len(list(directory.glob("drawn-*"))))
    assert pages[0] == pages[1]
    assert pages[0].count('class="drawing"') >= 3
    assert drawers[0] == 1
    assert drawers[1] > 1 or sys.platform != "linux"


def test_what_goes_wrong_in_another_process_is_told_here(tmp_path, no_other_threads):
    painters = FigurePool(alone=False)
    painters.do(lambda: None)
    painters.do((tmp_path / "nowhere" / "figure.svg").touch)
    with pytest.raises(FileNotFoundError):
        painters.finish()


def test_of_many_experiments_pdf_is_written_only_if_asked_for(tmp_path, monkeypatch, one_figure):
    monkeypatch.setattr(page.drawing, "FORMATS", ("svg", "pdf"))
    monkeypatch.setattr(page, "_FAST_FORMATS", ("svg",))
    monkeypatch.setattr(page, "_MANY", 2)
    endings = []
    for experiments, pdf in ((1, None), (2, None), (2, True)):
        store = make_store(
            tmp_path / "runs.db", methods=("none", "gaussian"), runs=2, experiment=f"n{experiments}-{pdf}"
        )
        endings.append({path.suffix for path in page.write(store, tmp_path / "out", pdf=pdf).figures})
    assert endings == [{".svg", ".pdf"}, {".svg"}, {".svg", ".pdf"}]
