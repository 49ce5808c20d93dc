"""The bit streams that tools/randomness gives to the test batteries are those of the masks."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import torch

import contdrop as cd
import oracles

FOLDER = pathlib.Path(__file__).parent
SEED = 0x123456789ABCDEF  # both halves differ, and the upper one matters
MASK = 0xFFFFFFFF


def number(seed: int, i: int) -> int:
    """The 21-bit number behind element i."""
    return oracles.element(seed, i, 21, stream=0)


def borrowed_number(seed: int, i: int) -> int:
    """The 22-bit number behind element i of the masks whose numbers borrowed bits from each other."""
    group, place = divmod(i, 128)
    j, place = divmod(place, 32)
    slot, lane = divmod(place, 16)
    w = [oracles.word(seed, 64 * group + 16 * output + lane, stream=0) for output in range(4)]
    if slot == 0:
        return (w[j] ^ w[(j + 1) % 4] >> 16) >> 10
    return ((w[j] << 16 & MASK | w[j] >> 16) ^ w[(j - 1) % 4] >> 16) >> 10


def bit(seed: int, i: int) -> int:
    """The bit behind element i of a Bernoulli mask with keep 0.5."""
    return oracles.element(seed, i, 1, stream=0)


def call_seeds(seed: int, count: int) -> list[int]:
    """The seeds of successive calls after ``torch.manual_seed(seed)``."""
    generator = torch.Generator().manual_seed(seed)
    return [int(torch.randint(2**63 - 1, (), generator=generator)) for _ in range(count)]


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("randomness") / "streams"
    subprocess.run([compiler, "-std=c++17", "-O2", "-march=native", FOLDER / "streams.cpp", "-o", program], check=True)
    return program


def numbers(program: pathlib.Path, order: str, count: int, bits: int = 21, *options: str) -> list[int]:
    """The first numbers of a stream, taken out of the packed bits."""
    size = -(-count * bits // 8)
    command = [program, order, "--seed", str(SEED), "--bytes", str(size), *options]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    assert len(data) == size
    stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * bits].reshape(count, bits)
    return (stream @ (1 << np.arange(bits))).tolist()


def test_natural_order(streams: pathlib.Path) -> None:
    assert numbers(streams, "natural", 1000) == [number(SEED, i) for i in range(1000)]


def test_far_into_one_call(streams: pathlib.Path) -> None:
    """The stream of one long call goes on where its chunks meet."""
    assert numbers(streams, "natural", 64 * 96 + 200)[-400:] == [number(SEED, 64 * 96 - 200 + i) for i in range(400)]


@pytest.mark.parametrize("width", [8, 16, 32, 128])
def test_column_order(streams: pathlib.Path, width: int) -> None:
    """Down column 0 of [65536, width], and on into column 1."""
    (seed,) = call_seeds(SEED, 1)
    found = numbers(streams, f"column{width}", 65536 + 300)
    assert found[:300] == [number(seed, row * width) for row in range(300)]
    assert found[65536 - 100 : 65536] == [number(seed, row * width) for row in range(65436, 65536)]
    assert found[65536:] == [number(seed, row * width + 1) for row in range(300)]


def test_consecutive_calls(streams: pathlib.Path) -> None:
    first, second, third = call_seeds(SEED, 3)
    expected = [number(seed, i) for seed in (first, second, third) for i in range(1000)]
    assert numbers(streams, "calls", 3000) == expected


def test_consecutive_seeds(streams: pathlib.Path) -> None:
    expected = [number(SEED + k, i) for k in range(10) for i in range(96)]
    assert numbers(streams, "seeds", 960) == expected


def test_bernoulli_bits(streams: pathlib.Path) -> None:
    assert numbers(streams, "bernoulli", 3000, 1) == [bit(SEED, i) for i in range(3000)]


def test_bernoulli_bits_in_column_order(streams: pathlib.Path) -> None:
    (seed,) = call_seeds(SEED, 1)
    rows = 1 << 20
    found = numbers(streams, "bernoulli-column16", rows + 300, 1)
    assert found[:300] == [bit(seed, 16 * row) for row in range(300)]
    assert found[rows:] == [bit(seed, 16 * row + 1) for row in range(300)]


@pytest.mark.parametrize("order", ["natural", "column16"])
def test_borrowed_masks(streams: pathlib.Path, order: str) -> None:
    """The old masks, on which the batteries must fail."""
    seed, step = (SEED, 1) if order == "natural" else (call_seeds(SEED, 1)[0], 16)
    expected = [borrowed_number(seed, step * i) for i in range(500)]
    assert numbers(streams, order, 500, 22, "--scheme", "borrowed") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sideways"], "streams: expected the order natural, column8, column16, column32, column128, calls, seeds, "),
        (["natural", "--scheme", "x"], "streams: expected --scheme independent or borrowed, got x"),
        (["natural", "--seed", "-1"], "streams: expected a whole number after --seed, got -1"),
        (["natural", "--sed", "1"], "streams: unknown option or missing value: --sed"),
        ([], "streams: expected 1 words beside the options, got 0"),
    ],
)
def test_usage_errors(streams: pathlib.Path, arguments: list[str], message: str) -> None:
    result = subprocess.run([streams, *arguments], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def package_numbers(rows: int, width: int) -> torch.Tensor:
    """The numbers behind a mask that the package itself draws: a uniform value is (2 number + 1) / 2**22."""
    u = cd.functional.dropout(torch.ones(rows, width), cd.Uniform(0.0, 1.0), scale="paper")
    return ((u.double() * 2**22 - 1) / 2).long()


def package_bits(rows: int, width: int) -> torch.Tensor:
    """A kept element is one whose bit is below 1."""
    return 1 - cd.functional.dropout(torch.ones(rows, width), cd.Bernoulli(keep=0.5), scale="paper").long()


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_package_draws_these_numbers(streams: pathlib.Path, backend: str) -> None:
    """The streams are what a user gets after ``torch.manual_seed``, in the orders they say."""
    with cd.use_backend(backend), torch.random.fork_rng(devices=[]):
        for width in (8, 16):
            torch.manual_seed(SEED)
            expected = package_numbers(65536, width)[:, :2].T.flatten().tolist()
            assert numbers(streams, f"column{width}", 2 * 65536) == expected
        torch.manual_seed(SEED)
        calls = torch.cat([package_numbers(1, 1000).flatten() for _ in range(5)]).tolist()
        assert numbers(streams, "calls", 5000) == calls
        torch.manual_seed(SEED)
        bits = package_bits(1 << 20, 16)[:, :2].T.flatten().tolist()
        assert numbers(streams, "bernoulli-column16", 2 << 20, 1) == bits
