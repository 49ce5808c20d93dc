"""The native back end beyond what ``test_agreement.py`` asks of all: tiles, rounding, contractions, threads, memory."""

import contextlib
import ctypes
import functools
import gc
import math
import pathlib
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_agreement import (
    ALL_ONES,
    DTYPES,
    KERNEL_LAWS,
    NORMAL,
    SEED,
    UNIFORM,
    WAYS,
    BackEnd,
    assert_close,
    assert_dropout,
    assert_same_bits,
    each_dtype,
    each_set,
    fuzzed,
    largest,
    mask_error,
    numbers,
    usable_instructions,
)

import contdrop as cd
import oracles
import sanitizer_fuzz
from conformance import INFINITY
from contdrop.kernels import native, ops, reference
from contdrop.kernels.native import loader
from contdrop.laws import KernelLaw

any_law = st.sampled_from(list(KERNEL_LAWS.values()))


@contextlib.contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Elementwise dropout.


@each_set
@each_dtype
@pytest.mark.parametrize(
    "make",
    [
        *(lambda dtype, n=n: numbers(n, 40, dtype=dtype).t() for n in (300, 512, 800, 1024, 1500)),
        lambda dtype: numbers(2, 30, 20, 31, dtype=dtype).contiguous(memory_format=torch.channels_last),
    ],
    ids=["300", "512", "800", "1024", "1500", "images"],
)
def test_tiles_of_every_shape(instructions, dtype, make):
    """Rows of the mask made together, or each in a piece of its own, a whole number of lines and not."""
    for name in ("coin", "uniform", "gaussian"):
        assert_dropout(make(dtype), WAYS[name], back_end=BackEnd(native, instructions))


@each_set
@each_dtype
def test_rows_that_share_a_value_end_in_any_lane(instructions, dtype):
    for length in (*range(14, 50), 250, 255, 256, 257):
        for rows in (1, 2, 37):
            for name in ("coin", "gaussian"):
                x = numbers(rows, length, dtype=dtype)
                assert_dropout(x, WAYS[name], (1,), back_end=BackEnd(native, instructions))


@functools.cache
def exact_quantiles() -> torch.Tensor:
    return reference.dropout(torch.ones(2_000_000), SEED, NORMAL, [], 0)


@each_set
@pytest.mark.parametrize("reach", [1.0, 1.7, 1.71, 2.55, 2.56, INFINITY])
def test_all_quantiles_agree_to_the_tails(instructions, reach):
    """The kernels have a formula of their own for laws that are clipped within 1.7 and 2.55 standard deviations."""
    with native.use_instructions(instructions):
        got = native.dropout(torch.ones(2_000_000), SEED, KernelLaw("gaussian", (0.0, 1.0, -reach, reach), 1.0), [], 0)
    assert exact_quantiles().abs().max() > 4.8
    assert (got - exact_quantiles().clamp(-reach, reach)).abs().max() <= 1e-6


def test_more_axes_than_the_kernels_take_fall_back_to_the_reference():
    x = numbers(2**17).view([2] * 17).permute(list(reversed(range(17))))
    assert_dropout(x, UNIFORM, back_end=BackEnd(native))


@each_set
@each_dtype
def test_nan_and_infinity_come_out_as_from_a_multiplication(instructions, dtype):
    info = torch.finfo(dtype)
    special = [math.nan, INFINITY, -INFINITY, 0.0, -0.0, info.max, -info.max, info.tiny, info.tiny * info.eps]
    x = torch.tensor(special, dtype=dtype).repeat(30)
    wide = torch.ones(len(x), dtype=reference.compute_dtype(dtype))
    back_end = BackEnd(native, instructions)
    for law in KERNEL_LAWS.values():
        expected = (x.to(wide.dtype) * back_end.dropout(wide, SEED, law, [], 0)).to(dtype)
        for same in (x, torch.stack([x, x], 1)[:, 0]):
            result = back_end.dropout(same, SEED, law, [], 0)
            assert torch.equal(result.isnan(), expected.isnan())
            assert_same_bits(result.nan_to_num(nan=1.0), expected.nan_to_num(nan=1.0))


@each_set
@pytest.mark.parametrize(
    "law", [cd.Gaussian(sigma=0.3), cd.Gaussian(sigma=0.2), cd.Uniform(), cd.Bernoulli(keep=0.8)], ids=str
)
def test_bfloat16_products_are_rounded_to_nearest(instructions, law):
    x = numbers(20_000).bfloat16()
    arguments = (SEED, law.for_kernels["inverted"], [], 0)
    with native.use_instructions(instructions):
        mask, got = native.dropout(torch.ones(len(x)), *arguments), native.dropout(x, *arguments).double()
    exact = (x.float() * mask).double()
    half_a_step = torch.exp2(torch.frexp(exact).exponent.double() - 9)
    assert ((got - exact).abs() <= half_a_step).all()


@each_set
@pytest.mark.parametrize("law", [cd.Gaussian(sigma=0.5, low=0.25, high=0.75), cd.Bernoulli(keep=0.8)], ids=str)
def test_where_many_products_are_halfway_bfloat16_rounds_ties_to_even(instructions, law):
    x = numbers(20_000).bfloat16()
    scale = 1.0 if law.kind == "gaussian" else 1.25
    arguments = (SEED, KernelLaw(law.kind, law.params, scale), [], 0)
    with native.use_instructions(instructions):
        mask = native.dropout(torch.ones(len(x)), *arguments)
        got = native.dropout(x, *arguments)
        strided = native.dropout(torch.stack([x, x], 1)[:, 0], *arguments)
    short = (mask == 0.75) | (mask == 1.25)
    product = x.float() * mask
    ties = short & (product.view(torch.int32) & 0xFFFF == 0x8000)
    assert ties.sum() > 500
    for result in (got, strided):
        assert_same_bits(result[short], product.bfloat16()[short])


# What the operators are given must arrive: each of these once went wrong somewhere in a package of this kind.


def test_tensors_without_memory_do_not_crash():
    """torch's efficient zeros have a null pointer; forward-mode differentiation makes them."""
    code = (
        "import torch, contdrop as cd\n"
        "print(cd.functional.dropout(torch._efficientzerotensor(3), cd.Uniform()).tolist())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "[0.0, 0.0, 0.0]\n", f"exit code {result.returncode}: {result.stderr}"


# The other operators.


def operands(wanted: str, examples: int, outputs: int, inputs: int, make) -> tuple[dict[str, torch.Tensor], int]:
    """The matrices that a contraction takes, and over how many terms it sums."""
    sizes = {"n": examples, "o": outputs, "i": inputs}
    taken = {name: axes for name, axes in reference.AXES.items() if name != wanted}
    (summed,) = sizes.keys() - set(reference.AXES[wanted])
    return {name: make(*(sizes[axis] for axis in axes)) for name, axes in taken.items()}, sizes[summed]


@each_set
@fuzzed
@given(
    wanted=st.sampled_from("gwx"),
    examples=st.sampled_from([0, 1, 2, 3, 7, 33]),
    outputs=st.sampled_from([0, 1, 5, 8, 9, 17]),
    inputs=st.sampled_from([0, 1, 15, 16, 17, 31, 63, 64, 65, 127, 129, 511, 512, 513]),
    law=any_law,
    dtype=st.sampled_from(DTYPES),
    transposed=st.booleans(),
)
def test_dropconnect_agrees(instructions, wanted, examples, outputs, inputs, law, dtype, transposed):
    def make(rows, columns):
        return numbers(columns, rows, dtype=dtype, seed=rows).t() if transposed else numbers(rows, columns, dtype=dtype)

    matrices, terms = operands(wanted, examples, outputs, inputs, make)
    wide = {name: matrix.double() for name, matrix in matrices.items()}
    (exact,) = reference.dropconnect(wanted, wide, SEED, law)
    # The sizes of the terms, added up without their masks.
    (sizes,) = reference.dropconnect(wanted, {name: matrix.abs() for name, matrix in wide.items()}, SEED, ALL_ONES)
    # A term takes three roundings (the mask value, two products) and a sum as many as it has terms.
    unit = oracles.UNIT_ROUNDOFF[reference.compute_dtype(dtype)]
    error = sizes * (mask_error(law, dtype) + (terms + 4) * unit * largest(law) * abs(law.factor))
    (got,) = BackEnd(native, instructions).dropconnect(wanted, matrices, SEED, law)
    assert_close(got, exact.to(dtype), error)


@each_set
@fuzzed
@given(
    examples=st.sampled_from([0, 1, 3, 33]),
    outputs=st.sampled_from([0, 1, 5, 64, 81]),
    inputs=st.sampled_from([0, 1, 16, 17, 95, 96, 97, 513]),
    law=st.sampled_from([law._replace(factor=1.0) for law in KERNEL_LAWS.values()]),
    dtype=st.sampled_from(DTYPES),
    first_example=st.sampled_from([0, 7]),
)
def test_both_gradients_from_one_draw_agree_with_one_by_one(
    instructions, examples, outputs, inputs, law, dtype, first_example
):
    g, w, x = (numbers(*shape, dtype=dtype) for shape in ((examples, outputs), (outputs, inputs), (examples, inputs)))
    arguments = (SEED, law, first_example)
    back_end = BackEnd(native, instructions)
    by_x, by_weight = back_end.dropconnect("xw", {"g": g, "w": w, "x": x}, *arguments)
    assert_same_bits(by_weight, *back_end.dropconnect("w", {"g": g, "x": x}, *arguments))
    (expected,) = back_end.dropconnect("x", {"g": g, "w": w}, *arguments)
    (sizes,) = back_end.dropconnect("x", {"g": g.double().abs(), "w": w.double().abs()}, SEED, ALL_ONES)
    # The same terms, added up in another order.
    unit = oracles.UNIT_ROUNDOFF[reference.compute_dtype(dtype)]
    assert_close(by_x, expected, 2 * (outputs + 4) * unit * sizes * largest(law))


@each_set
@pytest.mark.parametrize("team_size", [1, 2, 3, 7, 16])
def test_both_gradients_do_not_depend_on_how_the_work_is_split(instructions, team_size):
    # More examples than are done at a time.
    g, w, x = numbers(700, 70), numbers(70, 97, seed=1), numbers(700, 97, seed=2)
    arguments = ("xw", {"g": g, "w": w, "x": x}, SEED, WAYS["gaussian"])
    with native.use_instructions(instructions):
        with threads(1):
            alone = native.dropconnect(*arguments)
        with team(team_size) as calls, threads(2):
            split = native.dropconnect(*arguments)
    assert len(calls) > 2  # a round takes two at most
    for one, other in zip(alone, split):
        assert_same_bits(one, other)


@each_set
@each_dtype
@pytest.mark.parametrize("keep", [0.5, 0.75, 0.3])
@pytest.mark.parametrize("wanted", reference.AXES)
def test_dropconnect_of_small_whole_numbers_is_exact(instructions, wanted, keep, dtype):
    def make(rows, columns):
        return (numbers(rows, columns, seed=rows).round().clamp(-1, 1)).to(dtype)

    arguments = (wanted, operands(wanted, 11, 19, 200, make)[0], SEED, KernelLaw("bernoulli", (keep,), 1.0))
    with native.use_instructions(instructions):
        assert torch.equal(*native.dropconnect(*arguments), *reference.dropconnect(*arguments))


# Threads.


def large_calls(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every operator on more elements than are worth a second thread."""
    results = {}
    for law in (NORMAL, *(WAYS[name] for name in ("coin", "threshold", "uniform", "gaussian"))):
        arguments = (SEED, law)
        x = numbers(70_001, dtype=dtype)
        results[f"flat {law}"] = native.dropout(x, *arguments, [], 0)
        results[f"strided {law}"] = native.dropout(torch.stack([x, x], 1)[:, 1], *arguments, [], 0)
        results[f"transposed {law}"] = native.dropout(x[:70_000].view(350, 200).t(), *arguments, [], 0)
        results[f"shared {law}"] = native.dropout(x[:70_000].view(7, 100, 100), *arguments, [1], 0)
        for wanted in reference.AXES:
            matrices, _ = operands(wanted, 37, 29, 131, lambda *shape: numbers(*shape, dtype=dtype, seed=shape[0]))
            (results[f"{wanted} {law}"],) = native.dropconnect(wanted, matrices, *arguments)
    results["keep_where"] = native.keep_where(x, SEED, numbers(70_001, dtype=dtype, seed=1).sigmoid(), [])
    return results


@each_set
@each_dtype
def test_the_number_of_threads_changes_no_bit(instructions, dtype):
    with native.use_instructions(instructions):
        with threads(1):
            alone = large_calls(dtype)
        with threads(2):
            together = large_calls(dtype)
    for name, result in alone.items():
        assert_same_bits(together[name], result)


@contextlib.contextmanager
def team(size: int):
    """Replaces OpenMP by a team of any size whose members work one after the other, last first; yields its calls."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    member, calls = [0], []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def start(work, job, wanted, _flags):
        calls.append(wanted)
        for member[0] in reversed(range(size)):
            function(work)(job)

    number, count = (ctypes.CFUNCTYPE(ctypes.c_int)(f) for f in (lambda: member[0], lambda: size))
    openmp = loader._openmp()
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    use_threads = loader.library().contdrop_use_threads
    use_threads(*(ctypes.cast(f, ctypes.c_void_p) for f in (start, number, count)))
    try:
        yield calls
    finally:
        use_threads(*(ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in names))


@each_set
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_how_the_work_is_split_changes_no_bit(instructions, size):
    with native.use_instructions(instructions), threads(1):
        alone = large_calls(torch.float32)
    with native.use_instructions(instructions), team(size) as calls, threads(2):
        split = large_calls(torch.float32)
    assert len(calls) == len(alone)
    assert set(calls) == {2}
    for name, result in alone.items():
        assert_same_bits(split[name], result)


def test_small_calls_start_no_threads():
    with team(2) as calls, threads(2):
        native.dropout(numbers(16_000), SEED, UNIFORM, [], 0)
        native.keep_where(numbers(16_000), SEED, numbers(16_000, seed=1).sigmoid(), [])
    assert calls == []


def test_the_openmp_library_is_the_one_torch_uses():
    loaded = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    assert loader._openmp() is not None
    # Other packages, which other tests of this process may have imported, bring copies of their own.
    ours = {path for path in loaded if ("libgomp" in path or "libiomp" in path) and "scikit_learn" not in path}
    assert len(ours) == 1


def test_the_openmp_library_may_be_beside_torch(monkeypatch, tmp_path):
    """As in torch's wheels for aarch64."""
    library = tmp_path / "torch.libs" / "libgomp-1234.so.1.0.0"
    library.parent.mkdir()
    library.symlink_to(loader._openmp()._name)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    assert loader._openmp()._name == str(library)


# Memory.


def test_dropconnect_needs_less_than_10_megabytes():
    """Forward and backward of 800 x 800 weights for 100 examples, whose masks would take 256 MB.

    In a process of its own, because the largest size of a process never goes down. A small layer runs first, so that
    the threads and the code are there; then the kernel is asked to forget the largest size so far (Linux only).
    """
    code = """
import pathlib, resource, torch, contdrop as cd
assert cd.backend().name == "native"
layer, small = cd.DropConnectLinear(800, 800, law=cd.Gaussian(sigma=0.3)), cd.DropConnectLinear(200, 200)
x = torch.randn(100, 800, requires_grad=True)
small(x[:, :200]).sum().backward()
pathlib.Path("/proc/self/clear_refs").write_text("5")
status = lambda name: int(pathlib.Path("/proc/self/status").read_text().split(name + ":")[1].split()[0])
before = status("VmRSS")
layer(x).sum().backward()
print(status("VmHWM") - before)
"""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the largest size of a process cannot be reset here: {error}")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # 3.2 MB of it are the output and the gradients.
    assert int(result.stdout) < 10_000, f"{result.stdout} kB"


@pytest.mark.parametrize("way", ["short", "operator"])
def test_elementwise_dropout_saves_less_than_100_bytes_for_backward(way):
    law = WAYS["gaussian"] if way == "short" else WAYS["gaussian"].tensor()
    x = torch.ones(1000, 1000, requires_grad=True)
    saved = []
    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if type(thing) is torch.Tensor}
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        y = ops.dropout(x, torch.tensor(5), law, [], 0)
    alive = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor and id(thing) not in before]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in (*saved, *alive)}
    storages.pop(y.untyped_storage().data_ptr())
    assert 8 <= sum(storages.values()) < 100  # the seed is among them
    y.sum().backward()
    assert_same_bits(x.grad, y.detach())


# Instruction sets.


def test_the_best_instruction_set_is_in_use():
    assert native.detail() == usable_instructions()[0]


def test_use_instructions_nests_and_restores():
    best = native.detail()
    with native.use_instructions("portable"):
        for name in usable_instructions():
            with native.use_instructions(name):
                assert native.detail() == name
                assert str(cd.backend()) in (f"native ({name})", "reference")
            assert native.detail() == "portable"
        with pytest.raises(KeyError), native.use_instructions(best):
            raise KeyError
        assert native.detail() == "portable"
    assert native.detail() == best


def test_unknown_instructions_are_refused():
    message = "expected one of avx512, avx2, neon, portable that this CPU has, got 'sse'"
    with pytest.raises(ValueError, match=message), native.use_instructions("sse"):
        pass


# Sanitizers.


def run_sanitizers(*options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, sanitizer_fuzz.__file__, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    if reason := sanitizer_fuzz.missing():
        pytest.skip(reason)
    return sanitizer_fuzz.build(tmp_path_factory.mktemp("sanitized"), portable=True)


def test_sanitizers_find_nothing(sanitized):
    result = run_sanitizers("--library", str(sanitized), "--cases", "84")
    assert result.returncode == 0, result.stdout + result.stderr


def test_sanitizers_would_find_an_overrun(sanitized):
    result = run_sanitizers("--library", str(sanitized), "--cases", "1", "--overrun")
    assert result.returncode == 1
    assert "heap-buffer-overflow" in result.stdout


@pytest.mark.slow
def test_sanitizers_find_nothing_in_a_thousand_calls_of_every_instruction_set():
    if reason := sanitizer_fuzz.missing():
        pytest.skip(reason)
    result = run_sanitizers("--cases", "1000", "--seed", "1")
    assert result.returncode == 0, result.stdout + result.stderr
