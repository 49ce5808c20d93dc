"""The NEON kernels on any processor: cross-compiled as a wheel for aarch64 has them, and run in an emulator.

Slow because the compiler takes most of a minute. Needs cmake, g++, its cross-compiling sister and qemu.
"""

import itertools
import pathlib
import shutil
import struct
import subprocess

import pytest
from test_agreement import usable_instructions

import sanitizer_fuzz
from contdrop.kernels.native import loader

ROOT = pathlib.Path(__file__).parents[2]
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MISSING = [tool for tool in ("cmake", "g++", CROSS, EMULATOR) if shutil.which(tool) is None]
CASES = 1000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"needs {', '.join(MISSING)} (Debian: apt-get install cmake g++ g++-aarch64-linux-gnu qemu-user)",
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The library as CMakeLists.txt builds it for aarch64, and what replays calls there and here."""
    directory = tmp_path_factory.mktemp("aarch64")
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={CROSS}"]
    for command in (
        ["cmake", "-S", ROOT, "-B", directory, *system],
        ["cmake", "--build", directory, "--target", "native", "--parallel", "2"],
        [CROSS, "-std=c++17", "-O1", ROOT / "tests" / "replay.cpp", "-o", directory / "there"],
        ["g++", "-std=c++17", "-O1", ROOT / "tests" / "replay.cpp", "-ldl", "-o", directory / "here"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def cases(built):
    """Random calls of every function: what they should give stays here, the rest is written for replay.cpp."""
    cases = sanitizer_fuzz.make_cases(CASES, seed=19)
    parts = [struct.pack("<Q", len(cases))]
    for case in cases:
        structure = bytearray(case.structure)
        struct.pack_into("<i", structure, case.threads_at, 1)
        for text in (f"contdrop_{case.function}".encode(), bytes(structure)):
            parts += [struct.pack("<Q", len(text)), text]
        parts.append(struct.pack("<Q", len(case.arrays)))
        for pointer_at, first, content in case.arrays:
            parts += [struct.pack("<3Q", pointer_at, first, len(content)), content]
    (built / "calls").write_bytes(b"".join(parts))
    return cases


def replay(directory, instructions, *command) -> bytes:
    result = directory / instructions
    subprocess.run([*command, instructions, directory / "calls", result], check=True)
    return result.read_bytes()


@pytest.fixture(scope="module", params=["neon", "portable"])
def emulated(request, built, cases):
    """The instruction set, and all arrays after all calls with it."""
    library = built / "_contdrop.so"
    command = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", built / "there", library]  # where Debian has its libraries
    return request.param, replay(built, request.param, *command)


def test_emulated_kernels_agree_with_the_reference(cases, emulated):
    """To 1e-6 and the last rounding, and nothing is written elsewhere."""
    content, position, wrong = emulated[1], 0, []
    for case in cases:
        ends = list(itertools.accumulate((len(array) for *_, array in case.arrays), initial=position))
        after = [content[begin:end] for begin, end in itertools.pairwise(ends)]
        position = ends[-1]
        inputs = len(after) - case.outputs
        untouched = after[:inputs] == [array for *_, array in case.arrays[:inputs]]
        if not (untouched and case.check(*after[inputs:])):
            wrong.append(case.description)
    assert not wrong
    assert position == len(content)


@pytest.mark.skipif("avx2" not in usable_instructions(), reason="needs a processor with AVX2")
@pytest.mark.parametrize("emulated", ["neon"], indirect=True)
def test_neon_gives_the_bits_of_avx2(built, emulated):
    """Both fuse the same operations and add in the same order, so there is no rounding to allow for."""
    assert replay(built, "avx2", built / "here", pathlib.Path(loader.library()._name)) == emulated[1]
