"""Rules on imports: their directions, the owners of optional packages, and the core without the lab."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import contdrop

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "src" / "contdrop"

# A module may import earlier ones only.
ORDER = [
    *["choices", "errors", "_text", "_files", "_torch", "_clipped_normal", "laws", "kernels"],
    *["functional", "nn", "surgery", "schedules", "theory"],
    *["inference", "certificates", "covariances", "lab", "cli", "replication"],
]


FILES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def _own(place, nodes=None):
    """Yield the package's own files that a file imports, at any depth unless nodes are given."""
    for node in nodes or ast.walk(FILES[place]):
        if isinstance(node, ast.ImportFrom) and (node.level or node.module.split(".")[0] == "contdrop"):
            module = (node.module or "") if node.level else node.module.partition(".")[2]
            base = (SOURCE / place).parents[node.level - 1] if node.level else SOURCE
            yield from (_file(base / module.replace(".", "/"), alias.name) for alias in node.names)


def _file(module, name):
    """Return the file of a name in a module, which may be a module itself."""
    candidates = (
        module / f"{name}.py",
        module / name / "__init__.py",
        module.with_suffix(".py"),
        module / "__init__.py",
    )
    return next(path for path in candidates if path.is_file()).relative_to(SOURCE).as_posix()


def _others(place):
    """Yield the modules of other packages that a file imports, at any depth."""
    for node in ast.walk(FILES[place]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] != "contdrop")
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] != "contdrop":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _top(place):
    return place.partition("/")[0].removesuffix(".py")


def test_imports_run_one_way():
    for place in FILES:
        for imported in map(_top, _own(place)):
            allowed = "__init__" in (_top(place), imported)
            assert allowed or ORDER.index(imported) <= ORDER.index(_top(place)), f"{place} imports {imported}"
    assert {_top(place) for place in FILES} == {*ORDER, "__init__"}


@pytest.mark.parametrize("package", ["", "lab"])
def test_what_editors_see_of_a_package_is_what_it_offers(package):
    """The imports under TYPE_CHECKING and the table of names that are imported on first use."""
    source = (SOURCE / package / "__init__.py").read_text()
    seen = re.findall(r"^    from \.(\S*) import (\w+) as \2$", source, re.MULTILINE)
    exec(source[source.index("_NAMES = ") : source.index("def __getattr__")], table := {"_MODULES": ()})
    modules = re.findall(r'"(\w+)"', re.search(r"_MODULES = \((.*)\)|$", source)[1] or "")
    assert dict(map(reversed, seen)) == {**dict.fromkeys(modules, ""), **table["_PLACES"]}


@pytest.mark.parametrize(
    ("importing", "forbidden"),
    [("theory/", "kernels/"), ("lab/analysis/", "lab/report")],
)
def test_packages_that_must_not_import_another(importing, forbidden):
    for place in FILES:
        if place.startswith(importing):
            assert not any(imported.startswith(forbidden) for imported in _own(place)), place


def test_private_parts_of_torch_are_in_one_file():
    """Private parts of torch are looked up in _torch/private.py, each with a fallback."""
    private = re.compile(
        r"\btorch(\.\w+)*\._(?!_)|__dlpack|_DropoutNd\b|\._(current_level|is_zerotensor|backward_cls)\b"
    )
    for place in FILES.keys() - {"_torch/private.py"}:
        nodes = [node for node in ast.walk(FILES[place]) if isinstance(node, (ast.Attribute, ast.Name))]
        for name in [*map(ast.unparse, nodes), *_others(place)]:
            assert not private.search(name), f"{place} uses {name}"


# Optional packages, and the only places that may import them.
_PAPER = [f"replication/{name}.py" for name in ("paper_figures", "paper_report", "study_commands", "theory_command")]
OWNERS = {
    "cloudpickle": ["lab/study/source.py"],
    "pandas": ["lab/api.py"],
    "typer": ["cli/", "replication/data_commands.py", "replication/study_commands.py"],
    "rich": ["cli/", "replication/data_commands.py"],
    "matplotlib": ["cli/", "lab/report/", "lab/api.py", *_PAPER],
    "jinja2": ["lab/analysis/rendering.py"],
    "markupsafe": ["lab/analysis/rendering.py", "lab/report/"],
    "numpy": ["lab/", "replication/"],
    "ray": ["lab/runner/ray_cluster.py"],
    "requests": ["replication/datasets/download.py"],
    "PIL": ["replication/datasets/"],
    "scipy": ["lab/stats/", "lab/report/", "replication/datasets/"],
    "sklearn": ["replication/datasets/builtin.py"],
    "triton": ["kernels/triton.py"],
}

# Files that reports may import, and that do not import torch.
WITHOUT_TORCH = [
    *["lab/analysis", "lab/report", "lab/stats", "lab/store", "lab/training/metric_values.py"],
    *["lab/training/random_streams.py", "lab/runner/progress.py"],
    *["lab/study/labels.py", "lab/study/amendments.py", "lab/study/selection.py"],
    *["replication/claims", "replication/datasets", "replication/paper_figures.py"],
    *["replication/paper_report.py", "replication/paper_tables.py", "lab/extensions.py"],
]


def test_optional_packages_are_imported_only_by_their_owner():
    for place in FILES:
        for name in _others(place):
            top = name.partition(".")[0]
            allowed = top == "torch" or top in sys.stdlib_module_names
            assert allowed or place.startswith(tuple(OWNERS.get(top, ["nowhere"]))), f"{place} imports {name}"


def test_reports_do_not_import_torch():
    allowed = ("errors.py", "_files.py", "_text.py", "__init__.py", *WITHOUT_TORCH)
    for place in FILES:
        if place.startswith(tuple(WITHOUT_TORCH)):
            assert all(name.partition(".")[0] != "torch" for name in _others(place)), place
            for imported in _own(place):
                assert imported.startswith(allowed), f"{place} imports {imported}"


def test_commands_do_not_import_figures_on_start():
    """matplotlib takes a second to import, half of the time that ``contdrop status`` may take."""
    slow = ("lab/report/page.py", "lab/report/figures", "lab/report/live_page.py", "lab/report/live_server.py")
    for place in FILES:
        if place.startswith("cli/"):
            assert not any(imported.startswith(slow) for imported in _own(place, FILES[place].body)), place


def test_core_works_with_torch_alone():
    """Run in a process in which only torch and its own requirements can be imported."""
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
