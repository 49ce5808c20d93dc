"""The rules of the house: what may import what, and what the core works without."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import contdrop

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "src" / "contdrop"

# Lower may not import higher.
ORDER = [
    *["choices", "errors", "_text", "_files", "_torch", "_clipped_normal", "_kernel_law", "laws", "kernels"],
    *["functional", "nn", "surgery", "schedules", "theory"],
    *["inference", "certificates", "covariances", "bench", "lab", "replication", "cli"],
]


def _imports(path):
    """Names of the package's own modules that a file imports, at any depth."""
    package = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            parts = [*base, *(node.module or "").split(".")] if node.module else list(base)
            yield from ([parts[0]] if parts and parts[0] else [a.name for a in node.names if a.name[0] != "_"])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("contdrop."):
            yield node.module.split(".")[1]


def test_imports_run_one_way():
    seen = set()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).with_suffix("").parts[0]
        if name == "__init__":
            continue
        seen.add(name)
        for imported in _imports(path):
            place = path.relative_to(SOURCE).as_posix()
            known = place.startswith("lab/") and imported == "replication"
            assert known or ORDER.index(imported) <= ORDER.index(name), f"{place} imports {imported}"
    assert seen == set(ORDER)


@pytest.mark.parametrize("package", ["", "lab"])
def test_what_editors_see_of_a_package_is_what_it_offers(package):
    """The imports under TYPE_CHECKING and the table of names that are imported on first use."""
    source = (SOURCE / package / "__init__.py").read_text()
    seen = re.findall(r"^    from \.(\S*) import (\w+) as \2$", source, re.MULTILINE)
    exec(source[source.index("_NAMES = ") : source.index("def __getattr__")], table := {"_MODULES": ()})
    modules = re.findall(r'"(\w+)"', re.search(r"_MODULES = \((.*)\)|$", source)[1] or "")
    assert dict(map(reversed, seen)) == {**dict.fromkeys(modules, ""), **table["_PLACES"]}


def test_theory_does_not_import_what_it_checks():
    for path in (SOURCE / "theory").rglob("*.py"):
        assert not {"kernels"} & set(_imports(path)), path.name


def test_private_parts_of_torch_are_in_one_file():
    """What torch makes no promise about is looked up in _torch/private.py, each with a way to do without."""
    private = re.compile(
        r"\btorch(\.\w+)*\._(?!_)|__dlpack|_DropoutNd\b|\._(current_level|is_zerotensor|backward_cls)\b"
    )
    for path in SOURCE.rglob("*.py"):
        if path.name == "private.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [ast.unparse(node)] if isinstance(node, (ast.Attribute, ast.Name)) else []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                assert not private.search(name), f"{path.name} uses {name}"


# Packages beyond torch, and the only place that may import them.
OWNERS = {
    "cloudpickle": ["lab/study/source.py"],
    "pandas": ["lab/api.py"],
    "typer": ["cli/"],
    "rich": ["cli/"],
    "matplotlib": ["bench/plot.py", "cli/", "lab/report/", "lab/api.py", "replication/"],
    "jinja2": ["lab/report/"],
    "markupsafe": ["lab/report/"],
    "numpy": ["lab/", "replication/"],
    "pooch": ["replication/datasets/download.py", "replication/datasets/npm.py"],
    "ray": ["lab/runner/ray_cluster.py"],
    "requests": ["replication/datasets/download.py"],
    "PIL": ["replication/datasets/"],
    "scipy": ["lab/stats/", "lab/report/", "replication/datasets/"],
    "sklearn": ["replication/datasets/builtin.py"],
    "triton": ["kernels/triton.py"],
}

# What a report may import of the lab: files that do without torch.
WITHOUT_TORCH = [
    *["lab/analysis", "lab/report", "lab/stats", "lab/store", "lab/training/metric_values.py"],
    *["lab/training/random_streams.py", "lab/runner/progress.py"],
    *["lab/study/labels.py", "lab/study/amendments.py", "lab/study/selection.py"],
    *["replication/claims", "replication/datasets", "replication/paper_figures.py"],
    *["replication/paper_report.py", "replication/paper_tables.py", "lab/extensions.py"],
]


def test_optional_packages_are_imported_only_by_their_owner():
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                allowed = top in ("torch", "contdrop", *sys.stdlib_module_names)
                assert allowed or place.startswith(tuple(OWNERS.get(top, ["nowhere"]))), f"{place} imports {name}"


def test_reports_do_not_import_torch():
    """Nor anything of the package that does, but for the package itself."""
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith(tuple(WITHOUT_TORCH)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert all(alias.name.partition(".")[0] != "torch" for alias in node.names), place
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert node.module.partition(".")[0] not in ("torch", "contdrop"), place
            elif isinstance(node, ast.ImportFrom):
                base = path.parents[node.level - 1]
                for alias in node.names:
                    imported = _file(base / (node.module or "").replace(".", "/"), alias.name)
                    allowed = imported.startswith(("errors.py", "_files.py", "_text.py", "__init__.py", *WITHOUT_TORCH))
                    assert allowed, f"{place} imports {imported}"


def test_no_command_waits_for_the_figures_of_another():
    """matplotlib takes a second, which is half of what ``contdrop status`` may take."""
    for path in (SOURCE / "cli").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lab.report"):
                assert not {"page", "figures", "changes"} & {alias.name for alias in node.names}, path.name


def test_analysis_does_not_import_the_report():
    """What `run` says after its last job needs no page, no figures and none of their packages."""
    for path in (SOURCE / "lab" / "analysis").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path.parents[node.level - 1]
                for alias in node.names:
                    imported = _file(base / (node.module or "").replace(".", "/"), alias.name)
                    assert not imported.startswith("lab/report"), f"{path.name} imports {imported}"


def _file(module, name):
    """The file of a module, or of a name in it that is a module itself."""
    for candidate in (
        module / f"{name}.py",
        module / name / "__init__.py",
        module.with_suffix(".py"),
        module / "__init__.py",
    ):
        if candidate.is_file():
            return candidate.relative_to(SOURCE).as_posix()
    raise AssertionError(f"no file for {module} {name}")


def test_core_works_with_torch_alone():
    """In a process where everything but torch and what torch itself needs cannot be imported."""
    code = """
import importlib.machinery, sys, warnings
FORBIDDEN = {"numpy", "scipy", "sklearn", "matplotlib", "rich", "typer", "pandas", "ray", "triton"}
real_find = importlib.machinery.PathFinder.find_spec
def find(name, path=None, target=None):
    return None if name.partition(".")[0] in FORBIDDEN else real_find(name, path, target)
importlib.machinery.PathFinder.find_spec = find
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
import torch, contdrop as cd
x = torch.ones(8, 6, requires_grad=True)
for layer in (cd.BernoulliDropout(), cd.UniformDropout(), cd.GaussianDropout(0.3)):
    layer(x).sum().backward()
cd.AdaptiveDropout()(x, x).sum().backward()
for layer in (cd.DropConnectLinear(6, 3), cd.FastDropoutLinear(6, 3, law=cd.parse_law("gaussian:sigma=0.3"))):
    layer(x).sum().backward()
    layer.eval()(x)
cd.Gaussian().sample((3,))
from contdrop.bench import harness, sheets, plot
assert not FORBIDDEN & {name.partition(".")[0] for name in sys.modules}
print("works")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "works\n", result.stderr


def test_core_depends_on_torch_only():
    text = (ROOT / "pyproject.toml").read_text()
    (dependencies,) = re.findall(r"^dependencies = \[(.*)\]$", text, re.MULTILINE)
    assert re.fullmatch(r'"torch[^",]*"', dependencies)


def test_public_names_are_those_of_the_design():
    expected = """Bernoulli Uniform Gaussian parse_law Dropout BernoulliDropout UniformDropout GaussianDropout
    AdaptiveDropout DropConnectLinear FastDropoutLinear functional nn checkpoint_context Law mc_predict coadaptation
    swap_dropout surgery schedules"""
    assert all(hasattr(contdrop, name) for name in expected.split())
    functions = "dropout adaptive_dropout dropconnect_linear fast_dropout_linear"
    assert all(hasattr(contdrop.functional, name) for name in functions.split())


def _run(code):
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "works\n", result.stderr


def test_what_the_package_offers_is_imported_when_it_is_asked_for():
    _run("""
import sys
import contdrop as cd
assert "torch" not in sys.modules and not hasattr(cd, "__wrapped__")
import torch

@torch.compile(backend="eager", fullgraph=True)
def double(x):
    return 2 * cd.functional.dropout(x, cd.Gaussian(sigma=0.3), training=False)  # imported while it is traced

assert torch.equal(double(torch.ones(3)), 2 * torch.ones(3))
assert not hasattr(cd, "dropuot") and "mc_predict" in dir(cd)
import contdrop.covariances
assert callable(cd.coadaptation)  # and no module
from contdrop import *
assert GaussianDropout is cd.nn.GaussianDropout and "Path" not in cd.__all__ and nn is cd.nn
print("works")
""")


def test_what_the_lab_offers_is_imported_when_it_is_asked_for():
    pytest.importorskip("cloudpickle", reason="needs the packages of contdrop[lab]")
    _run("""
from contdrop import lab
assert "Study" in dir(lab) and "compare" in lab.__all__ and lab.Size is lab.study.study.Size
print("works")
""")
