"""The fast path of elementwise dropout gives what the general path gives, and declines what it cannot do."""

import gc
import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_agreement import WAYS, each_dtype, each_layout, layouts, usable_instructions

import contdrop as cd
from conformance import LAWS
from contdrop import kernels
from contdrop.kernels import fast_path as express
from contdrop.kernels import native

pytestmark = pytest.mark.skipif(cd.backend().name != "native", reason="needs the native back end")
each_law = pytest.mark.parametrize("law", LAWS, ids=str)


@pytest.fixture(autouse=True)
def fast_path():
    """The function in C, which is there once the native back end has been used."""
    cd.functional.dropout(torch.ones(1), cd.Uniform())
    cd.functional.dropout(torch.ones(1), cd.Uniform())
    if not hasattr(express.dropout, "__self__"):
        pytest.skip("there is no fast path: built without Python's headers, or torch has not what it needs")
    return express.dropout


def fast(x, law, shared_axes=(), generator=None):
    return express.dropout(x, *law.for_kernels["inverted"][:3], False, shared_axes, generator)


def general(x, law, shared_axes=()):
    axes = [axis % x.dim() for axis in shared_axes]
    law = law.for_kernels["inverted"]
    return kernels.ops.dropout(x, kernels.draw_seed(None), law, axes, kernels.STREAM_MASK)


def both(x, law, shared_axes=(), seed=5):
    """What the two ways give, and the state of torch's generator afterwards."""
    results = []
    for way in (fast, general):
        torch.manual_seed(seed)
        results.append((way(x, law, shared_axes), torch.get_rng_state()))
    return results


@pytest.fixture
def nothing_is_drawn():
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@each_dtype
@each_law
def test_the_same_numbers_and_gradients_as_the_general_way(law, dtype):
    x = torch.randn(37, 91, dtype=dtype, requires_grad=True)
    weight = torch.randn(37, 91, dtype=dtype)
    (y, state), (expected, expected_state) = both(x, law)
    assert torch.equal(y, expected)
    assert torch.equal(state, expected_state)
    assert torch.equal(*(torch.autograd.grad((z * weight).sum(), x)[0] for z in (y, expected)))


def test_layers_take_it():
    x = torch.randn(8, 8, requires_grad=True)
    assert type(cd.GaussianDropout(0.3)(x).grad_fn).__name__ == "DropoutBackward"


def test_derivatives_of_second_order():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    law = cd.Gaussian(sigma=0.3)

    def function(x):
        torch.manual_seed(3)
        return fast(x * x, law)

    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda: torch.randn(5, 3).t(),
        lambda: torch.ones(()).expand(3, 5),
        lambda: torch.randn(3, 5, dtype=torch.complex64).conj().imag,
        lambda: torch._efficientzerotensor((3, 5)),
    ],
    ids=["transposed", "expanded", "negated", "zeros"],
)
def test_gradients_that_need_the_general_way(gradient):
    x = torch.randn(3, 5, requires_grad=True)
    gradient = gradient()
    results = [torch.autograd.grad(y, x, gradient)[0] for y, _ in both(x, cd.Uniform())]
    assert torch.equal(*results)
    assert results[0].any() == bool((gradient != 0).any())


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, device="meta"),
        torch.randn(3, 5, dtype=torch.complex64).conj().imag,
        "text",
        None,
    ],
    ids=["int64", "complex", "meta", "negated", "text", "None"],
)
def test_declines_tensors_that_it_cannot_read(x, nothing_is_drawn):
    assert fast(x, cd.Uniform()) is None


@each_dtype
@each_layout
def test_layouts_and_shared_axes(layout, dtype):
    x, shared_axes = layouts(dtype)[layout]
    x.requires_grad_()
    results = []
    from_behind = tuple(axis - x.dim() for axis in shared_axes)
    for way, axes in ((fast, shared_axes), (fast, from_behind), (general, shared_axes)):
        torch.manual_seed(3)
        y = way(x, cd.Gaussian(sigma=0.3), axes)
        assert y.stride() == torch.empty_like(x).stride()
        # Of a sum the gradient is expanded, of a product it is laid out like x.
        gradients = [torch.autograd.grad(z, x, retain_graph=True)[0] for z in (y.sum(), (y * x.detach()).sum())]
        results.append([y.detach(), *gradients])
    for one, other, expected in zip(*results):
        assert torch.equal(one, expected)
        assert torch.equal(other, expected)


@pytest.mark.parametrize("axes", [(2,), (-3,), (0, 0), (0, -2), ("a",), (2**70,), [0], 0], ids=str)
def test_declines_axes_that_are_none(axes, nothing_is_drawn):
    assert fast(torch.ones(3, 5), cd.Uniform(), axes) is None


def test_a_stale_build_is_not_used(monkeypatch):
    from contdrop.kernels.native import _express

    monkeypatch.setattr(_express, "interface", lambda: "interface 1")
    message = "^contdrop: the fast path for small layers was built from another version of contdrop and is not used; "
    with pytest.warns(UserWarning, match=message):
        decline = express._connect(native)
    assert decline is express._decline
    monkeypatch.delattr(_express, "interface")
    with pytest.warns(UserWarning, match=message):
        assert express._connect(native) is express._decline


def test_declines_in_a_python_without_a_global_lock(monkeypatch):
    asked = []
    monkeypatch.setattr(express.sysconfig, "get_config_var", lambda name: asked.append(name) or 1)
    assert express._connect(native) is express._decline
    assert asked == ["Py_GIL_DISABLED"]


def test_declines_subclasses_and_takes_parameters():
    class Mine(torch.Tensor):
        pass

    assert fast(torch.ones(3).as_subclass(Mine), cd.Uniform()) is None
    assert fast(torch.nn.Parameter(torch.ones(3)), cd.Uniform()) is not None


def test_declines_while_somebody_else_looks():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    answers = []

    def look(x):
        answers.append(fast(torch.ones(3), cd.Uniform()))
        return x

    with Mode():
        look(None)
    torch.func.vmap(look, randomness="same")(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        look(None)
    with cd.use_backend("reference"):
        look(None)
    assert answers == [None] * 4


def test_empty():
    assert fast(torch.empty(0, 3), cd.Uniform()).shape == (0, 3)


def test_inference_mode_first_does_not_spoil_the_rest():
    """The tensor that seeds are drawn into is made in the thread's first call."""

    def run():
        with torch.inference_mode():
            first = fast(torch.ones(4), cd.Uniform())
        return first, fast(torch.ones(4), cd.Uniform())

    with ThreadPoolExecutor(1) as pool:
        assert not torch.equal(*pool.submit(run).result())


def test_threads_draw_different_seeds():
    x, together = torch.ones(64), threading.Barrier(4)

    def run(_):
        together.wait()
        return torch.stack([fast(x, cd.Uniform()) for _ in range(200)])

    with ThreadPoolExecutor(4) as pool:
        assert len(torch.cat(list(pool.map(run, range(4)))).unique(dim=0)) == 800


def test_hooks_and_retained_gradients_see_what_they_would_of_any_function():
    x = torch.randn(4, requires_grad=True)
    y = fast(x, cd.Uniform())
    y.retain_grad()
    seen = []
    y.register_hook(seen.append)
    (2 * y).sum().backward()
    assert torch.equal(y.grad, torch.full((4,), 2.0))
    assert torch.equal(seen[0], y.grad)
    assert torch.allclose(x.grad * x, 2 * y)


def test_backward_twice():
    x = torch.randn(4, requires_grad=True)
    y = fast(x, cd.Uniform()).sum()
    assert torch.equal(*(torch.autograd.grad(y, x, retain_graph=again)[0] for again in (True, False)))


def test_nothing_leaks():
    x = torch.randn(64, requires_grad=True)
    law = cd.Gaussian(sigma=0.3)

    def rounds(n):
        for _ in range(n):
            torch.autograd.grad(fast(x, law).sum(), x)
            torch.autograd.grad(cd.functional.dropout(x, law, activation="relu").sum(), x)
            fast(torch.ones(3, dtype=torch.int64), law)
        gc.collect()
        return sys.getallocatedblocks()

    rounds(100)
    before = rounds(100)
    assert rounds(2000) - before < 1000  # one object lost in a round would be 2000


@pytest.mark.parametrize("function", ["dropout", "forward", "backward", "method_of", "connect"])
def test_wrong_arguments_are_refused(function):
    from contdrop.kernels.native import _express

    with pytest.raises(TypeError):
        getattr(_express, function)(1)


def test_wrong_law_is_refused_before_a_seed_is_drawn(nothing_is_drawn):
    with pytest.raises(ValueError, match="unpack"):
        express.dropout(torch.ones(3), "gaussian", (0.5,), 2.0, False, (), None)


def test_without_pythons_headers_everything_is_declined(monkeypatch, nothing_is_drawn):
    monkeypatch.setitem(sys.modules, "contdrop.kernels.native._express", None)
    monkeypatch.delattr("contdrop.kernels.native._express", raising=False)
    assert express._connect(native)(torch.ones(3), "uniform", (0.0, 1.0), 2.0, False, (), None) is None


# Layers with a generator of their own.


def test_own_generators_take_it(nothing_is_drawn):
    generator = torch.Generator().manual_seed(3)
    x = torch.linspace(-1, 1, 35).view(5, 7).requires_grad_()
    y = cd.GaussianDropout(sigma=0.3, generator=generator)(x)
    assert type(y.grad_fn).__name__ == "DropoutBackward"
    generator.manual_seed(4)
    y = fast(x, cd.Uniform(), generator=generator)
    after = generator.get_state()
    generator.manual_seed(4)
    seed = kernels.draw_seed(generator)
    assert torch.equal(y, kernels.ops.dropout(x, seed, WAYS["uniform"], [], kernels.STREAM_MASK))
    assert torch.equal(generator.get_state(), after)


def test_what_is_not_a_generator_of_the_cpu_is_declined():
    for wrong in (3, "text", torch.default_generator.device):
        assert fast(torch.ones(3), cd.Uniform(), generator=wrong) is None
    with pytest.raises(TypeError, match=r"dropout: expected a torch.Generator or None, got int"):
        cd.functional.dropout(torch.ones(3), cd.Uniform(), generator=3)


def test_own_generators_are_declined_while_seeds_are_recorded_or_replayed():
    generator = torch.Generator().manual_seed(3)
    for context in cd.checkpoint_context():
        with context:
            state = generator.get_state()
            assert fast(torch.ones(3), cd.Uniform(), generator=generator) is None
            assert torch.equal(generator.get_state(), state)
            assert fast(torch.ones(3), cd.Uniform()) is not None
        assert fast(torch.ones(3), cd.Uniform(), generator=generator) is not None


def test_own_generators_are_declined_in_backward():
    generator = torch.Generator().manual_seed(3)
    answers = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: answers.append(fast(torch.ones(3), cd.Uniform(), generator=generator)))
    y.sum().backward()
    assert answers == [None]


@pytest.mark.parametrize("options", [{"shared_axes": (1,)}, {"inplace": True}, {"inplace": True, "activation": "relu"}])
def test_other_options_give_the_same_numbers(options, monkeypatch):
    results = []
    for declined in (False, True):
        if declined:
            monkeypatch.setattr(express, "dropout", express._decline)
        torch.manual_seed(5)
        x = torch.randn(6, 7)
        y = cd.functional.dropout(x, cd.Gaussian(sigma=0.3), **options)
        assert (y is x) == options.get("inplace", False)
        results.append(y)
    assert torch.equal(*results)


# Rectified linear units and dropout in one pass.


def relu_both(x, law, gradient=None, **options):
    """Values and gradients in one pass, and of the two functions one after the other."""
    results = []
    for y in relu_ways(x, law, **options):
        cotangent = torch.ones_like(y) if gradient is None else gradient
        results.append((y, *torch.autograd.grad(y, x, cotangent)))
    return results


def relu_ways(x, law, **options):
    torch.manual_seed(7)
    yield cd.functional.dropout(x, law, activation="relu", **options)
    torch.manual_seed(7)
    yield cd.functional.dropout(torch.relu(x), law, **options)


@pytest.mark.parametrize("instructions", usable_instructions())
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 64, 100, 128, 200, 6143, 6144, 6150, 100_003])
@each_law
def test_relu_in_one_pass(law, size, instructions):
    x = torch.randn(size, requires_grad=True)
    weight = torch.randn(size)
    with native.use_instructions(instructions):
        (y, g), (expected_y, expected_g) = relu_both(x, law, weight)
    assert torch.equal(y, expected_y)
    assert torch.equal(g, expected_g)
    assert type(y.grad_fn).__name__ == "DropoutBackward"


@pytest.mark.parametrize(
    ("x", "gradient"),
    [
        (torch.randn(4, 6, dtype=torch.float64), None),
        (torch.randn(4, 6, dtype=torch.bfloat16), None),
        (torch.randn(6, 4).t(), None),
        (torch.randn(4, 6), torch.randn(6, 4).t()),
        (torch.randn(4, 6), torch.ones(()).expand(4, 6)),
        (torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0]), None),
    ],
    ids=["float64", "bfloat16", "transposed", "transposed-gradient", "expanded-gradient", "special"],
)
@pytest.mark.parametrize("options", [{}, {"scale": "paper"}, {"shared_axes": (0,)}], ids=str)
def test_relu_where_one_pass_is_not_possible_or_special(x, gradient, options):
    x = x.detach().requires_grad_()
    (y, g), (expected_y, expected_g) = relu_both(x, cd.Gaussian(sigma=0.3), gradient, **options)
    assert torch.equal(y.nan_to_num(7.5), expected_y.nan_to_num(7.5))
    assert torch.equal(g.nan_to_num(7.5), expected_g.nan_to_num(7.5))


def test_relu_of_a_negative_mask():
    """A law that is not clipped gives negative values too; the gradient must pass there."""
    law = cd.Gaussian(sigma=2.0, low=-math.inf, high=math.inf)
    (y, g), (expected_y, expected_g) = relu_both(torch.randn(5000, requires_grad=True), law)
    assert (y < 0).any()
    assert torch.equal(y, expected_y)
    assert torch.equal(g, expected_g)


def test_relu_second_order():
    x = torch.randn(50, requires_grad=True)
    results = []
    for y in relu_ways(x, cd.Uniform()):
        (g,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        results.append((g, *torch.autograd.grad(g.sum(), x)))
    for mine, expected in zip(*results):
        assert torch.equal(mine, expected)


def test_relu_layer_in_training_and_evaluation():
    layer = cd.GaussianDropout(0.3, activation="relu")
    assert "activation='relu'" in repr(layer)
    x = torch.randn(200)
    assert torch.equal(layer.eval()(x), torch.relu(x))
    layer.train()
    torch.manual_seed(1)
    y = layer(x)
    assert torch.equal(y == 0, (x <= 0) | (y == 0))
    with pytest.raises(ValueError, match="GaussianDropout: expected activation to be one of None, 'relu'; got 'tanh'"):
        cd.GaussianDropout(0.3, activation="tanh")
    with pytest.raises(ValueError, match="dropout: expected activation"):
        cd.functional.dropout(x, cd.Uniform(), activation="tanh")


def test_relu_result_changed_in_place_is_noticed():
    x = torch.randn(8, requires_grad=True)
    y = cd.functional.dropout(x, cd.Uniform(), activation="relu")
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("activation", [None, "relu"])
def test_compiled_autograd_follows_it(activation):
    layer = cd.Dropout(cd.Uniform(), activation=activation)
    x = torch.randn(30, generator=torch.Generator().manual_seed(0)).requires_grad_()
    layer(x)  # so that the native back end is in use
    compiler = torch.compile(backend="aot_eager")
    for _ in range(2):
        y = layer(x)
        (expected,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        x.grad = None
        with torch._dynamo.compiled_autograd._enable(compiler):
            y.square().sum().backward()
        torch.testing.assert_close(x.grad, expected)


def test_relu_compiled_is_eager():
    layer = torch.nn.Sequential(torch.nn.Linear(6, 5), cd.GaussianDropout(0.3, activation="relu"))
    results = []
    for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(2)
        results.append(run(torch.ones(4, 6)))
    assert torch.equal(*results)


@pytest.mark.parametrize("other", [torch.float16, torch.float64])
def test_relu_whose_saved_result_comes_back_in_another_type(other):
    x = torch.randn(200, 300, requires_grad=True)
    (_, expected), _ = relu_both(x, cd.Gaussian(sigma=0.3))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.to(other), lambda tensor: tensor):
        (_, found), _ = relu_both(x, cd.Gaussian(sigma=0.3))
    assert (found != expected).float().mean() < 1e-3  # float16 rounds a few small results to 0


def test_the_first_call_of_a_layer_is_a_short_walk():
    code = """
import sys, torch, contdrop as cd
layer, x, calls = cd.GaussianDropout(0.3), torch.ones(2, 3), []
def note(frame, event, _):
    place, _, name = frame.f_code.co_filename.partition("/contdrop/")[2], None, frame.f_code.co_name
    is_function = frame.f_code.co_flags & 1 and not name.startswith("<")  # neither the body of a class nor of a module
    if event == "call" and place and is_function:
        calls.append((place, name))
sys.setprofile(note)
layer(x)
sys.setprofile(None)
print(calls)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    calls = eval(result.stdout)
    assert calls[:3] == [
        ("nn.py", "forward"),
        ("functional/elementwise.py", "dropout"),
        ("kernels/fast_path.py", "_first"),
    ]
    assert len(calls) <= 12, calls
    assert len({place for place, _ in calls}) <= 8
