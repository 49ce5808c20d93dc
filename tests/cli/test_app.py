"""The command line: what it prints, what it refuses, and that the benchmark measures what it says."""

import contextlib
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch

import contdrop
import scripts

pytest.importorskip("typer")

from contdrop.cli import app
from contdrop.errors import UserError
from contdrop.lab.store.writer import Store
from contdrop_bench import contestants, plot, sections, sheets
from contdrop_bench.command import SECTIONS, parse_sections, parse_sizes
from contdrop_bench.goals import goals
from contdrop_bench.results import BOTH, FORWARD, Report, Timing
from contdrop_bench.timing import interleave, repetitions


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A run of all sections, made as small as it can be: what it printed, and the plot."""
    picture = tmp_path_factory.mktemp("bench") / "speed.svg"
    options = "bench --quick --json --sizes 1000,100x100 --rounds 1 --steps 2 --plot"
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["contdrop", *options.split(), str(picture)])
        patch.setattr(sections, "LARGE", (16, 32))
        patch.setattr(sections, "DROPCONNECT", (4, 8, 8))
        code = app.run()
    assert code == 0, err.getvalue()
    return out.getvalue(), err.getvalue(), picture


HELP = {
    "": ("bench", "contdrop COMMAND --help"),
    "bench": ("contdrop bench --quick", *SECTIONS, "--json", "--plot", "--instructions", "nanoseconds per element"),
    "report": ("contdrop report\n", "--watch", "--margin", "--json", "--out"),
    "serve": ("contdrop serve\n", "--port", "127.0.0.1"),
    "theory": ("contdrop theory --details", "--draws", "--json", "--plot", "standard errors", "docs/theory.md"),
    "data": ("list", "get", "check", "CONTDROP_DATA", "contdrop data get mnist"),
    "data list": ("contdrop data list", "--data-dir"),
    "data get": ("contdrop data get", "--data-dir"),
    "data check": ("contdrop data check", "--data-dir"),
}


@pytest.mark.parametrize("command", HELP)
def test_help_teaches(cli, command):
    code, out, err = cli(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert all(words in out for words in HELP[command])
    if command in ("", "data", "weights"):  # groups: without a command they print it, too
        assert cli(*command.split()) == (0, out, "")


def test_version(cli):
    assert cli("--version") == (0, f"contdrop {contdrop.__version__}\n", "")


# A command a line. The files notes.txt (no store), empty.db, study.py (no study) and folder are there.
REFUSED = """
bench --sizes abc
bench --sizes 1000,
bench --sizes -5
bench --sizes 0
bench --sections step,speed
bench --rounds 0
bench --steps -1
bench --threads 0
bench --threads 3000000000
bench --plot speed.pdf
bench --plot nowhere/speed.png
bench --plot speed.png --sections step
theory --draws 10
theory --seed -1
theory --plot theory.pdf
theory --plot nowhere/theory.png
run digits-mpl
run digits-mlp --methods gausian
run digits-mlp --methods gaussian:sigma=-1
run digits-mlp --methods ,
run digits-mlp --runs 0
run digits-mlp --epochs -3
run digits-mlp --workers 0
run digits-mlp --threads 0
run digits-mlp --preset huge
run digits-mlp --executor slurm
run digits-mlp --seed -1
run digits-mlp --store no/such/runs.db
run mnist-mlp-relu --preset quick
status
status --store folder
export
export --format xml
report --store none.db --out out
report --store folder --out out
report --store notes.txt --out out
report --store empty.db --out out --margin 0
report --store empty.db --out out --margin nan
report --store empty.db --watch --json
report --store empty.db --out notes.txt
serve --store none.db --port 0
serve --store folder --port 0
serve --store notes.txt --port 0
serve --store empty.db --port 0 --margin 0
serve --store empty.db --port 0 --margin nan
serve --store empty.db --port 65536
compare study.py --kind text
compare study.py --init new.py
data get mnits
data check digits mnits
data get mnist --data-dir notes.txt
weights check nin
weights check nin-cifar10
weights check nin-cifar10 --weights nowhere
"""


def test_a_usage_error_is_one_line_and_nothing_is_made(cli, snapshot, tmp_path):
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be read as one" * 20)
    (tmp_path / "study.py").write_text("study = None\n")
    (tmp_path / "folder").mkdir()
    Store(tmp_path / "empty.db", create=True).close()
    refused = []
    for command in REFUSED.strip().splitlines():
        code, out, err = cli(*command.split())
        assert (code, out, err.count("\n")) == (2, "", 1), command
        assert not {"runs.db", "none.db", "out", "new.py", "speed.png", "theory.png"} & {*os.listdir()}, command
        refused.append(f"{command}\n    {err}".replace(str(tmp_path), "DIR"))
    snapshot("usage_errors", "".join(refused))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            f"bench --sizes 1000,{'9' * 5000}",
            f"expected numbers of at most 18 digits; got '{'9' * 39}…'",
            id="long number",
        ),
        pytest.param(f"bench --sizes {'9x' * 3000}9", "… needs more than 1000000000000 GB of memory", id="many axes"),
        ("bench --sizes 1e15", "--sizes: 1e15 needs about 32000000 GB of memory"),
        ("bench --instructions sse", "--instructions: "),
        ("bench --rounds many", "'--rounds'"),
        ("bench --frobnicate", "--frobnicate"),
        ("bench more", "more"),
        ("speed", "'speed'"),
        ("theory --draws many", "Invalid value for '--draws'"),
        ("run digits-mlp --runs many", "--runs"),
        ("run", "EXPERIMENT"),
        ("data get", "Missing argument 'NAME'"),
        ("data fetch mnist", "fetch"),
    ],
)
def test_other_usage_errors_are_one_line_too(cli, arguments, message):
    code, out, err = cli(*arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("contdrop: ")
    assert message in err


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ('sys.modules["typer"] = None', 'the command line needs typer, which is not installed; run: pip install "cont'),
        ('sys.argv = ["", "bench"]; os.environ["CONTDROP_BACKEND"] = "abacus"', "got 'abacus' (set by CONTDROP_BACK"),
    ],
    ids=["no typer", "no such back end"],
)
def test_what_is_missing_gets_one_line_and_code_2(before, message):
    code = f"import os, sys; {before}; from contdrop.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(contestants.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert result.stderr.startswith("contdrop: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_json_is_complete(quick):
    found = json.loads(quick[0])
    assert set(found) == {"environment", "settings", "left_out", *SECTIONS, "goals"}
    assert {"contdrop", "backend", "torch", "cpu", "threads"} <= set(found["environment"])
    names = {*contestants.LAWS, contestants.NN_DROPOUT, contestants.TORCH_GAUSSIAN, contestants.PRODUCT}
    measured = {(row["contestant"], tuple(row["shape"]), row["passes"]) for row in found["elementwise"]}
    assert measured >= {(n, s, p) for n in names for s in ((1000,), (100, 100)) for p in (FORWARD, BOTH)}
    assert {row["dtype"] for row in found["types"]} == {"float32", "bfloat16", "float16", "float64"}
    assert [len(row["seconds"]) for row in found["step"]] == [2] * 7
    assert all(row["nanoseconds_per_element"] > 0 for name in ("elementwise", "types") for row in found[name])
    assert len(found["dropconnect"]) == 4
    assert len(found["goals"]) == 11
    assert "torch.compile" in found["left_out"]
    assert found["settings"]["command"].startswith("contdrop bench --quick --json")


def test_contdrop_saves_a_seed_and_others_a_mask(quick):
    found = {row["contestant"]: row["bytes"] for row in json.loads(quick[0])["memory"]}
    assert all(found[name] == 8 for name in contestants.LAWS)
    assert found[contestants.TORCH_GAUSSIAN] == 16 * 32 * 4


def test_progress_is_plain_lines_without_a_terminal(quick):
    assert "[1/6] elementwise 1000: " in quick[1]
    assert "\x1b" not in quick[1]


def test_plot_names_everyone(quick):
    picture = quick[2].read_text()
    assert picture.startswith("<?xml")
    assert all(f"<!-- {name} -->" in picture for name in contestants.LAWS)


def test_tables_show_what_json_holds(quick):
    report = Report.from_dict(json.loads(quick[0]))
    titles = [sheet.title for sheet in sheets.sheets(report)]
    assert len(titles) == len(report.settings["sizes"]) + 5
    for sheet in sheets.sheets(report):
        assert all(len(row) == len(sheet.headings) for row in sheet.rows)
    assert Report.from_dict(report.as_dict()) == report


def test_documentation_is_written_between_its_markers(quick, tmp_path, monkeypatch):
    results, page = tmp_path / "speed.json", tmp_path / "docs" / "speed.md"
    results.write_text(quick[0])
    write_docs = scripts.load("benchmarks/write_docs.py")
    monkeypatch.setattr(sys, "argv", ["write_docs.py", str(results), "--page", str(page)])
    for _ in range(2):
        write_docs.main()
        text = page.read_text()
        assert text.count("### Types") == 1
        page.write_text(text + "More.\n")
    assert text.endswith("More.\n")
    assert "\ncontdrop bench --quick --json" in text
    assert (page.parent / "images" / "speed.png").exists()
    assert all(line.count("|") >= 3 for line in text.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("instructions", ["portable", None])
def test_tables_on_the_terminal(cli, instructions):
    if instructions and contdrop.backend().name != "native":
        pytest.skip("only the native back end has instruction sets")
    force = ["--instructions", instructions] if instructions else []
    before = contdrop.backend(), torch.get_num_threads()
    code, out, err = cli(
        "bench", "--quick", "--sections=elementwise", "--sizes=50", "--rounds=1", "--threads=1", *force
    )
    assert code == 0, err
    assert all(text in out for text in ("x faster than", "not measured", "1 thread;"))
    assert ("native (portable)" in out) == bool(instructions)
    assert (contdrop.backend(), torch.get_num_threads()) == before


def test_sizes_and_sections():
    assert parse_sizes("1000, 1e3,128x800,2e1x3") == ((1000,), (128, 800), (20, 3))
    assert parse_sections("memory, elementwise,memory") == ("elementwise", "memory")
    with pytest.raises(UserError):
        parse_sizes("1.5")


def test_rounds_are_interleaved():
    calls = []
    times = interleave({name: lambda name=name: calls.append(name) for name in "abc"}, 4, shortest=0.0)
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 4, "b": 4, "c": 4}
    rounds = [
        "".join(calls[i : i + 3]) for i in range(6, 18, 3)
    ]  # before, two calls of each to find out how long it takes
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 1


def test_a_measurement_is_long_enough_and_counts_one_call():
    assert repetitions(lambda: time.sleep(0.02), 0.0001) == 1
    assert repetitions(lambda: None, 0.01) > 100
    (seconds,) = interleave({"nap": lambda: time.sleep(0.001)}, 1, shortest=0.01)["nap"]
    assert seconds >= 0.001
    start = time.perf_counter()
    seconds = interleave({"nothing": lambda: None}, 10, shortest=0.01)["nothing"]
    assert time.perf_counter() - start > 0.05
    assert min(seconds) < 0.0001


def test_saved_bytes_finds_what_hooks_cannot_see():
    class Hoarder(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.hidden = {"mask": [torch.ones(100)]}
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(5, requires_grad=True)
    assert sections.saved_bytes(Hoarder.apply, x) == 400
    assert sections.saved_bytes(lambda x: x * torch.ones(5), x) == 20
    assert sections.saved_bytes(lambda x: x + 1, x) == 0


def _report(**seconds):
    rows = [
        Timing(name, sections.LARGE, "float32", BOTH, (seconds.get(name.partition(" ")[0], 1.0), 9.0))
        for name in (*contestants.LAWS, contestants.NN_DROPOUT, contestants.TORCH_GAUSSIAN, contestants.PRODUCT)
    ]
    return Report({}, {}, {}, elementwise=rows)


def test_goals_pass_fail_or_are_not_measured():
    fast = {goal.what: goal for goal in goals(_report(contdrop=0.1, torch=0.61, **{"nn.Dropout(0.5)": 2.0}))}
    goal = fast["Gaussian(0.3), 1024x4096: faster than plain torch"]
    assert (goal.measured, goal.passed) == (pytest.approx(6.1), True)
    assert fast["Bernoulli(0.5), 1024x4096: faster than nn.Dropout"].passed is False  # 20 of 24
    assert fast["Uniform, 1024x4096: faster than plain torch"].passed is None
    floor = "slowest law, 1024x4096: times a multiplication"
    assert fast[floor].measured == pytest.approx(0.1)
    assert {goal.what: goal for goal in goals(_report(contdrop=2.6))}[floor].passed is False


def test_labels_are_spread_no_more_than_needed():
    assert plot.spread([0.0, 5.0], 1.0) == [0.0, 5.0]
    assert plot.spread([1.0, 1.0, 1.0], 0.5) == pytest.approx([0.5, 1.0, 1.5])
    places = plot.spread([0.0, 0.1, 0.9, 3.0, 3.1], 1.0)
    assert all(later - earlier >= 1 - 1e-9 for earlier, later in itertools.pairwise(places))
