"""A law that changes in a compiled model compiles nothing: its numbers are inputs of the graph."""

import copy
import io
import pickle

import pytest
import torch
from torch._subclasses import FakeTensorMode

import contdrop as cd
from conformance import seeded
from contdrop import _clipped_normal

VALUES = [0.05 + 0.045 * number for number in range(20)]

pytestmark = pytest.mark.usefixtures("fresh_compiler")
laws_are_inputs = pytest.mark.skipif(
    torch.__version__ < "2.10", reason="an older torch.compile takes a law's numbers for constants"
)


class Counting:
    """A back end for torch.compile that counts graphs."""

    def __init__(self, name="aot_eager"):
        self.count = 0
        self.compile = torch._dynamo.lookup_backend(name)

    def __call__(self, graph, inputs):
        self.count += 1
        return self.compile(graph, inputs)


def _gaussian(value):
    return cd.Gaussian(sigma=value)


def _bernoulli(value):
    return cd.Bernoulli(keep=value)


LAYERS = {
    "sigma": (lambda: cd.GaussianDropout(0.5), _gaussian),
    "keep": (lambda: cd.BernoulliDropout(0.5), _bernoulli),
    "high": (lambda: cd.UniformDropout(), lambda value: cd.Uniform(0.0, value)),
    "value": (lambda: cd.Dropout(cd.Bernoulli(keep=0.3), scale="paper"), lambda v: cd.Bernoulli(keep=0.3, value=v)),
    "shared": (lambda: cd.GaussianDropout(0.5, shared_axes=(1,)), _gaussian),
    "dropconnect": (lambda: cd.DropConnectLinear(6, 4), _bernoulli),
    "dropconnect-batch": (lambda: cd.DropConnectLinear(6, 4, masks="batch", law=cd.Gaussian(sigma=0.3)), _gaussian),
    "fast": (lambda: cd.FastDropoutLinear(6, 4, law=cd.Gaussian(sigma=0.3)), _gaussian),
}


def _step(layer, x):
    x = x.clone().requires_grad_()
    y = seeded(layer, x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


@laws_are_inputs
@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "aot_eager") for name in LAYERS), ("sigma", "inductor"), ("keep", "inductor")]
)
def test_one_graph_for_twenty_laws(name, backend):
    make, law = LAYERS[name]
    layer, counting = make(), Counting(backend)
    fast = torch.compile(layer, fullgraph=True, backend=counting)
    x = torch.randn(5, 6)
    for value in VALUES:
        layer.law = law(value)
        for result, expected in zip(_step(fast, x), _step(layer, x)):
            assert torch.allclose(result, expected, rtol=1e-6, atol=1e-7)
    assert counting.count == 1


@laws_are_inputs
@pytest.mark.parametrize("name", ["sigma", "dropconnect"])
def test_evaluation_with_unscaled_masks_has_one_graph(name):
    make, law = LAYERS[name]
    layer, counting = make().eval(), Counting()
    layer.scale = "paper"
    layer.inference = "analytic"
    fast = torch.compile(layer, fullgraph=True, backend=counting)
    for value in VALUES:
        layer.law = law(value)
        assert torch.allclose(fast(torch.ones(5, 6)), layer(torch.ones(5, 6)), rtol=1e-6, atol=1e-7)
    assert counting.count == 1


@pytest.mark.parametrize(
    ("activation", "dtype"), [("relu", torch.float32), ("sigmoid", torch.float64), ("relu", torch.bfloat16)], ids=str
)
def test_sampled_inference_has_one_graph_for_all_sizes_of_batches(activation, dtype, monkeypatch):
    # So that there are several parts, more of them each time.
    monkeypatch.setattr("contdrop.functional.linear._CHUNK", 500)
    layer = cd.DropConnectLinear(6, 4, activation=activation, samples=100, dtype=dtype).eval()
    counting = Counting()
    fast = torch.compile(layer, fullgraph=True, backend=counting, dynamic=True)
    # Sums in another order: the size of the tolerance is that of roundings of a gradient.
    tolerance = 64 * torch.finfo(dtype).eps
    for rows in (3, 5, 7, 9, 12):  # no size of anything else, which the compiler would take for the same
        x = torch.randn(rows, 6, dtype=dtype)
        (y, *gradients), (expected, *expected_gradients) = _step(fast, x), _step(layer, x)
        assert torch.equal(y, expected)
        for mine, other in zip(gradients, expected_gradients, strict=True):
            assert torch.allclose(mine, other, rtol=tolerance, atol=tolerance * other.abs().max())
    assert counting.count == 1


def test_sampled_inference_is_one_node_of_a_graph(monkeypatch):
    monkeypatch.setattr("contdrop.functional.linear._CHUNK", 500)
    layer, nodes = cd.DropConnectLinear(6, 4, activation="relu", samples=100).eval(), []

    def count(graph, inputs):
        nodes.append(len(graph.graph.nodes))
        return graph.forward

    for rows in (2, 200):
        torch._dynamo.reset()
        torch.compile(layer, fullgraph=True, backend=count, dynamic=False)(torch.randn(rows, 6))
    assert nodes[0] == nodes[1]


@laws_are_inputs
def test_a_model_whose_layers_share_a_law():
    law = cd.Gaussian(sigma=0.3)
    model, counting = torch.nn.Sequential(cd.Dropout(law), cd.Dropout(law)), Counting()
    fast = torch.compile(model, fullgraph=True, backend=counting)
    for value in VALUES:
        for layer in model:
            layer.law = cd.Gaussian(sigma=value)
        assert torch.equal(seeded(fast, torch.ones(7)), seeded(model, torch.ones(7)))
    assert counting.count <= 2  # once more when the laws become two


def _loaded_elsewhere(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, map_location="meta", weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), _loaded_elsewhere],
    ids=lambda f: f.__name__,
)
def test_copies_keep_the_law_on_the_cpu(copied):
    layer = cd.GaussianDropout(0.3)
    clone = copied(layer)
    assert clone.law == layer.law
    compiled = torch.compile(clone, fullgraph=True, backend="aot_eager")
    assert torch.equal(seeded(compiled, torch.ones(9)), seeded(layer, torch.ones(9)))


def test_a_layer_may_be_made_under_every_mode():
    _clipped_normal.gauss_legendre.cache_clear()
    with torch.device("meta"), torch.inference_mode():
        layer = cd.GaussianDropout(2.0)
        law = cd.Gaussian.matching(cd.Bernoulli(keep=0.55))
        assert law.cdf(law.mean) == pytest.approx(0.5)
        assert law.quantile(0.5) == pytest.approx(law.mean)
        assert cd.Law.cdf(cd.Uniform(), 0.25) == 0.25
    assert torch.compile(layer, fullgraph=True, backend="aot_eager")(torch.ones(9, requires_grad=True)).requires_grad
    _clipped_normal.gauss_legendre.cache_clear()
    with FakeTensorMode():
        assert cd.GaussianDropout(2.0).law == layer.law
