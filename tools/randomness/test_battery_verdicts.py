"""The runner of the random-number batteries: what it takes for clean, and that it resumes."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import scripts

FOLDER = pathlib.Path(__file__).parent
RESULTS = FOLDER / "results"

# As PractRand 0.94 prints it.
HEAD = """RNG_test using PractRand version 0.94
RNG = RNG_stdin32, seed = unknown
test set = core, folding = standard (32 bit)

rng=RNG_stdin32, seed=unknown
length= 1 megabyte (2^20 bytes), time= 7.9 seconds
  no anomalies in 74 test result(s)

rng=RNG_stdin32, seed=unknown
length= 2 megabytes (2^21 bytes), time= 9.6 seconds
  Test Name                         Raw       Processed     Evaluation
  BCFN(2+0,13-6,T)                  R= +10.3  p =  5.7e-4   unusual          
  ...and 86 test result(s) without anomalies

"""  # noqa: W291
FAILURE = """rng=RNG_stdin32, seed=unknown
length= 4 megabytes (2^22 bytes), time= 11.2 seconds
  Test Name                         Raw       Processed     Evaluation
  [Low8/32]DC6-9x1Bytes-1           R= +26.7  p =  7.9e-15    FAIL !         
  BRank(12):256(1)-a-very-long-name-R= +2650  p~=  4.4e-799   FAIL !!!!!!    
  ...and 95 test result(s) without anomalies

"""  # noqa: W291


verdicts: Any = scripts.load("tools/randomness/verdicts.py")


def test_unusual_is_clean_and_failure_is_not() -> None:
    lengths = verdicts.parse_practrand(HEAD)
    assert [(r["log2_bytes"], r["results"]) for r in lengths] == [(20, 74), (21, 87)]
    assert lengths[1]["anomalies"] == [{"test": "BCFN(2+0,13-6,T)", "p": "5.7e-4", "evaluation": "unusual"}]
    assert verdicts.worse_than_unusual(lengths) == []
    bad = verdicts.worse_than_unusual(verdicts.parse_practrand(HEAD + FAILURE))
    assert [(b["test"], b["evaluation"]) for b in bad] == [
        ("[Low8/32]DC6-9x1Bytes-1", "FAIL !"),
        ("BRank(12):256(1)-a-very-long-name-", "FAIL !!!!!!"),
    ]


def test_the_worst_is_shown() -> None:
    """The worst, not the last; and how far the run went."""
    lengths = verdicts.parse_practrand(HEAD.replace("unusual", "suspicious") + FAILURE)
    lengths[-1]["anomalies"].reverse()
    first = {"battery": "practrand", "round": 1, "finished": True, "lengths": lengths}
    second = {"battery": "practrand", "round": 2, "finished": False, "lengths": lengths[:1]}
    expected = "FAIL !!!!!! (BRank(12):256(1)-a-very-long-name-) to 4 MB; second seed: clean to 1 MB, not finished"
    assert verdicts.verdict([second, first], "practrand") == expected


def test_a_report_cut_off_in_the_middle_does_not_count() -> None:
    """A length counts when all its results are there: the rest of the report may be the failure."""
    cut = (HEAD + FAILURE).rindex("  [Low8")
    assert [r["log2_bytes"] for r in verdicts.parse_practrand((HEAD + FAILURE)[:cut])] == [20, 21]


@pytest.mark.parametrize(
    "evaluation", ["mildly suspicious", "suspicious", "very suspicious", "VERY SUSPICIOUS", "FAIL"]
)
def test_everything_worse_than_unusual_counts(evaluation: str) -> None:
    lengths = verdicts.parse_practrand(HEAD.replace("5.7e-4   unusual", f"5.7e-4   {evaluation}"))
    assert [bad["evaluation"] for bad in verdicts.worse_than_unusual(lengths)] == [evaluation]


def test_a_line_that_is_not_understood_is_an_error() -> None:
    """Never silently clean."""
    with pytest.raises(ValueError, match=r"expected a result of PractRand, got '  BCFN.*odd"):
        verdicts.parse_practrand(HEAD.replace("unusual", "odd"))


def test_a_report_of_nothing_but_failures_counts() -> None:
    report = FAILURE.replace("  ...and 95 test result(s) without anomalies\n", "").replace("R= +2650 ", "R>+99999 ")
    assert [r["results"] for r in verdicts.parse_practrand(report)] == [2]


@pytest.mark.parametrize(("p", "outside"), [(0.0, True), (9e-7, True), (1e-6, False), (0.5, False), (1 - 1e-8, True)])
def test_limits_of_a_p_value(p: float, outside: bool) -> None:
    assert verdicts.outside(p) == outside


def _record(number: int, test: int, *p: float) -> dict[str, Any]:
    statistics = [[f"Walk {letter}", value] for letter, value in zip("HM", p)]
    return {"battery": "crush", "round": number, "test": test, "statistics": statistics}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([], "second seed to come for 2 Walk M (2 of 96 tests, 3 p-values)"),
        ([_record(2, 2, 0.5, 0.5)], "clean (2 of 96 tests, 3 p-values, 1 run again with a second seed)"),
        # Another statistic of the same test is another coincidence.
        ([_record(2, 2, 1e-9, 0.5)], "clean (2 of 96 tests, 3 p-values, 1 run again with a second seed)"),
        ([_record(2, 2, 0.5, 0.0)], "FAILS 2 Walk M (2 of 96 tests, 3 p-values, 1 run again with a second seed)"),
    ],
)
def test_a_p_value_fails_if_it_repeats(second: list[dict[str, Any]], expected: str) -> None:
    first = [_record(1, 1, 0.3), _record(1, 2, 0.5, 1e-8)]
    assert verdicts.verdict(first + second, "crush") == expected


STUB = """#!{python}
import json, pathlib, sys
with open({calls!r}, "a") as calls:
    calls.write(" ".join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
{body}
"""


@pytest.fixture
def programs(tmp_path: pathlib.Path) -> pathlib.Path:
    """Programs that stand in for the batteries: test 3 of SmallCrush is suspicious, and PractRand ends at 2 MB."""
    bodies = {
        "streams": "sys.stdout.write('x')",
        "RNG_test": f"sys.stdin.read(); print({HEAD!r}, end='')",
        "battery": "print('chatter'); test = sys.argv[sys.argv.index('--test') + 1]; "
        "print(json.dumps({'statistics': [['Some', 0.0 if test == '3' else 0.4]]}))",
    }
    folder = tmp_path / "build"
    folder.mkdir()
    for name, body in bodies.items():
        program = folder / name
        program.write_text(STUB.format(python=sys.executable, calls=str(tmp_path / "calls"), body=body))
        program.chmod(0o755)
    return folder


def _run(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(FOLDER / "run.py"), command, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True)


def _calls(folder: pathlib.Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_runs_once_repeats_the_suspicious_and_resumes(programs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results"
    options = ["--build", programs, "--results", results, "--streams", "calls", "--batteries", "smallcrush"]
    assert _run("run", *options).returncode == 0
    calls = _calls(tmp_path)
    tests = [line.split("--test ")[1].split()[0] for line in calls]
    assert sorted(tests, key=int) == ["1", "2", "3", "3", "4", "5", "6", "7", "8", "9", "10"]
    seeds = [line.split("--seed ")[1].split()[0] for line in calls]
    assert len(set(seeds)) == 11
    (results / "independent.calls.smallcrush.1.007.json").unlink()
    assert _run("run", *options).returncode == 0
    assert [line.split("--test ")[1].split()[0] for line in _calls(tmp_path)[11:]] == ["7"]
    shown = _run("summary", "--results", results, "--streams", "calls", "--kept", tmp_path / "all.json").stdout
    assert "| calls | not begun | FAILS 3 Some (10 of 10 tests, 10 p-values, 1 run again" in shown
    assert len(json.loads((tmp_path / "all.json").read_text())) == 11


def test_another_machine_takes_over_what_is_finished(programs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    kept, page = tmp_path / "kept.json", tmp_path / "page.md"
    page.write_text("above\n<!-- results -->\nold\n<!-- /results -->\nbelow\n")
    options = ["--build", programs, "--streams", "calls", "--kept", kept]
    small = [*options, "--batteries", "smallcrush", "--results"]
    assert _run("run", *small, tmp_path / "first").returncode == 0
    assert _run("run", *options, "--batteries", "practrand", "--results", tmp_path / "first").returncode == 1  # at 2 MB
    shown = ["summary", "--streams", "calls", "--kept", kept, "--page", page, "--results"]
    assert _run(*shown, tmp_path / "first").returncode == 0
    before, calls, table = kept.read_bytes(), len(_calls(tmp_path)), page.read_text()
    assert "above\n<!-- results -->\n| stream |" in table
    assert "| calls | clean to 2 MB, not finished | FAILS 3 Some" in table
    assert table.endswith("|\n<!-- /results -->\nbelow\n")
    assert _run("run", *small, tmp_path / "second").returncode == 0
    assert len(_calls(tmp_path)) == calls
    assert _run(*shown, tmp_path / "second").returncode == 0
    assert (kept.read_bytes(), page.read_text()) == (before, table)  # the unfinished 2 MB are not lost either
    assert (
        _run(
            "run", *options, "--batteries", "practrand", "--log2-bytes", "21", "--results", tmp_path / "second"
        ).returncode
        == 0
    )
    assert _run(*shown, tmp_path / "second").returncode == 0
    assert "| calls | clean to 2 MB | FAILS" in page.read_text()


def test_practrand_that_ends_early_is_an_error_not_a_result(programs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results"
    options = ["--build", programs, "--results", results, "--streams", "seeds", "--batteries", "practrand"]
    failed = _run("run", *options)
    assert failed.returncode == 1
    assert "independent.seeds.practrand.1: RNG_test ended early with 0, see " in failed.stderr
    assert not list(results.glob("*.json"))
    assert "| seeds | clean to 2 MB, not finished |" in _run("summary", "--results", results).stdout
    assert _run("run", *options, "--log2-bytes", "21").returncode == 0
    assert "| seeds | clean to 2 MB |" in _run("summary", "--results", results).stdout


def test_usage_errors(programs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    missing = _run("run", "--build", tmp_path, "--results", tmp_path / "results")
    expected = "put PractRand's RNG_test there, and build the others by the build command"
    assert missing.stderr == f"run.py: expected RNG_test in {tmp_path}; {expected}\n"
    source = _run("build", "--testu01", tmp_path, "--build", tmp_path)
    expected = f"expected TestU01 installed in {tmp_path}, with lib/libtestu01.a; it is not there"
    assert source.stderr == f"run.py: {expected}\n"


@pytest.mark.parametrize("scheme", ["independent", "borrowed"])
def test_the_page_shows_the_results(scheme: str) -> None:
    """The table on the page is what the stored results say."""
    records = json.loads((RESULTS / f"{scheme}.json").read_text())
    page = (FOLDER.parents[1] / "docs" / "randomness.md").read_text()
    rows = set(verdicts.table(records, sorted({record["stream"] for record in records})).splitlines())
    assert rows <= set(page.splitlines())
