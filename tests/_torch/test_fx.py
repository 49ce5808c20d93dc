"""Traced and exported, the layers do what torch's own do: torch.fx, torch.jit, meta, torch.export, ONNX."""

import copy
import io
import warnings

import pytest
import torch

import conformance
import contdrop as cd
import contdrop.functional as F
from conformance import bit_equal, seeded

LAW = cd.Gaussian(sigma=0.3)
pytestmark = pytest.mark.usefixtures("fresh_compiler")  # torch.export of 2.6 is the compiler's


TORCH = {"nn.Dropout": lambda: torch.nn.Dropout(0.5), "nn.Linear": lambda: torch.nn.Linear(6, 4)}
LAYERS = {**TORCH, **conformance.LAYERS}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
our_layers = pytest.mark.parametrize("make", conformance.LAYERS.values(), ids=conformance.LAYERS)
both_modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def network(make, training=True):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 6), make()).train(training)


# torch.fx.


@every_layer
def test_symbolic_trace_makes_a_node_of_each_layer(make):
    model = network(make)
    traced = torch.fx.symbolic_trace(model)
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert called == ["0", "1.gate" if make is conformance.Gated else "1"]
    x = torch.randn(5, 6)
    for training in (True, False):  # what is being trained is not fixed by the trace
        assert bit_equal([seeded(traced.train(training), x)], [seeded(model.train(training), x)])


def test_symbolic_trace_of_a_layer_by_itself_and_of_a_function():
    # As with torch.nn.Dropout, what is traced itself is not a leaf, and is fixed in its mode.
    x = torch.randn(5, 6)
    for traced, same in (
        (torch.fx.symbolic_trace(cd.GaussianDropout(0.3)), cd.GaussianDropout(0.3)),
        (torch.fx.symbolic_trace(lambda x: F.dropout(x, LAW)), cd.GaussianDropout(0.3)),
        (torch.fx.symbolic_trace(lambda x: F.adaptive_dropout(x, x)), lambda x: F.adaptive_dropout(x, x)),
    ):
        assert any(node.target in (F.dropout, F.adaptive_dropout) for node in traced.graph.nodes)
        assert torch.equal(seeded(traced, x), seeded(same, x))


def test_features_are_extracted_at_a_layer():
    # What torchvision's create_feature_extractor does: trace, give out the node of a layer, drop what comes behind.
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), cd.GaussianDropout(0.3), torch.nn.Linear(6, 2)).eval()
    traced = torch.fx.symbolic_trace(model)
    (wanted,) = [node for node in traced.graph.nodes if node.target == "1"]
    (output,) = [node for node in traced.graph.nodes if node.op == "output"]
    output.args = (wanted,)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    x = torch.randn(5, 6)
    assert torch.equal(traced(x), model[0](x))


def test_prepare_fx_and_convert_fx():
    quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx", reason="this torch has no torch.ao")
    from torch.ao.quantization import get_default_qconfig_mapping

    outputs = []
    for dropout in (torch.nn.Dropout(0.5), cd.GaussianDropout(0.3)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), dropout, torch.nn.Linear(6, 2)).eval()
        x = torch.randn(16, 6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.ao is deprecated, and warns of it in many ways
            prepared = quantize_fx.prepare_fx(model, get_default_qconfig_mapping("x86"), (x,))
            prepared(x)
            outputs.append(quantize_fx.convert_fx(prepared)(x))
    # In evaluation mode both are the identity; a quantised number may differ by the place of an observer.
    assert torch.allclose(outputs[0], outputs[1], atol=0.05 * outputs[0].abs().max().item())


# torch.jit.


@every_layer
@both_modes
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace(make, training):
    model = network(make, training)
    traced = torch.jit.trace(model, torch.randn(3, 6), check_trace=False)
    for rows in (3, 5):  # another batch than the one it was traced with
        x = torch.randn(rows, 6)
        assert torch.allclose(seeded(traced, x), seeded(model, x), rtol=1e-6, atol=1e-7)
    if training and make is not LAYERS["nn.Linear"]:
        assert not torch.equal(traced(x), traced(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [cd.GaussianDropout, cd.AdaptiveDropout, lambda: cd.DropConnectLinear(3, 2)])
def test_torchscript_is_refused(make):
    with pytest.raises(
        RuntimeError, match=r"^\w+: torch\.jit\.script is not supported; use torch\.compile or torch\.exp"
    ):
        torch.jit.script(make())


# The meta device.


@every_layer
@both_modes
def test_meta_device(make, training):
    model = network(make, training).to("meta")
    y = model(torch.empty(3, 6, device="meta"))
    assert y.device.type == "meta"
    assert y.shape == network(make, training)(torch.ones(3, 6)).shape


@our_layers
def test_made_on_the_meta_device_and_given_memory(make):
    with torch.device("meta"):
        model = network(make)
    outputs = []
    for each in (model.to_empty(device="cpu"), network(make)):
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.full((10_000,), 0.1), each.parameters())
        outputs.append(seeded(each, torch.ones(3, 6)))
    assert torch.equal(*outputs)


# torch.export and ONNX.


def _exported(model, export=torch.export.export, **options):
    batch = torch.export.Dim("batch", min=1, max=4096)
    return export(model, (torch.randn(3, 6),), dynamic_shapes=({0: batch},), **options)


@every_layer
def test_export_in_evaluation_mode_has_a_dynamic_batch(make):
    model = network(make, training=False)
    exported = _exported(model).module()
    for rows in (2, 3, 7, 300):
        x = torch.randn(rows, 6)
        assert torch.allclose(seeded(exported, x), seeded(model, x), rtol=1e-6, atol=1e-7)


def test_export_can_be_saved():
    model = network(LAYERS["dropconnect"], training=False)
    file = io.BytesIO()
    torch.export.save(_exported(model), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    x = torch.randn(5, 6)
    assert torch.allclose(seeded(loaded, x), seeded(model, x), rtol=1e-6, atol=1e-7)


@every_layer
@pytest.mark.filterwarnings("ignore")  # onnxscript's own
def test_onnx_in_evaluation_mode_has_a_dynamic_batch(make):
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="to run what was exported")
    model = network(make, training=False)
    file = io.BytesIO()
    _exported(copy.deepcopy(model), torch.onnx.export, dynamo=True, verbose=False).save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    # Sampled inference is exported as its limit for infinitely many draws.
    expected = copy.deepcopy(model)
    if isinstance(expected[1], cd.DropConnectLinear) and expected[1].inference == "sampled":
        expected[1].inference = "analytic"
    for rows in (1, 5, 64):
        x = torch.randn(rows, 6)
        (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert torch.allclose(torch.from_numpy(result), expected(x), rtol=1e-5, atol=1e-6)
