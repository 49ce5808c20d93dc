"""The Triton back end against the reference: in Triton's interpreter, or on a GPU if there is one.

The interpreter must be chosen before triton is imported, and torch.compile imports it. So without a GPU the checks of
``TestKernels`` run in a process of their own, which ``test_kernels_in_the_interpreter`` starts on this file.
"""

import importlib.metadata
import importlib.util
import inspect
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.torch_version import TorchVersion

import contdrop as cd
from conformance import LAWS, MECHANISMS, assert_pretended_numbers_are_read, fixed, output_and_gradients
from contdrop.kernels import reference
from contdrop.laws import KernelLaw

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton)", allow_module_level=True)
VERSION = importlib.metadata.version("triton")
if TorchVersion(VERSION) < "3.3":
    pytest.skip(f"the kernels need Triton 3.3, and this is {VERSION}", allow_module_level=True)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda")
RUNS_HERE = INTERPRETED or DEVICE.type == "cuda"

if RUNS_HERE:
    import triton
    import triton.language as tl

    from contdrop.kernels import triton as backend

    @triton.jit
    def quantiles(out_ptr, first, step, SIZE: tl.constexpr):
        """The quantiles of uniform numbers, the smallest of which is number 0 and the largest number 2^21 - 1."""
        k = first + step * tl.arange(0, SIZE)
        tl.store(out_ptr + tl.arange(0, SIZE), backend._quantile(backend._uniform(k)))

    @triton.jit(do_not_specialize=["seed", "group"])
    def elements_of_a_group(out_ptr, seed: tl.int64, group: tl.int64, BITS: tl.constexpr):
        """The elements of a group in the ways that kernels get at them."""
        COUNT: tl.constexpr = 96 if BITS == 21 else 64 * (32 // BITS)
        COLUMNS: tl.constexpr = 128 if BITS == 21 else COUNT
        place, counts = backend._columns(COLUMNS, BITS)
        grouped = backend._of_groups(seed, 0, tl.full((1,), group, tl.int64), BITS)
        single = backend._element(seed, 0, tl.full((COLUMNS,), group, tl.int64) * COUNT + place, BITS)
        tl.store(out_ptr + place, grouped.to(tl.int64), mask=counts)
        tl.store(out_ptr + COUNT + place, single.to(tl.int64), mask=counts)
        if BITS != 21:
            in_runs = backend._of_runs(seed, 0, tl.full((4,), group, tl.int64) * 4 + tl.arange(0, 4), BITS)
            tl.store(out_ptr + 2 * COUNT + place, in_runs.to(tl.int64))


INFINITY = math.inf
SEED = torch.tensor(1234567890123456789)
SEEDS = [0, 1, 2**31, 3_000_000_000, 2**32, 2**62 + 12345, 2**63 - 1, -1]
GAUSSIAN = KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), 2.0)
UNIFORM = KernelLaw("uniform", (0.2, 0.7), 1.5)
ONE_BIT = KernelLaw("bernoulli", (0.5,), 2.0)
FOUR_BITS = KernelLaw("bernoulli", (0.3125,), 3.2)

# Back ends may differ by 1e-6 in a mask value, and so by one rounding in the result. To bfloat16 the interpreter cuts
# off where torch and a GPU round.
ROUNDING = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
each_dtype = pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)


def tensor(*shape, dtype=torch.float32, seed=0):
    return fixed(*shape, seed=seed).to(DEVICE, dtype)


def assert_same_product(got, expected, x, scale=1.0):
    """Both are x times mask, for masks that agree to 1e-6 times the scale."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.stride() == expected.stride()
    bound = 1e-6 * abs(scale) * x.double().abs() + ROUNDING[got.dtype] * expected.double().abs()
    assert ((got.double() - expected.double()).abs() <= bound).all()


def check_dropout(x, setting, shared_axes=(), seed=SEED, stream=0):
    before = x.clone()
    got = backend.dropout(x, seed, setting, list(shared_axes), stream)
    expected = reference.dropout(x, seed, setting, list(shared_axes), stream)
    assert_same_product(got, expected, x, setting[2])
    assert torch.equal(x, before)


def layouts(dtype=torch.float32):
    """Tensors in every kind of layout, with axes to share."""
    base = tensor(3, 4, 5, 6, dtype=dtype)
    return {
        "contiguous": (tensor(37, 41, dtype=dtype), ()),
        "one": (tensor(1, 1, dtype=dtype), (0, 1)),
        "scalar": (tensor(dtype=dtype), ()),
        "empty": (tensor(3, 0, dtype=dtype), (0,)),
        "long": (tensor(3000, dtype=dtype), ()),
        "transposed": (tensor(37, 41, dtype=dtype).T, ()),
        "offset": (tensor(501, dtype=dtype)[1:], ()),
        "step": (tensor(40, 30, dtype=dtype)[3::2, 1::3], ()),
        "expanded": (tensor(1, 7, dtype=dtype).expand(5, 7), ()),
        "channels-last": (base.to(memory_format=torch.channels_last), ()),
        "channels-last-maps": (base.to(memory_format=torch.channels_last), (2, 3)),
        "maps": (base, (2, 3)),
        "rows": (base, (3,)),
        "samples": (base, (1, 2, 3)),
        "batch": (base, (0, 1, 2, 3)),
        "first": (base, (0,)),
        "every-other": (base, (0, 2)),
        "permuted-shared": (base.permute(2, 0, 3, 1), (1, 3)),
        "five-axes": (tensor(2, 3, 2, 3, 2, dtype=dtype), (1, 3)),
        "seven-axes": (tensor(2, 2, 3, 2, 2, 2, 2, dtype=dtype), (1, 3, 5)),
    }


each_layout = pytest.mark.parametrize("layout", list(layouts()))


class TestKernels:
    __test__ = RUNS_HERE

    def test_the_back_end_is_the_one_under_test(self):
        with cd.use_backend("triton"):
            assert cd.backend(DEVICE).name == "triton"
        assert backend._INTERPRETED == INTERPRETED

    # Random numbers.

    @pytest.mark.parametrize(("seed", "stream"), [*((seed, 0) for seed in SEEDS), (7, 1), (2**63 - 1, 2)])
    def test_uniform_numbers_are_bit_equal(self, seed, stream):
        seed = torch.tensor(seed)
        law = KernelLaw("uniform", (0.0, 1.0), 1.0)
        expected = reference.uniforms(reference.elements(seed, 0, 1500, 21, stream), torch.float32).to(DEVICE)
        contiguous, strided = torch.ones(1500, device=DEVICE), torch.ones(800, device=DEVICE)[::2]
        assert torch.equal(backend.dropout(contiguous, seed, law, [], stream), expected)
        assert torch.equal(backend.dropout(strided, seed, law, [], stream), expected[:400])

    @pytest.mark.parametrize("seed", [5, 3_000_000_000, 2**63 - 1])
    @pytest.mark.parametrize("group", [0, 2**25, 2**28 - 1, 2**28, 2**31 + 3, 2**40 + 1])
    @pytest.mark.parametrize("bits", [21, 4, 32])
    def test_elements_far_out_are_bit_equal(self, seed, group, bits):
        # Block numbers leave 32 bits at group 2^28, element numbers sooner.
        count = reference.per_group(bits)
        got = torch.empty(2 if bits == 21 else 3, count, dtype=torch.int64, device=DEVICE)
        elements_of_a_group[(1,)](got, seed, group, BITS=bits)
        expected = reference.elements(torch.tensor(seed), group * count, count, bits, 0).to(DEVICE)
        for way in got:
            assert torch.equal(way, expected)

    @pytest.mark.parametrize(
        "keep", [0.5, 0.75, 0.3125, 3 / 256, 12345 / 65536, 0.3, 0.9, 0.99, 0.01, 0.0, 1.0, 1 - 2.0**-40, 2.0**-40]
    )
    def test_bernoulli_masks_are_bit_equal(self, keep):
        law = KernelLaw("bernoulli", (keep,), 1.0)
        contiguous, strided = torch.ones(5000, device=DEVICE), torch.ones(2, 600, device=DEVICE).T
        for x in (contiguous, strided):
            assert torch.equal(backend.dropout(x, SEED, law, [], 0), reference.dropout(x, SEED, law, [], 0))

    @pytest.mark.parametrize(
        ("first", "step"),
        [(0, 1), (2**21 - 2**17, 1), (2**20 - 2**16, 1), (11, 16)],
        ids=["low", "high", "middle", "all"],
    )
    def test_the_normal_quantile_is_as_exact_as_it_says(self, first, step):
        size = 2**17
        got = torch.empty(size, device=DEVICE)
        quantiles[(1,)](got, first, step, SIZE=size)
        u = reference.uniforms(first + step * torch.arange(size, device=DEVICE), torch.float64)
        expected = torch.special.ndtri(u)
        error = (got.double() - expected).abs()
        assert (error <= torch.where(expected.abs() <= 2.5, 6e-7, 1.2e-6)).all()

    # Mask values.

    @each_dtype
    @pytest.mark.parametrize("law", LAWS, ids=str)
    def test_mask_values_agree(self, law, dtype):
        # The bound holds for the mask scaled to mean one, too.
        x = torch.ones(1100, dtype=dtype, device=DEVICE)
        got = backend.dropout(x, SEED, KernelLaw(law.kind, law.params, 1 / law.mean), [], 0)
        expected = reference.dropout(x, SEED, KernelLaw(law.kind, law.params, 1 / law.mean), [], 0)
        if dtype in (torch.float32, torch.float64):
            assert (got - expected).abs().max() <= 1e-6
        assert_same_product(got, expected, x)

    @each_dtype
    def test_float64_is_more_than_float32(self, dtype):
        # A uniform mask takes no approximation, so it is computed in the type of the reference.
        x = tensor(1100, dtype=dtype)
        got, expected = (
            module.dropout(x, SEED, KernelLaw("uniform", (0.1, 0.7), 1 / 3), [], 0).double()
            for module in (backend, reference)
        )
        assert ((got - expected).abs() <= 2 * ROUNDING[dtype] * expected.abs()).all()

    @pytest.mark.parametrize(
        "setting",
        [
            KernelLaw("gaussian", (0.5, 0.0, 0.0, 1.0), 2.0),
            KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), -1.0),
            KernelLaw("gaussian", (0.5, 0.3, -INFINITY, INFINITY), 0.0),
            KernelLaw("gaussian", (0.5, 1e6, 0.25, 0.75), 1.0),
            KernelLaw("uniform", (-1.0, 1.0), -2.0),
            KernelLaw("bernoulli", (0.5,), -2.0),
        ],
        ids=str,
    )
    def test_edges_of_laws(self, setting):
        check_dropout(tensor(300), setting)

    # Layouts.

    @each_layout
    @pytest.mark.parametrize("setting", [GAUSSIAN, ONE_BIT], ids=["gaussian", "bernoulli"])
    def test_layouts(self, layout, setting):
        x, shared_axes = layouts()[layout]
        check_dropout(x, setting, shared_axes)

    @pytest.mark.parametrize("layout", ["contiguous", "scalar", "step", "channels-last-maps"])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_layouts_in_other_types(self, layout, dtype):
        x, shared_axes = layouts(dtype)[layout]
        check_dropout(x, FOUR_BITS, shared_axes, stream=1)
        check_dropout(x, UNIFORM, shared_axes, stream=1)

    def test_only_more_than_five_axes_go_to_the_reference(self, monkeypatch):
        monkeypatch.setattr(reference, "dropout", lambda *_: "reference")
        for name, (x, shared_axes) in layouts().items():
            fell_back = isinstance(backend.dropout(x, SEED, ONE_BIT, shared_axes, 0), str)
            assert fell_back == (name == "seven-axes"), name

    def test_counting_in_64_bits(self, monkeypatch):
        """The strided kernel as it is compiled for more than 2^31 elements."""

        kernel = backend._strided

        class InInt64:
            def __getitem__(self, grid):
                return lambda *args, **options: kernel[grid](*args, **{**options, "INDEX": tl.int64})

        monkeypatch.setattr(backend, "_strided", InInt64())
        check_dropout(tensor(17, 31).T, GAUSSIAN)

    @pytest.mark.parametrize("seeds", [(3,), (2, 2), (0,), (2, 0)], ids=str)
    @pytest.mark.parametrize("setting", [GAUSSIAN, ONE_BIT], ids=["gaussian", "bernoulli"])
    def test_a_batch_of_seeds(self, seeds, setting):
        seed = SEED + torch.arange(math.prod(seeds)).view(seeds)
        first = len(seeds)
        x = tensor(*seeds, 5, 7)
        check_dropout(x, setting, seed=seed)
        check_dropout(x, setting, [first + 1], seed=seed)
        check_dropout(x.transpose(-1, -2), setting, [first], seed=seed)
        check_dropout(tensor(*seeds), setting, seed=seed)

    @pytest.mark.parametrize("shared_axes", [[], [1]], ids=str)
    @pytest.mark.parametrize("setting", [GAUSSIAN, ONE_BIT], ids=["gaussian", "bernoulli"])
    def test_windows_are_parts_of_the_whole(self, setting, shared_axes):
        x, keep = tensor(6, 9, 70), tensor(6, 9, 70, seed=1).sigmoid()
        part, window = (slice(2, 5), slice(0, 9), slice(3, 60)), [6, 9, 70, 2, 0, 3]
        got = backend.dropout(x[part], SEED, setting, shared_axes, 0, window)
        assert torch.equal(got, backend.dropout(x, SEED, setting, shared_axes, 0)[part])
        kept = backend.keep_where(x[part], SEED, keep[part], shared_axes, window)
        assert torch.equal(kept, backend.keep_where(x, SEED, keep, shared_axes)[part])

    @pytest.mark.parametrize("setting", [GAUSSIAN, ONE_BIT], ids=["gaussian", "bernoulli"])
    def test_examples_from_a_number_on(self, setting):
        x, weight, gradient = tensor(5, 70, seed=1), tensor(3, 70, seed=2), tensor(5, 3, seed=3)
        y = backend.dropconnect(x, weight, SEED, setting)
        assert torch.equal(backend.dropconnect(x[2:], weight, SEED, setting, 2), y[2:])
        by_x = backend.dropconnect_input_gradient(gradient, weight, SEED, setting)
        assert torch.equal(backend.dropconnect_input_gradient(gradient[2:], weight, SEED, setting, 2), by_x[2:])
        got = backend.dropconnect_weight_gradient(gradient[2:], x[2:], SEED, setting, 2)
        expected = reference.dropconnect_weight_gradient(gradient[2:], x[2:], SEED, setting, 2)
        assert torch.allclose(got, expected, rtol=0, atol=1e-5)

    # Adaptive dropout.

    @each_layout
    def test_keep_where(self, layout):
        x, shared_axes = layouts()[layout]
        arguments = (x, SEED, tensor(*x.shape, seed=1).sigmoid(), list(shared_axes))
        got, expected = backend.keep_where(*arguments), reference.keep_where(*arguments)
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()

    @each_dtype
    @pytest.mark.parametrize("keep_type", list(ROUNDING), ids=str)
    def test_keep_where_in_other_types(self, dtype, keep_type):
        x, keep = tensor(300, dtype=dtype), tensor(300, dtype=keep_type, seed=1).sigmoid()
        for part in (slice(None), slice(None, None, 2)):
            arguments = (x[part], SEED, keep[part], [])
            assert torch.equal(backend.keep_where(*arguments), reference.keep_where(*arguments))

    def test_keep_where_broadcasts_and_takes_strides_and_seeds(self):
        x = tensor(3, 10, 20)
        seeds = SEED + torch.arange(3)
        for keep in (tensor(20), tensor(3, 10, 1), tensor(3, 20, 10).mT, tensor()):
            for seed in (SEED, seeds):
                arguments = (x, seed, keep.sigmoid(), [])
                assert torch.equal(backend.keep_where(*arguments), reference.keep_where(*arguments))

    # The interpreter computes with numpy, which warns of this.
    @pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")
    def test_keep_where_multiplies_by_zero(self):
        x = torch.tensor([INFINITY, math.nan, -1.0, 2.0], device=DEVICE)
        for certain in (0.0, 1.0):
            got = backend.keep_where(x, SEED, torch.full_like(x, certain), [])
            torch.testing.assert_close(got, x * certain, rtol=0, atol=0, equal_nan=True)

    @each_dtype
    @pytest.mark.parametrize(
        ("size", "seeds"),
        [([1500], ()), ([], ()), ([0, 3], ()), ([3, 5], (3,)), ([4], (2, 1)), ([], (2,)), ([4], (0,)), ([0], (2,))],
        ids=str,
    )
    def test_standard_normal_numbers(self, size, seeds, dtype):
        seed = SEED + torch.arange(math.prod(seeds)).view(seeds)
        x = torch.ones([*seeds, *size], dtype=dtype, device=DEVICE)
        law = KernelLaw("gaussian", (0.0, 1.0, -INFINITY, INFINITY), 1.0)
        got, expected = (module.dropout(x, seed, law, [], reference.STREAM_NORMAL) for module in (backend, reference))
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert got.device == expected.device
        bound = 1.1e-6 + ROUNDING[dtype] * expected.double().abs()
        assert ((got.double() - expected.double()).abs() <= bound).all()

    # DropConnect.

    def check_dropconnect(self, x, weight, gradient, setting, seed=SEED):
        """The three contractions; the bound is that of sums in another order, of masks that differ by 1e-6."""
        mask_error = 1e-6 if setting[0] == "gaussian" else 0.0
        # |mask| is at most the scale for all the laws used here.
        sums = {
            "dropconnect": ("ni,oi->no", x, weight),
            "dropconnect_input_gradient": ("no,oi->ni", gradient, weight),
            "dropconnect_weight_gradient": ("no,ni->oi", gradient, x),
        }
        for name, (formula, left, right) in sums.items():
            got, expected = (getattr(module, name)(left, right, seed, setting) for module in (backend, reference))
            assert got.dtype == expected.dtype
            assert got.shape == expected.shape
            assert got.is_contiguous()
            sizes = torch.einsum(formula, left.double().abs(), right.double().abs()) * abs(setting[2])
            terms = max(*x.shape, *weight.shape) + 4
            unit = 2.0**-53 if got.dtype == torch.float64 else 2.0**-24
            bound = (mask_error + 2 * terms * unit) * sizes + ROUNDING[got.dtype] * expected.double().abs()
            assert ((got.double() - expected.double()).abs() <= bound).all(), name

    # With 21 bits a tile is a group of 96 inputs wide, with one bit 512, with the others 128.
    @pytest.mark.parametrize(
        ("setting", "shape"),
        [
            *((GAUSSIAN, shape) for shape in [(1, 1, 1), (3, 2, 17), (2, 9, 96), (2, 3, 192), (2, 3, 200)]),
            *((UNIFORM, shape) for shape in [(2, 11, 70), (3, 1, 128)]),
            *((ONE_BIT, shape) for shape in [(1, 1, 1), (3, 3, 17), (2, 3, 513)]),
            *((FOUR_BITS, shape) for shape in [(2, 9, 70), (2, 3, 513)]),
            *((KernelLaw("bernoulli", (0.99,), 1.5), shape) for shape in [(2, 9, 16), (2, 3, 150)]),
        ],
        ids=str,
    )
    def test_dropconnect(self, setting, shape):
        examples, outputs, inputs = shape
        x = tensor(examples, inputs, dtype=torch.float64, seed=1)
        weight = tensor(outputs, inputs, dtype=torch.float64, seed=2)
        gradient = tensor(examples, outputs, dtype=torch.float64, seed=3)
        self.check_dropconnect(x, weight, gradient, setting)

    @pytest.mark.parametrize("shape", [(0, 2, 5), (2, 0, 5), (2, 3, 0)], ids=str)
    def test_dropconnect_of_nothing(self, shape):
        examples, outputs, inputs = shape
        self.check_dropconnect(tensor(examples, inputs), tensor(outputs, inputs), tensor(examples, outputs), GAUSSIAN)

    @each_dtype
    @pytest.mark.parametrize("seed", [2**63 - 1, 3_000_000_000])
    def test_dropconnect_in_other_types(self, dtype, seed):
        tensors = (tensor(*shape, dtype=dtype, seed=1) for shape in ((2, 37), (9, 37), (2, 9)))
        self.check_dropconnect(*tensors, KernelLaw("bernoulli", (0.3,), 1.5), torch.tensor(seed))

    def test_dropconnect_takes_strides(self):
        x, weight = tensor(70, 2).T, tensor(3, 140)[:, ::2]
        self.check_dropconnect(x, weight, tensor(1, 1).expand(2, 3), FOUR_BITS)

    # As layers see it.

    def test_numbers_that_torch_pretends_are_read(self):
        assert_pretended_numbers_are_read("triton", DEVICE)

    def test_gaussian_dropout_forward_and_backward(self):
        x = tensor(40, 30)
        results = []
        for name in ("triton", "reference"):
            leaf = x.clone().requires_grad_()
            with cd.use_backend(name):
                y = cd.GaussianDropout(0.3, generator=torch.Generator().manual_seed(7))(leaf)
                (gradient,) = torch.autograd.grad(y.square().sum(), leaf)
            results.append((y.detach(), gradient))
        (y, gradient), (expected, expected_gradient) = results
        assert_same_product(y, expected, x, 2.0)
        # The gradient is 2 m^2 x with m at most 2.
        assert ((gradient - expected_gradient).abs() <= 2 * 2 * 2 * 2e-6 * x.abs()).all()
        assert not torch.equal(y, x)

    @pytest.mark.parametrize("case", MECHANISMS, ids=lambda case: case.name)
    def test_layers_equal_those_on_the_reference(self, case):
        results = []
        for name in ("triton", "reference"):
            layer = case.layer(torch.Generator().manual_seed(7)).to(DEVICE)
            with cd.use_backend(name):
                results.append(output_and_gradients(case, layer, case.rows(9).to(DEVICE)))
        for got, expected in zip(*results):
            # Sums of a dozen terms of size one or so, each off by 2e-6 at most.
            torch.testing.assert_close(got, expected, rtol=0, atol=3e-5)


@pytest.mark.skipif(RUNS_HERE, reason="the kernels were tested in this process")
@pytest.mark.skipif(
    TorchVersion(VERSION) < "3.7" and TorchVersion(importlib.metadata.version("numpy")) >= "2.4",
    reason=f"the interpreter of Triton {VERSION} does what NumPy takes for an error since 2.4",
)
def test_kernels_in_the_interpreter():
    # Before that it is a warning.
    ignored = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", ignored, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


CALLS = {
    "dropout": lambda module: module.dropout(torch.ones(9), SEED, GAUSSIAN, [], 0),
    "dropout-bfloat16": lambda module: module.dropout(torch.ones(9).bfloat16(), SEED, ONE_BIT, [], 0),
    "dropout-shared": lambda module: module.dropout(torch.ones(4, 5, 6), SEED, GAUSSIAN, [1], 0),
    "dropout-shared-all": lambda module: module.dropout(torch.ones(4).half(), SEED, FOUR_BITS, [0], 0),
    "dropout-window": lambda module: module.dropout(torch.ones(4, 5), SEED, GAUSSIAN, [], 0, [5, 6, 1, 1]),
    "keep_where": lambda module: module.keep_where(torch.ones(9), SEED, torch.ones(9), []),
    "keep_where-shared": lambda module: module.keep_where(torch.ones(9, 4).double(), SEED, torch.ones(9, 4), [1]),
    "dropconnect": lambda module: module.dropconnect(torch.ones(2, 64), torch.ones(3, 64), SEED, GAUSSIAN),
    "dropconnect-half": lambda module: module.dropconnect(
        torch.ones(2, 9).half(), torch.ones(1, 9).half(), SEED, ONE_BIT
    ),
    "input-gradient": lambda module: module.dropconnect_input_gradient(
        torch.ones(2, 3), torch.ones(3, 9), SEED, UNIFORM
    ),
    "weight-gradient": lambda module: module.dropconnect_weight_gradient(
        torch.ones(1, 3).double(), torch.ones(1, 64).double(), SEED, UNIFORM
    ),
}
not_interpreted = pytest.mark.skipif(INTERPRETED, reason="needs a process without TRITON_INTERPRET")


@not_interpreted
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_cpu_tensors_need_the_interpreter(call):
    message = (
        "contdrop: the triton back end runs on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1; "
        "got a tensor on cpu"
    )
    from contdrop.kernels import triton as backend

    with pytest.raises(RuntimeError, match=f"^{message}$"):
        call(backend)


class Compiled(Exception):  # noqa: N818
    """Raised in place of a launch."""


TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "int64": "i64"}


def kind(value, specialize):
    """The type of an argument as the compiler is told it; Triton's own function for this changes with its versions."""
    if isinstance(value, tuple):
        return tuple(kind(part, specialize) for part in value)
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[str(value.dtype).removeprefix("torch.")]
    if isinstance(value, float):
        return "fp32"
    assert type(value) is int
    if value == 1 and specialize:
        return "constexpr"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


class Compiler:
    """Stands in for a kernel: compiles it for an A100 as the launch would, where there is no GPU to launch it on."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *args, enable_fp_fusion, **kwargs):
        import triton
        from triton.backends.compiler import GPUTarget

        signature, constants = {}, {}
        values = inspect.signature(self.kernel.fn).bind(*args, **kwargs).arguments
        for number, parameter in enumerate(self.kernel.params):
            value = values[parameter.name]
            if parameter.is_constexpr:
                found = "constexpr"
            else:
                found = parameter.annotation_type or kind(value, not parameter.do_not_specialize)
            signature[parameter.name] = found
            if found == "constexpr":
                constants[(number,)] = value
            elif isinstance(found, tuple):
                constants |= {(number, i): value[i] for i, part in enumerate(found) if part == "constexpr"}
        source = triton.compiler.ASTSource(self.kernel, signature, constants)
        options = {"enable_fp_fusion": enable_fp_fusion}
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
        assert compiled.asm["cubin"]
        raise Compiled


@not_interpreted
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_kernels_compile_for_a_gpu(call, monkeypatch, tmp_path):
    """The compiler checks types and shapes more strictly than the interpreter."""
    from contdrop.kernels import triton as backend

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(backend, "_check_device", lambda device: None)
    for name in ("_flat", "_strided", "_output", "_input_gradient", "_weight_gradient"):
        monkeypatch.setattr(backend, name, Compiler(getattr(backend, name)))
    with pytest.raises(Compiled):
        call(backend)
