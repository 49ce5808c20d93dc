"""The Triton back end: its random numbers and quantile in Triton's interpreter, or on a GPU if there is one.

The interpreter must be chosen before triton is imported, and torch.compile imports it. So the checks of ``TestKernels``
run in a process of their own together with the conformance suite: ``test_kernels_in_a_process_of_their_own``.
"""

import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from test_agreement import DEVICE, SEED, TESTS_TRITON, WAYS, BackEnd, assert_dropout, numbers
from torch.torch_version import TorchVersion

import contdrop as cd
from contdrop.kernels import reference

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton)", allow_module_level=True)
VERSION = importlib.metadata.version("triton")
if TorchVersion(VERSION) < "3.3":
    pytest.skip(f"the kernels need Triton 3.3, and this is {VERSION}", allow_module_level=True)

if TESTS_TRITON:
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
        """The elements of a group as the kernel for contiguous tensors gets at them."""
        place, counts = backend._columns(128 if BITS == 21 else 64 * (32 // BITS), BITS)
        drawn = backend._of_groups(seed, 0, tl.full((1,), group, tl.int64), BITS)
        tl.store(out_ptr + place, drawn.to(tl.int64), mask=counts)


class TestKernels:
    __test__ = TESTS_TRITON

    def test_the_back_end_is_the_one_under_test(self):
        with cd.use_backend("triton"):
            assert cd.backend(DEVICE).name == "triton"
        assert (DEVICE.type == "cpu") == backend._INTERPRETED

    @pytest.mark.parametrize("seed", [5, 3_000_000_000, 2**63 - 1])
    @pytest.mark.parametrize("group", [0, 2**25, 2**28 - 1, 2**28, 2**31 + 3, 2**40 + 1])
    @pytest.mark.parametrize("bits", [21, 4, 32])
    def test_groups_far_out_are_bit_equal(self, seed, group, bits):
        # Block numbers leave 32 bits at group 2^28, element numbers sooner.
        count = reference.per_group(bits)
        got = torch.empty(count, dtype=torch.int64, device=DEVICE)
        elements_of_a_group[(1,)](got, seed, group, BITS=bits)
        assert torch.equal(got, reference.elements(torch.tensor(seed), group * count, count, bits, 0).to(DEVICE))

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

    @pytest.mark.parametrize(
        ("shape", "shared_axes", "falls_back"),
        [((2, 3, 2, 3, 2), [1, 3], False), ((2, 2, 3, 2, 2, 2, 2), [1, 3, 5], True)],
    )
    def test_only_more_than_five_axes_go_to_the_reference(self, shape, shared_axes, falls_back, monkeypatch):
        monkeypatch.setattr(reference, "dropout", lambda *_: "reference")
        result = backend.dropout(numbers(*shape), SEED, WAYS["coin"], shared_axes, 0)
        assert isinstance(result, str) == falls_back

    def test_counting_in_64_bits(self, monkeypatch):
        """The strided kernel as it is compiled for more than 2^31 elements."""

        kernel = backend._strided

        class InInt64:
            def __getitem__(self, grid):
                return lambda *args, **options: kernel[grid](*args, **{**options, "INDEX": tl.int64})

        monkeypatch.setattr(backend, "_strided", InInt64())
        assert_dropout(numbers(17, 31).T, WAYS["gaussian"], back_end=BackEnd(backend))


@pytest.mark.skipif(TESTS_TRITON, reason="this is that process")
@pytest.mark.skipif(
    TorchVersion(VERSION) < "3.7" and TorchVersion(importlib.metadata.version("numpy")) >= "2.4",
    reason=f"the interpreter of Triton {VERSION} does what NumPy takes for an error since 2.4",
)
def test_kernels_in_a_process_of_their_own():
    ignored = [
        "ignore:Conversion of an array with ndim > 0:DeprecationWarning",  # what became that error
        # The interpreter computes with numpy, which warns of infinity and of half precision's small range.
        "ignore:overflow encountered in cast:RuntimeWarning",
        "ignore:invalid value encountered in multiply:RuntimeWarning",
    ]
    options = ["-q", "-p", "no:cacheprovider", *(f"-W{warning}" for warning in ignored)]
    suite = pathlib.Path(__file__).with_name("test_agreement.py")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__, suite],
        env={**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"},
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


GAUSSIAN, ONE_BIT, FOUR_BITS = (WAYS[name] for name in ("gaussian", "coin", "field"))
CALLS = {
    "dropout": lambda module: module.dropout(torch.ones(9), SEED, GAUSSIAN, [], 0),
    "dropout-bfloat16": lambda module: module.dropout(torch.ones(9).bfloat16(), SEED, ONE_BIT, [], 0),
    "dropout-shared": lambda module: module.dropout(torch.ones(4, 5, 6), SEED, GAUSSIAN, [1], 0),
    "dropout-shared-all": lambda module: module.dropout(torch.ones(4).half(), SEED, FOUR_BITS, [0], 0),
    "dropout-window": lambda module: module.dropout(torch.ones(4, 5), SEED, GAUSSIAN, [], 0, [5, 6, 1, 1]),
    "keep_where": lambda module: module.keep_where(torch.ones(9), SEED, torch.ones(9), []),
    "keep_where-shared": lambda module: module.keep_where(torch.ones(9, 4).double(), SEED, torch.ones(9, 4), [1]),
}
not_interpreted = pytest.mark.skipif(TESTS_TRITON, reason="needs a process without TRITON_INTERPRET")


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
    for name in ("_flat", "_strided"):
        monkeypatch.setattr(backend, name, Compiler(getattr(backend, name)))
    with pytest.raises(Compiled):
        call(backend)
