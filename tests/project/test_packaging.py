"""What is built and shipped: the source archive, the wheel, and the wheel of a machine without a C++ compiler."""

import os
import pathlib
import re
import resource
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
VERSIONS = str(ROOT / "requirements" / "constraints.txt")
CONSTRAINTS = {"PIP_CONSTRAINT": VERSIONS, "PIP_BUILD_CONSTRAINT": VERSIONS, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
LIBRARY = "contdrop/kernels/native/_contdrop.so"
EXPRESS = "contdrop/kernels/native/_express.abi3.so"
SOURCES = {
    path.relative_to(ROOT).as_posix()
    for top in ("src", "benchmarks/contdrop_bench")
    for path in (ROOT / top).rglob("*.*")
    if "__pycache__" not in path.parts
}


def run(*command: object, **options) -> str:
    environment = {**os.environ, **CONSTRAINTS, **options.pop("env", {})}
    result = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, check=False, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def pip(*arguments: object, **options) -> str:
    return run(sys.executable, "-m", "pip", *arguments, **options)


def contents(wheel: pathlib.Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def python_in(directory: pathlib.Path, code: str) -> str:
    """Runs code with the package as it was installed into a directory, without this project's editable install."""
    path = os.pathsep.join([str(directory), *site.getsitepackages()])
    variables = {"PYTHONPATH": path, "PATH": ""}  # no compiler
    warnings = ["-W", "always", "-W", "ignore:Implicitly cleaning up:ResourceWarning"]  # torch 2.6 itself does that
    return run(sys.executable, "-S", *warnings, "-c", code, env=variables, cwd=directory)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Calls a hook of the build backend, as pip would, in an environment made once."""
    environment = tmp_path_factory.mktemp("backend")
    pip("install", "--quiet", "--target", environment, "scikit-build-core")

    def call(hook: str, source: pathlib.Path, system: str = sys.platform, **variables: str) -> pathlib.Path:
        result = tmp_path_factory.mktemp("dist")
        code = f"""
import sys, sysconfig
from scikit_build_core.build import {hook}
sysconfig.get_config_vars()  # reads a file of this system's
sys.platform = {system!r}
{hook}({str(result)!r})
"""
        run(sys.executable, "-S", "-c", code, cwd=source, env={"PYTHONPATH": str(environment), **variables})
        (built,) = result.iterdir()
        return built

    return call


@pytest.fixture(scope="module")
def sdist(build):
    return build("build_sdist", ROOT)


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory):
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (project,) = directory.iterdir()
    return project


@pytest.fixture(scope="module")
def without_compiler(build, unpacked):
    return build("build_wheel", unpacked, CXX="/nonexistent/c++")


def expected_in_wheel() -> set[str]:
    """The sources but for C++, and the wheel's own description."""
    files = {
        path.removeprefix("src/").removeprefix("benchmarks/") for path in SOURCES if not path.endswith((".cpp", ".h"))
    }
    about = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    return files | {f"contdrop-{version()}.dist-info/{name}" for name in about}


def version() -> str:
    return re.search(r'__version__ = "(.*)"', (ROOT / "src/contdrop/__init__.py").read_text())[1]


def test_the_source_archive_holds_all_that_a_build_needs_and_no_more(sdist):
    top = f"contdrop-{version()}/"
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert all(name.startswith(top) for name in names)
    names = {name.removeprefix(top) for name in names}
    assert {name for name in names if name.startswith(("src/", "benchmarks/"))} == SOURCES
    about = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"}
    assert {name.partition("/")[0] for name in names} == {
        "CMakeLists.txt",
        "pyproject.toml",
        "benchmarks",
        "src",
    } | about


def test_without_a_compiler_the_wheel_has_everything_but_the_library(without_compiler):
    assert contents(without_compiler) == expected_in_wheel()


def test_without_a_compiler_the_package_installs_and_works(without_compiler, tmp_path):
    pip("install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path, without_compiler)
    code = """
import torch, contdrop as cd
print(cd.__file__)
torch.manual_seed(1)
layer = cd.Dropout(cd.Gaussian(sigma=0.3))
layer(torch.ones(3)); layer(torch.ones(3))
print(cd.backend())
"""
    output = python_in(tmp_path, code)
    assert output.startswith(f"{tmp_path}/contdrop/__init__.py\nreference\n")
    assert output.count("the native kernels were not built") == 1
    assert output.count("Warning") == 1


def test_a_source_archive_and_the_repository_give_the_same_wheel(build, without_compiler):
    assert contents(build("build_wheel", ROOT, CXX="/nonexistent/c++")) == contents(without_compiler)


def test_windows_asks_for_no_compiler(build, unpacked, without_compiler):
    wheel = build("build_wheel", unpacked, system="win32")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert contents(wheel) == contents(without_compiler)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_wheel_is_built_in_isolation_within_a_minute_and_works(build, unpacked, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = pip("wheel", "--verbose", "--no-deps", "--no-cache-dir", "--wheel-dir", tmp_path, ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # In seconds of CPU on the two cores that compile, because somebody else may be using them as well.
    seconds = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / min(2, os.cpu_count())
    print(f"\nbuilt in {seconds:.0f} s")
    assert seconds < 60
    (installed,) = re.findall(r"Successfully installed (.*scikit-build-core.*)", log)
    assert "torch" not in installed
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(rf"contdrop-{re.escape(version())}-py3-none-(?!any)\w+\.whl", wheel.name)
    assert contents(wheel) == expected_in_wheel() | {LIBRARY, EXPRESS}

    target = tmp_path / "installed"
    pip("install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel)
    code = """
import contdrop as cd
from contdrop.kernels.native import loader
print(cd.backend().name, loader.library()._name)
"""
    assert python_in(target, code) == f"native {target}/{LIBRARY}\n"
    assert contents(build("build_wheel", unpacked)) == contents(wheel)
