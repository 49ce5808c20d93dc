"""The native back end gives the numbers of the reference back end, whatever the shape, layout, type or law."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import contdrop as cd
from conformance import LAWS, fixed
from contdrop.kernels import backends, reference

native = pytest.importorskip("contdrop.kernels.native")
try:
    native.detail()
except OSError as error:
    pytest.skip(f"no native library: {error}", allow_module_level=True)

EXTREME_LAWS = [
    cd.Bernoulli(0.0),
    cd.Bernoulli(1.0),
    cd.Uniform(-1.0, 0.5),
    cd.Gaussian(sigma=0.0),
    cd.Gaussian(sigma=0.1),
    cd.Gaussian(sigma=0.25),
    cd.Gaussian(sigma=1e6),
    cd.Gaussian(mu=3.0, sigma=0.5, low=-math.inf, high=2.0),
]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def instruction_sets():
    usable = []
    for name in ("avx512", "avx2", "portable"):
        try:
            with native.use_instructions(name):
                usable.append(name)
        except ValueError:
            continue
    return usable


@pytest.fixture(params=instruction_sets())
def instructions(request):
    with native.use_instructions(request.param):
        yield request.param


def assert_agree(got, expected, dtype):
    """To 1e-6 relative to the product, and in half precision to one rounding of it."""
    assert got.dtype == expected.dtype == dtype
    assert got.stride() == expected.stride()
    got, expected = got.double(), expected.double()
    tolerance = 1e-6 if torch.finfo(dtype).bits >= 32 else 2 * torch.finfo(dtype).eps
    assert ((got - expected).abs() <= tolerance * (1 + expected.abs())).all()


def both(function, *arguments):
    return getattr(native, function)(*arguments), getattr(reference, function)(*arguments)


@every_type
@pytest.mark.parametrize("law", [*LAWS, *EXTREME_LAWS], ids=str)
def test_every_law_and_type(law, dtype, instructions):
    # More than one stretch of 8192 elements, more than the parallel threshold, and a remainder.
    x = fixed(40_003).to(dtype)
    scale = 1 / law.mean if law.mean else 1.0
    assert_agree(*both("dropout", x, torch.tensor(2**62 + 12345), law.kind, law.params, scale, [], 1), dtype)


def test_uniform_numbers_are_equal_to_the_bit(instructions):
    x = torch.ones(100_000)
    got, expected = both("dropout", x, torch.tensor(7), "uniform", (0.0, 1.0), 1.0, [], 0)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("keep", [0.5, 0.25, 0.8125, 0.3, 0.999])
def test_bernoulli_masks_are_equal_to_the_bit(keep, instructions):
    x = torch.ones(100_000)
    got, expected = both("dropout", x, torch.tensor(7), "bernoulli", (keep,), 1 / keep, [], 0)
    assert torch.equal(got, expected)


SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 63, 64, 65])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_shape_layout_and_sharing(data):
    shape = data.draw(st.lists(SIZES, max_size=4), "shape")
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    law = data.draw(st.sampled_from([*LAWS, *EXTREME_LAWS]), "law")
    shared = data.draw(st.sets(st.integers(0, len(shape) - 1)) if shape else st.just(set()), "shared")
    order = data.draw(st.permutations(range(len(shape))), "memory order")
    steps = [data.draw(st.sampled_from([1, 1, 2, 3]), "step") for _ in shape]
    expand = data.draw(st.sets(st.integers(0, len(shape) - 1), max_size=1) if shape else st.just(set()), "expanded")
    base = fixed(*(1 if a in expand else shape[a] * steps[a] for a in order)).to(dtype)
    x = base.permute([order.index(a) for a in range(len(shape))])
    x = x[tuple(slice(None) if a in expand else slice(None, None, steps[a]) for a in range(len(shape)))]
    x = x[tuple(slice(0, shape[a]) for a in range(len(shape)))].expand(shape)
    before = x.clone()
    instructions = data.draw(st.sampled_from(instruction_sets()), "instructions")
    with native.use_instructions(instructions):
        result = both("dropout", x, torch.tensor(99), law.kind, law.params, 0.7, sorted(shared), 0)
    assert_agree(*result, dtype)
    assert torch.equal(x, before)


@settings(max_examples=40, deadline=None)
@given(length=st.integers(0, 20_000), bits=st.sampled_from([0.5, 0.75, 0.0625, 0.3]))
def test_any_length(length, bits):
    x = torch.ones(length)
    for name in instruction_sets():
        with native.use_instructions(name):
            got, expected = both("dropout", x, torch.tensor(3), "bernoulli", (bits,), 1.0, [], 0)
        assert torch.equal(got, expected)


@every_type
def test_batched_seeds(dtype):
    x = fixed(2, 3, 4, 5).to(dtype)
    seeds = torch.arange(6).view(2, 3)
    assert_agree(*both("dropout", x, seeds, "gaussian", (0.5, 0.3, 0.0, 1.0), 2.0, [3], 0), dtype)


@every_type
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 9000, 70_001])
def test_keep_where_and_normal(dtype, count, instructions):
    x, keep = fixed(count).to(dtype), fixed(count, seed=1).sigmoid().to(dtype)
    got, expected = both("keep_where", x, torch.tensor(5), keep, [])
    assert torch.equal(got, expected)
    got, expected = both("normal", torch.tensor(5), [count], dtype, torch.device("cpu"))
    # The quantile is good to 1e-6 within three standard deviations and to 1e-6 of itself beyond.
    tolerance = 2e-6 if torch.finfo(dtype).bits >= 32 else 2 * torch.finfo(dtype).eps
    assert ((got.double() - expected.double()).abs() <= tolerance * (1 + expected.double().abs())).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", [cd.Bernoulli(0.5), cd.Bernoulli(0.3), cd.Uniform(), cd.Gaussian(sigma=0.3)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 17), (7, 16, 512), (9, 33, 1030), (0, 3, 4), (2, 0, 3)])
def test_dropconnect(sizes, law, dtype, instructions):
    examples, outputs, inputs = sizes
    g, w, x = (
        fixed(*shape, seed=k).to(dtype)
        for k, shape in enumerate([(examples, outputs), (outputs, inputs), (examples, inputs)])
    )
    arguments = (torch.tensor(11), law.kind, law.params, 1.7)
    # Sums of up to n rounded products of numbers below about 4: the error grows like sqrt(n) at worst like n.
    terms = max(examples, outputs, inputs, 1)
    eps = max(torch.finfo(dtype).eps, 1e-6)
    for function, left, right in (
        ("dropconnect", x, w),
        ("dropconnect_input_gradient", g, w),
        ("dropconnect_weight_gradient", g, x),
    ):
        got, expected = both(function, left, right, *arguments)
        assert got.shape == expected.shape
        assert ((got.double() - expected.double()).abs() <= 4 * eps * (4 + math.sqrt(terms)) * 4).all()


@pytest.mark.parametrize("law", [cd.Bernoulli(0.5), cd.Gaussian(sigma=0.3)], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(law, instructions):
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            seed, rest = torch.tensor(8), (law.kind, law.params, 2.0)
            x, w, g = fixed(60, 700).float(), fixed(50, 700, seed=1).float(), fixed(60, 50, seed=2).float()
            results.append(
                [
                    native.dropout(fixed(300, 500).float(), seed, *rest, [], 0),
                    native.dropout(fixed(300, 500).float().T, seed, *rest, [0], 0),
                    native.normal(seed, [100_000], torch.float32, torch.device("cpu")),
                    native.dropconnect(x, w, seed, *rest),
                    native.dropconnect_input_gradient(g, w, seed, *rest),
                    native.dropconnect_weight_gradient(g, x, seed, *rest),
                ]
            )
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_nan_and_infinity_pass_as_in_a_multiplication(instructions):
    for dtype in DTYPES:
        x = torch.tensor([math.nan, math.inf, -math.inf, 1.0, -0.0], dtype=dtype).repeat(50)
        got, expected = both("dropout", x, torch.tensor(1), "bernoulli", (0.5,), 2.0, [], 0)
        assert torch.equal(got.nan_to_num(7, 8, 9), expected.nan_to_num(7, 8, 9))


# Which back end is in use.


def test_the_back_end_can_be_forced():
    assert cd.backend().name == "native"
    with cd.use_backend("reference"):
        assert str(cd.backend()) == "reference"
        with cd.use_backend("native"):
            assert str(cd.backend()).startswith("native (")
        assert cd.backend() == cd.Backend("reference")
    assert cd.backend().name == "native"
    with pytest.raises(ValueError, match="native, triton, reference; got 'fast'"), cd.use_backend("fast"):
        pass
    with pytest.raises(ZeroDivisionError), cd.use_backend("reference"):
        _ = 1 / 0
    assert cd.backend().name == "native"


def test_the_environment_can_force_the_back_end(monkeypatch):
    monkeypatch.setenv("CONTDROP_BACKEND", "reference")
    backends._from_environment.cache_clear()
    try:
        assert cd.backend().name == "reference"
        monkeypatch.setenv("CONTDROP_BACKEND", "fast")
        backends._from_environment.cache_clear()
        with pytest.raises(ValueError, match=r"got 'fast' \(set by CONTDROP_BACKEND\)"):
            cd.backend()
    finally:
        monkeypatch.undo()
        backends._from_environment.cache_clear()


def test_without_a_library_there_is_one_warning_and_the_same_numbers(monkeypatch):
    torch.manual_seed(0)
    expected = cd.GaussianDropout(0.3)(torch.ones(1000))

    def missing(name):
        if name == "native":
            raise OSError("the native kernels were not built")
        return reference

    backends._automatic.cache_clear()
    backends._chosen.clear()
    monkeypatch.setattr(backends, "_load", missing)
    try:
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="not built.*reference back end") as warned:
            got, *_ = (cd.GaussianDropout(0.3)(torch.ones(1000)) for _ in range(3))
        assert len(warned) == 1
        assert torch.allclose(got, expected, atol=1e-6)
    finally:
        monkeypatch.undo()
        backends._automatic.cache_clear()
        backends._chosen.clear()
