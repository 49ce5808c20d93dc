"""Which back end does the work: the automatic choice, forcing it, and doing without the native one."""

import ctypes
import functools
import os
import shutil
import subprocess
import sys

import pytest
import torch

import contdrop as cd
from contdrop.kernels import backends, fast_path, native, reference


def instead_of_the_library(file: object) -> str:
    """Code to put before the first use of the package, which then takes another file for its library."""
    return f"from contdrop.kernels.native import loader\nloader.FILE = {str(file)!r}\n"


NOT_BUILT, NOT_A_LIBRARY = instead_of_the_library("none.so"), instead_of_the_library("loader.py")
# Prints the error that a choice of a back end raises.
PRINT_ERROR = "import contdrop as cd\ntry: cd.backend()\nexcept RuntimeError as error: print(error)"
NUMBERS = """
import torch, contdrop as cd
torch.manual_seed(5)
x = torch.linspace(-1, 1, 600, requires_grad=True)
layer = cd.DropConnectLinear(600, 4, law=cd.Gaussian(sigma=0.3))
y = cd.GaussianDropout(0.3)(x)
results = [y, cd.BernoulliDropout()(x), cd.AdaptiveDropout()(x, x), layer(x[None])]
sum(result.sum() for result in results).backward()
print(torch.cat([tensor.detach().flatten() for tensor in (*results, x.grad)]).tolist())
"""


@functools.cache
def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if name != backends.VARIABLE}
    # torch 2.6 itself leaves a directory behind.
    command = [sys.executable, "-W", "always", "-W", "ignore:Implicitly cleaning up:ResourceWarning", "-c", code]
    return subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=False)


@pytest.fixture
def calls(monkeypatch):
    """Records which back end's functions are called."""
    seen = []
    for name, module in (("native", native), ("reference", reference)):
        for function in ("dropout", "keep_where", "dropconnect"):
            original = getattr(module, function)

            def recorder(*args, _name=name, _original=original, _function=function):
                wanted = f"-{args[0]}" if _function == "dropconnect" else ""
                seen.append((_name, f"{_function}{wanted}"))
                return _original(*args)

            monkeypatch.setattr(module, function, recorder)
    return seen


# The automatic choice.


def test_the_cpu_is_served_by_the_native_back_end():
    assert cd.backend() == cd.backend("cpu") == cd.backend(torch.device("cpu")) == cd.Backend("native", native.detail())
    assert str(cd.backend()) == f"native ({native.detail()})"


def test_devices_without_a_back_end_of_their_own_are_served_by_the_reference():
    assert cd.backend("mps") == cd.Backend("reference")
    assert str(cd.backend("mps")) == "reference"


# Forcing it.


def test_use_backend_nests_and_restores():
    automatic = cd.backend()
    with cd.use_backend("reference"):
        assert cd.backend().name == "reference"
        with cd.use_backend("native"):
            assert cd.backend().name == "native"
            with cd.use_backend("native"):
                pass
            assert cd.backend().name == "native"
        assert cd.backend().name == "reference"
    assert cd.backend() == automatic


def test_use_backend_restores_after_an_exception(calls):
    with pytest.raises(KeyError), cd.use_backend("reference"):
        raise KeyError
    assert cd.backend().name == "native"
    cd.functional.adaptive_dropout(torch.ones(3), torch.ones(3))
    assert calls == [("native", "keep_where")]


@pytest.mark.parametrize("name", ["cuda", "", "Native", "backends"])
def test_unknown_back_ends_are_refused(name):
    message = rf"contdrop: expected a back end of native, triton, reference; got '{name}'"
    with pytest.raises(ValueError, match=message), cd.use_backend(name):
        pass
    assert cd.backend().name == "native"


def test_a_back_end_that_is_not_there_is_refused():
    code = """
import contdrop as cd
try:
    with cd.use_backend("native"):
        pass
except RuntimeError as error:
    print(error)
with cd.use_backend("reference"):
    print(cd.backend())
"""
    result = run(NOT_BUILT + code)
    expected = "contdrop: the native back end cannot be used here: the native kernels were not built\nreference\n"
    assert (result.stdout, result.stderr) == (expected, "")


def every_operator(x: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(3, x.shape[1], dtype=x.dtype)
    y = cd.functional.dropout(x, cd.Gaussian(sigma=0.3))
    z = cd.functional.adaptive_dropout(y, x)
    connected = cd.functional.dropconnect_linear(z, weight)
    return connected.sum() + cd.functional.fast_dropout_linear(z, weight, None, cd.Bernoulli(keep=0.5)).sum()


FORWARD = ["dropout", "keep_where", "dropconnect-g", "dropout"]  # fast dropout draws normal numbers as a mask
BACKWARD = ["dropout", "dropconnect-x", "keep_where", "dropout"]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", ["native", "reference"])
def test_forward_and_backward_use_the_forced_back_end(calls, name, mode):
    run_all = every_operator
    if mode == "compiled":
        torch.compiler.reset()
        run_all = torch.compile(every_operator, backend="aot_eager", fullgraph=True)
    # The first layer takes the fast path, if there is one, which calls none of these functions.
    cd.functional.dropout(torch.ones(1), cd.Uniform())
    calls.clear()
    fast = int((name, mode) == ("native", "eager") and hasattr(fast_path.dropout, "__self__"))
    x = torch.ones(4, 8, requires_grad=True)
    with cd.use_backend(name):
        total = run_all(x)
        assert calls == [(name, function) for function in FORWARD[fast:]]
        calls.clear()
        total.backward()
    assert calls == [(name, function) for function in BACKWARD[: len(BACKWARD) - fast]]


def test_a_compiled_function_follows_the_choice_without_compiling_again(calls):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: cd.functional.dropout(x, cd.Uniform()), backend="aot_eager", fullgraph=True, dynamic=False
    )
    x = torch.ones(5)
    with torch.compiler.set_stance("default"):
        compiled(x)
    with torch.compiler.set_stance("fail_on_recompile"):
        with cd.use_backend("reference"):
            compiled(x)
        compiled(x)
    assert calls == [("native", "dropout"), ("reference", "dropout"), ("native", "dropout")]


def test_backward_may_use_another_back_end_than_forward(calls):
    x = torch.ones(1000, requires_grad=True)
    with cd.use_backend("reference"):
        y = cd.functional.dropout(x, cd.Gaussian(sigma=0.3))
    y.sum().backward()
    assert calls == [("reference", "dropout"), ("native", "dropout")]
    torch.testing.assert_close(x.grad, y.detach(), rtol=0, atol=2e-6)  # the scale is 2


# The environment variable.


@pytest.mark.parametrize(
    ("name", "expected"),
    [("native", "native native"), ("reference", "reference reference"), ("", "native reference")],
)
def test_the_environment_forces_a_back_end_unless_it_is_empty(name, expected):
    result = run("import contdrop as cd; print(cd.backend().name, cd.backend('mps').name)", CONTDROP_BACKEND=name)
    assert (result.stdout, result.stderr) == (f"{expected}\n", "")


def test_use_backend_wins_over_the_environment():
    code = "import contdrop as cd\nwith cd.use_backend('native'): print(cd.backend().name)\nprint(cd.backend().name)"
    assert run(code, CONTDROP_BACKEND="reference").stdout == "native\nreference\n"


@pytest.mark.parametrize(
    ("variable", "name", "expected"),
    [
        ("CONTDROP_BACKEND", "quick", "a back end of native, triton, reference"),
        ("CONTDROP_INSTRUCTIONS", "sse9", "an instruction set of avx512, avx2, neon, portable"),
    ],
)
def test_an_unknown_name_in_the_environment_is_refused_at_every_use(variable, name, expected):
    code = """
import torch, contdrop as cd
for use in (cd.backend, lambda: cd.functional.dropout(torch.ones(3), cd.Uniform())):
    try:
        use()
    except ValueError as error:
        print(error)
"""
    result = run(code, **{variable: name})
    message = f"contdrop: expected {expected}; got {name!r} (set by {variable})\n"
    assert (result.stdout, result.stderr) == (message * 2, "")


def test_a_back_end_of_the_environment_that_is_not_there_is_refused():
    expected = "contdrop: the native back end cannot be used here: the native kernels were not built"
    assert run(NOT_BUILT + PRINT_ERROR, CONTDROP_BACKEND="native").stdout == f"{expected} (set by CONTDROP_BACKEND)\n"


# Without the native library.


@pytest.mark.parametrize("start", [NOT_BUILT, NOT_A_LIBRARY], ids=["not-built", "not-a-library"])
def test_without_the_library_the_reference_gives_the_same_numbers_after_one_warning(start):
    with_native, without = run(NUMBERS), run(start + NUMBERS)
    assert with_native.stderr == ""
    assert without.stderr.count("Warning") == 1, without.stderr
    assert "contdrop: the native back end cannot be used here" in without.stderr
    assert "using the reference back end, which gives the same numbers but is slower" in without.stderr
    got, expected = (torch.tensor(eval(result.stdout)) for result in (without, with_native))
    assert len(expected) == 4 * 600 + 4  # three elementwise results, one of four outputs, and the gradient
    # Masks agree to 1e-6 and are scaled by 2; an output of DropConnect adds up 600 of them, times weights below 0.05.
    assert (got - expected).abs().max() <= 2e-6 * 600 * 0.05
    assert (got - expected)[: 3 * 600].abs().max() <= 2e-6


# A library that was built from another version.


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    """Builds a library whose interface is another one, and that crashes if it is used all the same."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")

    def build(source: str) -> str:
        place = tmp_path_factory.mktemp("stale")
        (place / "stale.c").write_text(source)
        subprocess.run(
            ["cc", "-shared", "-fPIC", str(place / "stale.c"), "-o", str(place / "_contdrop.so")], check=True
        )
        return instead_of_the_library(place / "_contdrop.so")

    return build


CRASH = "#include <stdlib.h>\nvoid contdrop_instructions(void) { abort(); }\n"
STALE = {
    "older-than-the-handshake": CRASH,
    "other-structures": CRASH + 'const char* contdrop_interface(void) { return "interface 1; masks 3"; }',
}


@pytest.mark.parametrize("source", STALE.values(), ids=STALE)
def test_a_stale_library_is_not_used(stale, source):
    result = run(stale(source) + NUMBERS)
    assert result.returncode == 0, result.stderr
    assert result.stdout == run(NOT_BUILT + NUMBERS).stdout
    assert result.stderr.count("Warning") == 1, result.stderr
    expected = (
        "contdrop: the native back end cannot be used here (_contdrop.so was built from another version of contdrop; "
        "reinstall contdrop to rebuild it); using the reference back end, which gives the same numbers but is slower"
    )
    assert expected in result.stderr


def test_a_stale_library_is_refused_where_it_is_forced(stale):
    expected = (
        "contdrop: the native back end cannot be used here: _contdrop.so was built from another version of contdrop; "
        "reinstall contdrop to rebuild it (set by CONTDROP_BACKEND)\n"
    )
    assert run(stale(CRASH) + PRINT_ERROR, CONTDROP_BACKEND="native").stdout == expected


def test_every_difference_of_the_interface_is_seen(monkeypatch):
    described = native.library().contdrop_interface().decode()
    assert described == native.loader.interface()
    monkeypatch.setattr(reference, "MASKS_VERSION", reference.MASKS_VERSION + 1)
    assert described != native.loader.interface()
    monkeypatch.undo()

    class Longer(ctypes.Structure):
        _fields_ = (*native.loader.KeepWhere._fields_, ("more", ctypes.c_int64))

    Longer.__name__ = "KeepWhere"
    monkeypatch.setattr(native.loader, "KeepWhere", Longer)
    assert described != native.loader.interface()


# The instruction set.


@pytest.mark.parametrize(("name", "expected"), [("portable", "native (portable)"), ("", str(cd.backend()))])
def test_the_environment_chooses_an_instruction_set(name, expected):
    assert run("import contdrop as cd; print(cd.backend())", CONTDROP_INSTRUCTIONS=name).stdout == f"{expected}\n"


@pytest.mark.skipif(str(cd.backend()) == "native (avx512)", reason="this CPU has all instruction sets")
def test_an_instruction_set_that_this_cpu_lacks_is_refused():
    result = run(PRINT_ERROR, CONTDROP_INSTRUCTIONS="avx512")
    expected = "contdrop: this CPU does not have the instruction set avx512 (set by CONTDROP_INSTRUCTIONS)\n"
    assert (result.stdout, result.stderr) == (expected, "")
