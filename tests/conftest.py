"""Shared fixtures, no deadlines, and no tests of the lab where its packages are missing, as in `make test-torch`."""

import ast
import importlib.util
import pathlib
import sys

import pytest
import torch
from hypothesis import settings

from contdrop.errors import UserError

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("contdrop", deadline=None)
settings.load_profile("contdrop")

HERE = pathlib.Path(__file__).parent
# Begun first, so that at the end no process waits for another one's long file.
LONG_FILES = (
    "test_ray_cluster",
    "test_faults",
    "test_packaging",
    "test_compile",
    "test_site",
    "test_local",
    "test_run_command",
)
LAB_PACKAGES = ("cloudpickle", "jinja2", "matplotlib", "requests", "rich", "scipy", "sklearn", "typer")


def _imported(path):
    """What a file imports as soon as it is imported itself: modules, and names out of modules."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def needs_lab(path):
    """Whether a test file, or a helper of the tests that it imports, imports the lab or the command line."""
    for name in _imported(path):
        helper = HERE / f"{name.partition('.')[0]}.py"
        if f"{name}.".startswith(("contdrop.lab.", "contdrop.cli.")) or (helper.exists() and needs_lab(helper)):
            return True
    return False


def has_lab():
    return all(importlib.util.find_spec(package) for package in LAB_PACKAGES)


collect_ignore_glob = ["lab/study/studies/*"]  # test_templates.py runs them, and some need what is not installed
WITHOUT_LAB = ["faults", "golden", *(path.name for path in HERE.glob("*.py") if needs_lab(path))]
collect_ignore = [] if has_lab() else WITHOUT_LAB


@pytest.fixture
def fresh_compiler():
    """Forget all graphs before and after: the limit on recompilations counts across tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def snapshot(request):
    """Return a function that compares a text with the file of this name in ``snapshots`` beside the test."""

    def check(name, text):
        path = request.path.parent / "snapshots" / f"{name}.txt"
        if request.config.getoption("update_snapshots"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), "run pytest with --update-snapshots and review the diff"

    return check


@pytest.fixture
def refusals(snapshot):
    """Return a function that compares the errors of calls, a line each, with the file of this name in ``snapshots``."""

    def check(name, calls):
        lines = []
        for call in calls:
            with pytest.raises(UserError) as caught:
                call()
            lines.append(str(caught.value))
            assert "\n" not in lines[-1]
        snapshot(name, "\n".join(lines))

    return check


@pytest.fixture
def code_refusals(request, snapshot):
    """Return a function that runs the calls of a snapshot, each a line of code, and compares their errors with it.

    A new call is written into the file; ``--update-snapshots`` adds its error.
    """

    def refusal(call, names):
        try:
            eval(call, names)
        except NameError:  # of the test itself
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        pytest.fail(f"{call} raised no error")

    def check(name, names):
        lines = (request.path.parent / "snapshots" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        found = {call: refusal(call, names) for call in lines if not call.startswith(" ")}
        assert found
        assert not [text for text in found.values() if "\n" in text]
        snapshot(name, "".join(f"{call}\n    {text}\n" for call, text in found.items()))

    return check


def pytest_report_header():
    return f"without the lab: {len(collect_ignore)} files of tests are left out" if collect_ignore else None


def pytest_addoption(parser):
    parser.addoption(
        "--update-snapshots", action="store_true", help="Rewrite the texts under snapshots/ instead of comparing them."
    )
    parser.addoption("--no-skips", action="store_true", help="fail if a test was skipped, as before a release")


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--no-skips") and reporter.stats.get("skipped") and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONG_FILES)


@pytest.fixture
def lab_packages():
    """For a single test of a file of the core's that needs them."""
    if not has_lab():
        pytest.skip("needs the packages of contdrop[lab]")


@pytest.fixture
def one_thread():
    """In networks this small, threads that wait for each other are most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs the command line in an empty directory, without data; returns the exit code and what was printed."""
    from contdrop.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONTDROP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["contdrop", *map(str, arguments)])
        code = app.run()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
