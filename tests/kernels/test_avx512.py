"""The AVX-512 kernels on any processor: compiled against SIMDe, which does every instruction in plain C++.

Slow because the compiler takes minutes over them. Needs g++ and SIMDe (Debian: libsimde-dev).
"""

import pathlib
import shutil
import subprocess

import pytest
import torch
from test_native import ALL_LAWS, DTYPES, EDGES, SEED, assert_dropout, assert_same_bits, numbers

import contdrop as cd
from contdrop.kernels import native, reference
from contdrop.kernels.native import loader
from contdrop.laws import KernelLaw

NATIVE = pathlib.Path(native.__file__).parent
SIMDE = pathlib.Path("/usr/include/simde/x86/avx512.h")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SIMDE.exists(), reason="needs SIMDe (Debian: apt-get install libsimde-dev)"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The library with the AVX-512 kernels in place of the portable ones, and no others."""
    directory = tmp_path_factory.mktemp("simde")
    flags = ["g++", "-std=c++17", "-O1", "-fPIC", "-w", "-DkPortable=kAvx512"]
    shim = pathlib.Path(__file__).parents[1] / "simde"
    for name, options in (("contdrop", []), ("kernels_avx512", [f"-I{shim}"])):
        source, result = NATIVE / f"{name}.cpp", directory / f"{name}.o"
        subprocess.run([*flags, *options, "-c", str(source), "-o", str(result)], check=True)
    library = directory / "emulated.so"
    subprocess.run(["g++", "-shared", *map(str, directory.glob("*.o")), "-o", str(library)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "_path", lambda: library)
        loader.library.cache_clear()
        yield
    loader.library.cache_clear()


@pytest.mark.parametrize("size", [*EDGES, 20_011])
def test_uniform_numbers_are_those_of_the_reference(emulated, size):
    drawn = reference.elements(SEED, 0, size, 21, 1)
    for dtype in (torch.float32, torch.float64):
        got = native.dropout(torch.ones(size, dtype=dtype), SEED, KernelLaw("uniform", (0.0, 1.0), 1.0), [], 1)
        assert_same_bits(got, reference.uniforms(drawn, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", ALL_LAWS, ids=str)
def test_masks_are_those_of_the_reference(emulated, law, dtype):
    """Bernoulli masks to the bit, others to 1e-6; contiguous and not."""
    for x in (numbers(13_001, dtype=dtype), numbers(41, 67, dtype=dtype).t()):
        assert_dropout(x, SEED, law, "inverted")


def test_thresholds_are_those_of_the_reference(emulated):
    x, keep = numbers(20_011), numbers(20_011, seed=1).sigmoid()
    got, expected = (module.keep_where(x, SEED, keep, []) for module in (native, reference))
    assert_same_bits(got, expected)


@pytest.mark.parametrize("law", [cd.Uniform(), cd.Bernoulli(keep=0.5), cd.Bernoulli(keep=0.99)], ids=str)
@pytest.mark.parametrize("inputs", [1, 96, 100, 784])
def test_dropconnect_is_that_of_the_reference(emulated, law, inputs):
    x, weight, gradient = numbers(3, inputs), numbers(5, inputs, seed=1), numbers(3, 5, seed=2)
    for name, left, right in [
        ("dropconnect", x, weight),
        ("dropconnect_input_gradient", gradient, weight),
        ("dropconnect_weight_gradient", gradient, x),
    ]:
        arguments = (left, right, SEED, KernelLaw(law.kind, law.params, 1.0))
        got, expected = (getattr(module, name)(*arguments) for module in (native, reference))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
