"""Masks read down the columns of a narrow tensor, where the numbers of one block of the generator follow each other.

A reduced version of what a battery of tests does: ranks over the field of two elements of matrices of random bits. If
some bits of a block were made of others, as in masks of version 2, the rows of such a matrix would not fill the space.
"""

import math

import pytest
import torch

from contdrop import kernels
from contdrop._kernel_law import KernelLaw

BITS = 21  # of every number, from the top
MATRICES = 40
# Of a large square matrix of random bits: that its rank is full, one less, two less, less still.
PROBABILITIES = (0.2888, 0.5776, 0.1284, 0.0052)


def down_the_columns(width: int, count: int, seed: int) -> list[int]:
    """The numbers behind a uniform mask of shape [count / width, width], column after column."""
    mask = kernels.ops.dropout(
        torch.ones(count // width, width), torch.tensor(seed), KernelLaw("uniform", (0.0, 1.0), 1.0), [], 0
    )
    return (mask.double().T.flatten() * 2**BITS).long().tolist()


def rank(rows) -> int:
    """Over the field of two elements; a row is the bits of an integer."""
    by_highest: dict[int, int] = {}
    for row in rows:
        while row and row.bit_length() in by_highest:
            row ^= by_highest[row.bit_length()]
        if row:
            by_highest[row.bit_length()] = row
    return len(by_highest)


def deficits(numbers: list[int], in_a_row: int) -> list[int]:
    """By how much the ranks of square matrices fall short, whose rows are numbers that follow each other."""
    rows = [
        sum(number << BITS * k for k, number in enumerate(numbers[i : i + in_a_row]))
        for i in range(0, len(numbers) - in_a_row + 1, in_a_row)
    ]
    size = BITS * in_a_row
    return [size - rank(rows[i : i + size]) for i in range(0, len(rows) - size + 1, size)]


def chi_square(found: list[int]) -> float:
    counts = [found.count(0), found.count(1), found.count(2), sum(deficit > 2 for deficit in found)]
    return sum((n - p * len(found)) ** 2 / (p * len(found)) for n, p in zip(counts, PROBABILITIES))


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("in_a_row", [6, 8])
def test_matrices_of_bits_down_the_columns_have_the_ranks_of_random_ones(width, in_a_row):
    count = MATRICES * BITS * in_a_row * in_a_row
    found = deficits(down_the_columns(width, -(-count // width) * width, seed=5), in_a_row)
    assert len(found) == MATRICES
    # Three degrees of freedom: 33.4 has a probability of 2.6e-7.
    assert chi_square(found) < 33.4, f"ranks fall short by {sorted(found)}"


def test_borrowed_bits_are_noticed():
    """Every sixth number takes five of its bits from two before it."""
    numbers = down_the_columns(16, MATRICES * BITS * 36 // 16 * 16 + 16, seed=5)
    for i in range(5, len(numbers), 6):
        numbers[i] = numbers[i] & ~0x1F | (numbers[i - 1] ^ numbers[i - 2]) & 0x1F
    assert min(deficits(numbers, 6)) >= 5
    assert chi_square(deficits(numbers, 6)) > 33.4


def test_probabilities_are_those_of_random_matrices():
    full = math.prod(1 - 2.0**-k for k in range(1, 60))
    assert pytest.approx(full, abs=1e-4) == PROBABILITIES[0]
    assert sum(PROBABILITIES) == pytest.approx(1)
