"""The files that services and other tools read: each is of the schema of its kind, and agrees with the project."""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GITHUB = ROOT / ".github"
KINDS = {
    "vendor.github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "vendor.github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "idea")],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
PYPROJECT = (ROOT / "pyproject.toml").read_text()


@pytest.mark.skipif(not importlib.util.find_spec("check_jsonschema"), reason="needs check-jsonschema, of contdrop[dev]")
@pytest.mark.parametrize("kind", KINDS)
def test_file_is_of_its_schema(kind):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", kind, *map(str, KINDS[kind])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_workflows_are_safe():
    linter = shutil.which("zizmor", path=pathlib.Path(sys.executable).parent)
    if linter is None:
        pytest.skip("needs zizmor, of contdrop[dev]")
    result = subprocess.run([linter, "--offline", GITHUB / "workflows"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_workflows_name_files_and_tests_that_exist():
    for workflow in KINDS["vendor.github-workflows"]:
        for path in re.findall(
            r"\b(?:tests/[\w/]+\.py|\.ci/\w+|requirements/\S+\.txt|CMakeLists\.txt)", workflow.read_text()
        ):
            assert (ROOT / path).exists(), f"{workflow.name}: {path}"


def test_versions_of_python_agree():
    classified = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    tested = re.search(r"python: \[(.*)\]", (GITHUB / "workflows" / "tests.yml").read_text())[1]
    assert classified == re.findall(r"3\.\d+", tested)
    assert f'requires-python = ">={classified[0]}"' in PYPROJECT


def test_the_oldest_torch_is_tested():
    (oldest,) = re.findall(r'dependencies = \["torch>=([\d.]+)"\]', PYPROJECT)
    assert f"torch=={oldest}.0" in (GITHUB / "workflows" / "tests.yml").read_text()


def test_the_citation_has_this_version():
    version = re.search(r'__version__ = "(.*)"', (ROOT / "src/contdrop/__init__.py").read_text())[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"  version = {{{version}}},\n" in (ROOT / "docs/questions.md").read_text()
