"""The AVX-512 kernels on any processor: compiled against SIMDe, which does every instruction in plain C++.

Slow because the compiler takes minutes over them. Needs g++ and SIMDe (Debian: libsimde-dev).
"""

import pathlib
import shutil
import subprocess

import pytest
import test_agreement as suite
import torch
from test_agreement import SEED, UNIFORM, WAYS, BackEnd, each_dtype, each_law, numbers

from contdrop.kernels import native, reference
from contdrop.kernels.native import loader

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
        patch.setattr(loader, "FILE", str(library))
        loader.library.cache_clear()
        yield
    loader.library.cache_clear()


def test_uniform_numbers_are_those_of_the_reference(emulated):
    suite.test_uniform_masks_are_the_uniform_numbers(BackEnd(native), seed=7, stream=1)


@each_dtype
@each_law
def test_masks_are_those_of_the_reference(emulated, law, dtype):
    """Bernoulli masks to the bit, others to 1e-6; contiguous and not."""
    suite.test_every_law_in_every_type(BackEnd(native), law, dtype)


def test_thresholds_are_those_of_the_reference(emulated):
    suite.assert_keep_where(numbers(20_011), numbers(20_011, seed=1).sigmoid(), back_end=BackEnd(native))


@pytest.mark.parametrize("law", [UNIFORM, WAYS["coin"], WAYS["rare"]], ids=str)
@pytest.mark.parametrize("inputs", [1, 96, 100, 784])
def test_dropconnect_is_that_of_the_reference(emulated, law, inputs):
    matrices = {"g": numbers(3, 5, seed=2), "w": numbers(5, inputs, seed=1), "x": numbers(3, inputs)}
    for wanted in matrices:
        taken = {name: matrix for name, matrix in matrices.items() if name != wanted}
        got, expected = (module.dropconnect(wanted, taken, SEED, law) for module in (native, reference))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
