"""Mutation testing: a sample of mutants, each against the tests that run its function.

    python tools/mutation/run.py baseline              # which test runs which function, and for how long
    python tools/mutation/run.py sample --size 300     # appends to results.jsonl what it has not done yet
    python tools/mutation/run.py baseline --files tests/lab/stats/test_paired.py   # after tests were added there
    python tools/mutation/run.py again                 # survivors once more, after tests were added
    python tools/mutation/run.py again --all           # all that were tried and still exist, after a reorganization
    python tools/mutation/run.py try --name "clark: constant" --files tests/theory/propagation/test_activations.py
    python tools/mutation/run.py summary

Each mutant is tried in a fork of a process that has collected the tests: there the changed function is compiled from
memory and takes the place of the right one, so no file is touched. What is in no function (a constant, a default) is
changed when its module is imported, in a fork of a process that has not imported contdrop. Tests that start other
processes test the undamaged code, and so catch nothing here. Needs Linux.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mutants
import pytest
from _pytest.runner import runtestprotocol
from mutants import Mutant

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
RESULTS, EQUIVALENT = HERE / "results.jsonl", HERE / "equivalent.json"
_IDLE = 600.0  # seconds without any work, after which a process hangs
BASELINE = ROOT / ".mutation.json"
SEEDS = (20261117, 20261118)  # the first sample and the second; `sample` draws by the last
# Not tests that measure time on the clock: on a busy machine they fail without any fault.
_TIMED = "not takes_milliseconds and not less_than_15_seconds and not the_bars"
CHOICE = (
    "-m",
    "not slow",
    "-k",
    f"not processes and not of_a_run and not after_a_kill and {_TIMED}",
    "--hypothesis-seed=0",
)
PRELOADED = ("torch", "numpy", "scipy.stats", "rich.table", "typer", "jinja2", "matplotlib.pyplot")

# What is mutated, and the tests that are to notice (files or directories). A file belongs to the first group with it.
GROUPS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "stats": (["lab/stats/*.py"], ["lab/stats", "lab/analysis/test_verdict.py"]),
    "analysis": (
        ["lab/analysis/*.py", "lab/report/*.py"],
        ["lab/analysis", "lab/report", "cli/test_report_commands.py"],
    ),
    "store": (["lab/store/*.py", "lab/training/checkpoint.py"], ["lab/store", "lab/training/test_checkpoint.py"]),
    "theory": (
        ["theory/*.py", "theory/propagation/*.py"],
        ["theory", "test_open_laws.py", "test_inference.py", "replication/test_theory_command.py"],
    ),
    "lab": (
        ["lab/*.py", "lab/study/*.py", "lab/data/*.py", "lab/training/*.py"],
        ["lab/study", "lab/data", "lab/training", "replication/studies", "replication/test_recipes.py"],
    ),
}


def modules(group: str) -> dict[str, pathlib.Path]:
    """Return the files of a group by the names of their modules."""
    source, taken = ROOT / "src", {}
    for each, (places, _) in GROUPS.items():
        files = [file for place in places for file in sorted((source / "contdrop").glob(place))]
        names = {".".join(file.relative_to(source).with_suffix("").parts): file for file in files}
        here = {name.removesuffix(".__init__"): file for name, file in names.items() if name not in taken}
        if each == group:
            return here
        taken |= here
    raise SystemExit(f"expected one of {', '.join(GROUPS)}, got {group}")


def test_files(group: str) -> list[str]:
    """Return the test files of a group; a browser and other processes run the unmodified code, and are left out."""
    places = [ROOT / "tests" / place for place in GROUPS[group][1]]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    return [str(file.relative_to(ROOT)) for file in files if "browser" not in file.name and "faults" not in file.parts]


class _Changed(importlib.machinery.SourceFileLoader):
    """Loader of a module from a tree in memory."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self.tree = tree

    def get_code(self, fullname: str) -> Any:
        return compile(self.tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, trees: Mapping[str, tuple[pathlib.Path, ast.Module]]) -> None:
        self.trees = trees

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self.trees:
            return None
        file, tree = self.trees[fullname]
        places = [str(file.parent)] if file.name == "__init__.py" else None
        loader = _Changed(fullname, str(file), tree)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=places)


class _Watch:
    """Pytest plugin that chooses and orders tests, and records their outcomes."""

    def __init__(self, chosen: Sequence[str] | None) -> None:
        self.chosen = None if chosen is None else {name: place for place, name in enumerate(chosen)}
        self.seconds: dict[str, float] = {}
        self.began = 0.0
        self.failed: list[str] = []
        self.touched: dict[str, set[str]] = collections.defaultdict(set)
        self.current = ""
        self.caches: list[Any] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.chosen is not None:
            items[:] = [item for item in items if item.nodeid in self.chosen]
            items.sort(key=lambda item: self.chosen[item.nodeid])
        self.caches = _caches()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        for cache in self.caches:  # else only the first test would be seen to run what is cached
            cache.cache_clear()
        self.current, self.began = nodeid, time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = time.process_time() - self.began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid or "collection")


def _caches() -> list[Any]:
    """Return the function caches of the package."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is functools._lru_cache_wrapper and (each.__module__ or "").startswith("contdrop")
    ]


def in_fork(work: Callable[[], Any], timeout: float) -> Any:
    """Return the result of ``work`` in a fork; None if it took too long, "died" if it was killed.

    Time is that of the processor, lest a busy machine make every mutant look caught.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        answer = pathlib.Path(place) / "answer.json"
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            _become_quiet(pathlib.Path(place))
            try:
                answer.write_text(json.dumps(work()))
            except BaseException:  # a fault of this tool
                answer.write_text(json.dumps({"error": traceback.format_exc()}))
            finally:
                os._exit(0)
        used, changed = 0.0, time.monotonic()
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            before, used = used, _processor_seconds(child)
            changed = time.monotonic() if used > before else changed
            if used > timeout or time.monotonic() - changed > _IDLE:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.02)
        found = json.loads(answer.read_text()) if answer.exists() else "died"
        if isinstance(found, dict) and "error" in found:
            raise RuntimeError(found["error"])
        return found


def _processor_seconds(process: int) -> float:
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _become_quiet(place: pathlib.Path) -> None:
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(place / "hypothesis")
    output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(ROOT)


def run_tests(files: Iterable[str], watch: _Watch, *, first_failure: bool) -> int:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *CHOICE]
    return int(pytest.main([*options, *(["-x"] if first_failure else []), *files], plugins=[watch]))


# ---- which test runs which function


def baseline(group: str, files: Collection[str]) -> Iterator[dict[str, Any]]:
    """Record, for every test of a group, its seconds, the functions that it runs, and whether it passes."""
    trees = {}
    for name, path in modules(group).items():
        trees[name] = (path, mutants.touched(ast.parse(path.read_text()), f"mutation_touch_{name.replace('.', '_')}"))
    for file in [file for file in test_files(group) if not files or file in files]:
        yield (found := in_fork(lambda file=file: _watched(file, trees), 1200))
        print(f"{group} {file}: {len(found)} tests", flush=True)


def _watched(file: str, trees: Mapping[str, tuple[pathlib.Path, ast.Module]]) -> dict[str, Any]:
    import builtins

    watch = _Watch(None)
    for name in trees:
        # A default argument keeps each module's name.
        setattr(
            builtins,
            f"mutation_touch_{name.replace('.', '_')}",
            lambda function, name=name: watch.touched[watch.current].add(f"{name}:{function}"),
        )
    sys.meta_path.insert(0, _Finder(trees))
    run_tests([file], watch, first_failure=False)
    return {
        test: {
            "seconds": round(seconds, 4),
            "functions": sorted(watch.touched[test]),
            "passes": test not in watch.failed,
        }
        for test, seconds in watch.seconds.items()
    }


def tests_of(mutant: Mutant, tests: Mapping[str, Any]) -> list[str]:
    """Return the tests that run a mutant's function, or its module if it is in none.

    Those come first that are quick and run little else: they are the likeliest to look at what the function does.
    """
    wanted = f"{mutant.module}:{mutant.function}"
    found = [name for name, test in tests.items() if wanted in test["functions"]]
    if not found:
        start = f"{mutant.module}:"
        found = [name for name, test in tests.items() if any(each.startswith(start) for each in test["functions"])]
    passing = [name for name in found or tests if tests[name]["passes"]]
    return sorted(passing, key=lambda name: tests[name]["seconds"] * len(tests[name]["functions"]))


# ---- mutants

_Items = Mapping[str, pytest.Item]


def choose(mutant: Mutant, tests: Mapping[str, Any], most: float) -> tuple[list[str], int, float]:
    """Return the tests that fit into ``most`` seconds by the baseline, the number of all, and their seconds."""
    chosen, total = [], 0.0
    everything = tests_of(mutant, tests)
    for name in everything:
        if chosen and total + tests[name]["seconds"] > most:
            break
        total += tests[name]["seconds"]
        chosen.append(name)
    return chosen, len(everything), total


def judge(
    mutant: Mutant, path: pathlib.Path, tests: Mapping[str, Any], most: float, ready: tuple[Loaded, _Items] | None
) -> None:
    """Record whether a mutant is caught, and by which test.

    With ``ready``, what this process has loaded and the tests that it has collected, a function's code is exchanged in
    the fork; without, the fork imports the changed module and collects the tests itself, which takes longer.
    """
    chosen, number, total = choose(mutant, tests, most)
    start = time.monotonic()

    def work() -> dict[str, Any]:
        if ready is None:
            return _imported(mutant, path, chosen, dict.fromkeys(name.partition("::")[0] for name in chosen))
        loaded, items = ready
        return _exchanged(loaded, mutant, path, [items[name] for name in chosen if name in items])

    note(mutant, in_fork(work, 15 + 5 * total), time.monotonic() - start, len(chosen), number)


def note(mutant: Mutant, answer: Any, seconds: float, tests: int, number: int, *, drawn: bool = True) -> None:
    """Append the outcome of a mutant; one outside the sample counts only if it was drawn before."""
    by = "time-out" if answer is None else "the process died" if answer == "died" else answer["by"]
    result = {
        "name": mutant.name, "line": mutant.line, "verdict": "caught" if by else "survived", "by": by,
        "tests": tests, "of": number, "seconds": round(seconds, 1), "seed": SEEDS[-1], "drawn": drawn,
    }  # fmt: skip
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(result["verdict"], result["seconds"], result["name"], by, file=sys.__stderr__, flush=True)


def _imported(
    mutant: Mutant, path: pathlib.Path, chosen: Sequence[str] | None, files: Iterable[str], keyword: str = ""
) -> dict[str, Any]:
    sys.meta_path.insert(0, _Finder({mutant.module: (path, mutants.apply(mutant, path.read_text()))}))
    watch = _Watch(chosen)
    code = run_tests([*files, *(["-k", keyword] if keyword else [])], watch, first_failure=True)
    return {"by": watch.failed[0] if watch.failed else f"pytest ended with {code}" if code else ""}


def _exchanged(loaded: Loaded, mutant: Mutant, path: pathlib.Path, items: Sequence[pytest.Item]) -> dict[str, Any]:
    loaded.exchange(mutant, path)
    for item, following in zip(items, [*items[1:], None]):
        reports = runtestprotocol(item, nextitem=following, log=False)
        if any(report.failed for report in reports):
            return {"by": item.nodeid}
    return {"by": ""}


class Loaded:
    """Loaded functions and caches of contdrop.

    They are looked for once, before any fork: to look at every object of the process is to copy it in the fork.
    """

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str, int], list[types.FunctionType]] = {}
        self.caches = _caches()
        for each in gc.get_objects():
            if type(each) is types.FunctionType:  # isinstance would wake up what torch has deprecated
                code = each.__code__
                self.functions.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(each)

    def exchange(self, mutant: Mutant, path: pathlib.Path) -> None:
        """Give every copy of a mutant's function the changed code, and clear caches."""
        source = path.read_text()
        found = mutants.outermost(mutant, source)
        assert found is not None
        whole = compile(mutants.apply(mutant, source), str(path), "exec")
        (changed,) = (code for code in _inside(whole) if (code.co_qualname, code.co_firstlineno) == found)
        for function in self.functions[(str(path), *found)]:
            function.__code__ = changed
        for cache in self.caches:
            cache.cache_clear()


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inside(constant)


class _Loop:
    """Pytest plugin that runs some of the tests for every mutant, each in a fork."""

    def __init__(self, found: Sequence[Mutant], judge_one: Callable[[Mutant, tuple[Loaded, _Items]], None]) -> None:
        self.found, self.judge_one = found, judge_one

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        ready = Loaded(), {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()  # what is not looked at again is not copied in the forks
        for mutant in self.found:
            self.judge_one(mutant, ready)
        return True


# ---- commands


def find_in(module: str, path: pathlib.Path) -> list[Mutant]:
    return mutants.find(module, path.read_text())


def population(groups: Iterable[str]) -> dict[str, list[Mutant]]:
    return {group: [m for name, path in modules(group).items() for m in find_in(name, path)] for group in groups}


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def done() -> dict[str, dict[str, Any]]:
    """Return results by the mutants' names; a later line replaces an earlier one."""
    return {record["name"]: record for record in records()}


def run_sample(groups: Collection[str], size: int, most: float, only: Collection[str] | None = None) -> None:
    everything = population(GROUPS)
    chosen = mutants.sample([mutant for found in everything.values() for mutant in found], size, SEEDS[-1])
    finished = done()
    wanted = [m for m in chosen if (m.name not in finished if only is None else m.name in only)]
    for group in groups:
        names = {mutant.name for mutant in everything[group]}
        run_group(group, [mutant for mutant in wanted if mutant.name in names], most)


def still_there(names: Iterable[str]) -> set[str]:
    """Return the present names of mutants, which may have moved to other modules with their functions."""
    found = collections.defaultdict(list)
    for each in population(GROUPS).values():
        for mutant in each:
            found[mutant.name.partition(":")[2]].append(mutant.name)
    return {name for old in names for name in found[old.partition(":")[2]] if len(found[old.partition(":")[2]]) == 1}


def run_group(group: str, wanted: Sequence[Mutant], most: float) -> None:
    tests, files = json.loads(BASELINE.read_text())[group], modules(group)

    def judge_one(mutant: Mutant, ready: tuple[Loaded, _Items] | None) -> None:
        judge(mutant, files[mutant.module], tests, most, ready)

    quick = [m for m in wanted if mutants.outermost(m, files[m.module].read_text()) is not None]
    if quick:  # in a process of its own, for it imports contdrop
        child = os.fork()
        if not child:
            os.chdir(ROOT)
            options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *CHOICE]
            pytest.main([*options, *test_files(group)], plugins=[_Loop(quick, judge_one)])
            os._exit(0)
        os.waitpid(child, 0)
    for mutant in wanted:
        if mutant not in quick:
            judge_one(mutant, None)


def try_named(part: str, files: Sequence[str], keyword: str) -> None:
    """Try mutants whose names contain a text against the tests that a pytest keyword selects."""
    everything = [(m, path) for group in GROUPS for name, path in modules(group).items() for m in find_in(name, path)]
    for mutant, path in everything:
        if part in mutant.name:
            start = time.monotonic()
            answer = in_fork(lambda mutant=mutant, path=path: _imported(mutant, path, None, files, keyword), 300)
            note(mutant, answer, time.monotonic() - start, 0, 0, drawn=False)


def summary() -> None:
    """Print, for each sample, how many were caught at first, how many are caught now, and which are not."""
    equivalent: dict[str, str] = json.loads(EQUIVALENT.read_text())
    first: dict[str, dict[str, Any]] = {}
    for record in records():
        if record.get("drawn", True):
            first.setdefault(record["name"], record)
    groups = {mutant.name: group for group, found in population(GROUPS).items() for mutant in found}
    now = {name: record for name, record in done().items() if name in first}
    for seed in SEEDS:
        of_seed = [name for name, record in first.items() if record.get("seed", SEEDS[0]) == seed]
        print(f"seed {seed}: {len(of_seed)} mutants")
        for group in [*GROUPS, "since rewritten", ""]:
            names = [name for name in of_seed if not group or groups.get(name, "since rewritten") == group]
            real = [name for name in names if name not in equivalent]
            tries = [sum(results[name]["verdict"] == "caught" for name in real) for results in (first, now)]
            shares = [f"{count} ({100 * count / len(real):.1f} %)" for count in tries if real]
            print(f"  {group or 'all'}: {len(names)} tried, {len(names) - len(real)} equivalent; "
                  f"of the others caught at first and now: {', '.join(shares)}")  # fmt: skip
    for name, record in now.items():
        if record["verdict"] == "survived" and name not in equivalent:
            gone = "" if name in groups else "since rewritten: "
            print(f"not caught: {gone}line {record['line']}: {name} ({record['tests']} of {record['of']} tests)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("baseline", "sample", "again", "try", "summary"))
    parser.add_argument("--groups", default=",".join(GROUPS), help="some of %(default)s")
    parser.add_argument("--size", type=int, default=300, help="of the sample, over all groups (default %(default)s)")
    parser.add_argument("--files", nargs="*", default=(), help="baseline or try: these test files only")
    parser.add_argument("--name", default="", help="try: what the names of the mutants contain")
    parser.add_argument("--all", action="store_true", help="again: those that were caught, too")
    parser.add_argument("-k", dest="keyword", default="", help="try: which tests, as pytest has it")
    parser.add_argument("--most", type=float, default=30.0, help="seconds of tests per mutant (default %(default)s)")
    arguments = parser.parse_args()
    groups = arguments.groups.split(",")
    if arguments.command == "summary":
        summary()
        return
    sys.path.insert(0, str(ROOT / "tests"))
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)  # threads do not survive a fork
    if arguments.command == "baseline":
        found = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
        for group in groups:
            old = found.get(group, {}) if arguments.files else {}
            kept = {name: test for name, test in old.items() if name.partition("::")[0] not in arguments.files}
            for more in baseline(group, arguments.files):
                found[group] = kept = kept | more
                BASELINE.write_text(json.dumps(found))
    elif arguments.command == "try":
        try_named(arguments.name, arguments.files, arguments.keyword)
    elif arguments.command == "sample":
        run_sample(groups, arguments.size, arguments.most)
    else:
        wanted = {name for name, record in done().items() if arguments.all or record["verdict"] == "survived"}
        run_sample(groups, 10**9, arguments.most, only=still_there(wanted))


if __name__ == "__main__":
    main()
