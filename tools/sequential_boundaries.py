"""Boundaries of sequential comparisons, calibrated by simulation.

    python tools/sequential_boundaries.py protocol    # the tables of the second protocol in results/PROTOCOL.md
    python tools/sequential_boundaries.py levels      # the factors LEVELS of contdrop.lab.stats.sequential

With a variance that is estimated, the boundaries of a normal statistic exceed their level
(:mod:`contdrop.lab.stats.sequential`). The level that is spent is therefore lowered until the error of simulated
comparisons without a difference is the nominal one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import special

from contdrop.lab.stats import sequential
from contdrop.lab.stats.sequential import Spending, normal_boundaries

LEVEL = 0.05
PLANS = ((6, 8, 10), (8, 12, 16, 20), (10, 15, 20, 25, 30), (16, 24, 32, 40))
SHARES = 12  # boundaries for LEVEL / 1 to LEVEL / SHARES
MAXIMA = (7, 8, 10, 12, 15, 20, 30, 40, 60, 80, 100, 150, 200)
FACTORS = (0.7, 0.8, 0.9, 1.0)  # at which the error is simulated; it is nearly linear between them
PATHS, CHUNK = 10_000_000, 100_000
SEED = 20_261_118

Array = npt.NDArray[np.float64]


def statistics(looks: tuple[int, ...], paths: int) -> Iterator[Array]:
    """Yield the absolute t statistic at each look without a difference, [paths, looks] in chunks."""
    generator = np.random.default_rng(SEED)
    count, at = np.arange(1, looks[-1] + 1), np.array(looks) - 1
    for _ in range(0, paths, CHUNK):
        values = generator.standard_normal((CHUNK, looks[-1]), dtype=np.float32).astype(np.float64)
        total, squares = np.cumsum(values, 1)[:, at], np.cumsum(values**2, 1)[:, at]
        variance = (squares - total**2 / count[at]) / (count[at] - 1)
        yield np.abs(total) / np.sqrt(count[at] * variance)


def boundaries(level: float, looks: tuple[int, ...], spending: Spending) -> Array:
    """Return the quantiles of Student's t at each look for a spent level."""
    tail = special.ndtr(-np.array(normal_boundaries(level, looks, spending)))
    return np.asarray(-special.stdtrit(np.array(looks) - 1, tail))


def factors(looks: tuple[int, ...], spending: Spending, shares: tuple[int, ...], paths: int) -> tuple[Array, Array]:
    """Return the calibrated factor for each share of the level, and the error without calibration."""
    bounds = np.array([[boundaries(factor * LEVEL / k, looks, spending) for factor in FACTORS] for k in shares])
    crossed, done = np.zeros(bounds.shape[:2]), 0
    for found in statistics(looks, paths):
        crossed += [[np.count_nonzero((found > each).any(1)) for each in row] for row in bounds]
        done += len(found)
    errors = crossed / done * np.array(shares)[:, None] / LEVEL  # in units of the level
    # errors(factor) = factor (a + b factor), by least squares
    fits = [np.polyfit(FACTORS, row / np.array(FACTORS), 1) for row in errors]
    solved = [np.interp(1.0, np.linspace(0.5, 1.1, 601) * np.polyval(fit, np.linspace(0.5, 1.1, 601)),
                        np.linspace(0.5, 1.1, 601)) for fit in fits]  # fmt: skip
    return np.array(solved), errors[:, -1]


def protocol(paths: int) -> None:
    """Print the tables of the second protocol."""
    shares = tuple(range(1, SHARES + 1))
    for looks in PLANS:
        lowered, plain = factors(looks, "obrien-fleming", shares, paths)
        print(f"| runs | {' | '.join(map(str, looks))} | spent | uncalibrated |")
        for share, factor, error in zip(shares, lowered, plain):
            bounds = boundaries(factor * LEVEL / share, looks, "obrien-fleming")
            shown = " | ".join(f"{bound:.3f}" for bound in bounds)
            print(f"| 0.05 / {share} | {shown} | {factor * LEVEL / share:.5f} | {error:.3f} |", flush=True)


def levels(paths: int) -> None:
    """Print ``LEVELS``, rounded down."""
    for spending in sequential.LEVELS:
        print(f'    "{spending}": {{')
        for most in MAXIMA:
            looks = tuple(range(sequential.FEWEST, most + 1))
            found, plain = factors(looks, spending, sequential.COMPARISONS, paths)
            row = ", ".join(f"{np.floor(factor * 1000) / 1000:.3f}" for factor in found)
            print(f"        {most}: ({row}),  # without: {plain[0]:.3f} to {plain[-1]:.3f}", flush=True)
        print("    },")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("protocol", "levels"))
    parser.add_argument("--paths", type=int, default=PATHS, help="simulated comparisons (default %(default)s)")
    arguments = parser.parse_args()
    {"protocol": protocol, "levels": levels}[arguments.command](arguments.paths)


if __name__ == "__main__":
    main()
