"""Without any one private part of torch, layers give the same numbers."""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import contdrop as cd
from contdrop._torch import private

ONLOOKERS = [
    "torch._C._are_functorch_transforms_active",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._get_tracing_state",
    "torch._C._has_storage",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.autograd.forward_ad._current_level",
]
DERIVATIVES = [
    "torch._C._are_functorch_transforms_active",
    "torch._C._AutoDispatchBelowAutograd",
    "torch._functorch.utils.enable_single_level_autograd_function",
    "torch.autograd.function._SingleLevelFunction",
    "torch.autograd.forward_ad._set_fwd_grad_enabled",
]
_EFFECTS = ["torch._library.effects.EffectType", "torch.library.Library._register_effectful_op"]
_OLDER_EFFECTS = [
    "torch._higher_order_ops.effects._EffectType",
    "torch._higher_order_ops.effects._register_effectful_op",
]
DRAWS = [
    *[f"{newer},{older}" for newer in _EFFECTS for older in _OLDER_EFFECTS],
    "torch._subclasses.functional_tensor.FunctionalTensorMode",
    "torch.fx.traceback.current_meta",
    "torch.utils.checkpoint.SAC_IGNORED_OPS",
    "torch._C._functorch.get_interpreter_stack",
    "torch._functorch.pyfunctorch.coerce_cinterpreter",
    "torch._C._functorch.TransformType.Vmap",
    "torch._C._functorch._add_batch_dim",
    "torch._C.DispatchKeySet",
    "torch._C.DispatchKey.FuncTorchVmapMode",
    "torch._C._DisableFuncTorch",
    "torch._C._ExcludeDispatchKeyGuard",
]
# With these the graphs of torch.compile are tried too, which takes seconds each.
COMPILED = ["compiled:" + DRAWS[0], "compiled:torch._C._AutoDispatchBelowAutograd"]
TREE = ast.walk(ast.parse(pathlib.Path(private.__file__).read_text()))
STRINGS = {node.value for node in TREE if isinstance(node, ast.Constant) and isinstance(node.value, str)}
LOOKED_UP = sorted(
    text for text in STRINGS if re.fullmatch(r"torch(\.\w+)+|_[a-z]\w+(?<!_hooks)", text)
)  # see test_hooks
NAMES = list(dict.fromkeys([*LOOKED_UP, *DRAWS, *COMPILED]))


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def reports():
    probe = pathlib.Path(__file__).parents[1] / "compatibility_probe.py"
    result = run(probe, "", *NAMES)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [report["name"] for report in found] == ["", *NAMES], result.stderr
    return {report["name"]: report for report in found} | {"errors": result.stderr}


@pytest.mark.parametrize("name", NAMES)
def test_layers_give_the_same_numbers_without(name, reports):
    report, whole = reports[name], reports[""]
    assert "failed" not in report, reports["errors"]
    exact = report["DERIVATIVES"] == whole["DERIVATIVES"]
    for mine, expected in zip(report["numbers"], whole["numbers"], strict=True):
        # Without derivatives of our own, the reference back end is differentiated.
        assert mine == expected if exact else mine == pytest.approx(expected, rel=1e-5, abs=1e-5)
    for mine, expected in zip(report["values"], whole["values"], strict=True):
        assert mine == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert report["predicted"] == whole["predicted"]


def test_nothing_is_missing_from_this_version(reports):
    """What is off here is off for every user of this version: say so in the guide before changing this test."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    whole = reports[""]
    assert whole["SEES_EVERYBODY"]
    assert whole["DERIVATIVES"]
    assert whole["DRAWS_IN_GRAPHS"] == private.DRAWS_IN_GRAPHS
    assert (private.dlpack_table is not None) == (version >= (2, 10))
    assert whole["fast"] == (version >= (2, 10))


def test_importing_is_silent_and_leaves_the_compiler_alone():
    """Warnings as errors must not turn an ability off; the compiler would double the time of an import."""
    code = """
import sys, torch
before = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
from contdrop._torch import private as compatibility
abilities = compatibility.SEES_EVERYBODY, compatibility.DERIVATIVES, compatibility.DRAWS_IN_GRAPHS
after = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
print(*abilities, sorted(after - before) if compatibility.GENERATORS_IN_GRAPHS else [])
"""
    for option in ("always", "error"):
        result = run("-W", option, "-c", code)
        assert result.returncode == 0, result.stderr
        abilities = private.SEES_EVERYBODY, private.DERIVATIVES, private.DRAWS_IN_GRAPHS
        assert result.stdout.split(maxsplit=3) == [*map(str, abilities), "[]\n"]


@pytest.mark.parametrize(
    ("names", "ability"),
    [
        (ONLOOKERS, "SEES_EVERYBODY"),
        ([*ONLOOKERS, "torch.Tensor.__dlpack_c_exchange_api__"], "fast"),
        (DERIVATIVES, "DERIVATIVES"),
        (DRAWS, "DRAWS_IN_GRAPHS"),
    ],
)
def test_an_ability_is_off_without_any_of_its_parts(names, ability, reports):
    assert not [name for name in names if reports[name][ability]]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layers_draw_what_eager_ones_draw(name, reports):
    assert reports[name]["compiled"] == {"same": True, "shared": False}


def test_not_knowing_of_backward_is_said(reports):
    (warning,) = reports["torch._C._current_graph_task_id"]["warnings"]
    assert warning.startswith("contdrop: this version of torch does not tell whether backward is running")
    assert not reports[""]["warnings"]


def test_refused_functions_are_named(reports):
    assert "torch.sort" in reports[""]["message"]
    assert "sort" in reports["torch.fx.Node._pretty_print_target"]["message"]


def test_a_name_that_cannot_be_written_is_given_plainly(monkeypatch):
    graph = torch.fx.symbolic_trace(lambda x: torch.sort(x)).graph
    (node,) = (node for node in graph.nodes if node.op == "call_function")
    assert private.target_name(node) == "torch.sort"
    monkeypatch.setattr(torch.fx.Node, "_pretty_print_target", lambda *_: 1 / 0)
    assert private.target_name(node) == "sort"


def test_hooks():
    layer = torch.nn.Linear(2, 2)
    assert not private.has_forward_hooks(layer)
    layer.register_forward_pre_hook(lambda *_: None)
    assert private.has_forward_hooks(layer)


def test_a_part_that_behaves_otherwise_is_not_relied_on(monkeypatch):
    assert private._sees_everybody()
    for part, wrong in (
        ("transforms_active", lambda: False),
        ("dispatch_modes", lambda: 0),
        ("dispatch_modes", lambda: 1 / 0),
        ("_has_storage", lambda x: None),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(private, part, wrong)
            assert not private._sees_everybody()


def test_torch_dropouts_are_found():
    for layer in (torch.nn.Dropout(), torch.nn.Dropout3d(), torch.nn.FeatureAlphaDropout(), cd.UniformDropout()):
        assert isinstance(layer, private.TORCH_DROPOUTS)
    assert isinstance(torch.nn.SyncBatchNorm(3), private.BATCH_NORMS)
