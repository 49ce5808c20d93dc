"""Boundaries of the sequential rule of the second protocol, as the table in results/PROTOCOL.md has them.

A comparison is tested after listed numbers of paired runs. The error is spent as Lan and DeMets (1983) do with the
function of O'Brien and Fleming's type, ``2 - 2 Phi(z / sqrt(t))``. The boundaries for a normal statistic become nominal
levels of Student's t of the same look. With an estimated variance that exceeds the level, so the level that is spent
is lowered until the simulated error is the nominal one.

    python tools/sequential_boundaries.py
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from scipy import stats

LEVEL = 0.05
PLANS = ((6, 8, 10), (8, 12, 16, 20), (10, 15, 20, 25, 30), (16, 24, 32, 40))
SHARES = 12  # boundaries for LEVEL / 1 to LEVEL / SHARES
PATHS, CHUNK = 10_000_000, 250_000
SEED = 20_261_118

Array = npt.NDArray[np.float64]


def spent(level: float, fraction: float) -> float:
    """Return the two-sided error spent after a fraction of the runs."""
    return float(2 * stats.norm.sf(stats.norm.isf(level / 2) / np.sqrt(fraction)))


@functools.cache
def normal_boundaries(level: float, looks: tuple[int, ...], points: int = 2001) -> tuple[float, ...]:
    """Return the boundaries for a standard normal statistic, by recursive integration over the score process."""
    found: list[float] = []
    grid, density = np.zeros(1), np.ones(1)  # of the sum of the differences, in units of their standard deviation
    for number, look in enumerate(looks):
        step = np.sqrt(look - (looks[number - 1] if number else 0))
        budget = spent(level, look / looks[-1]) - (spent(level, looks[number - 1] / looks[-1]) if number else 0.0)

        def crossing(
            bound: float, step: float = step, look: int = look, at: Array = grid, mass: Array = density
        ) -> float:
            edge = bound * np.sqrt(look)
            return float(mass @ (stats.norm.sf((edge - at) / step) + stats.norm.cdf((-edge - at) / step)))

        low, high = 0.0, 12.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if crossing(middle) > budget else (low, middle)
        found.append(high)
        edge = high * np.sqrt(look)
        new = np.linspace(-edge, edge, points)
        weights = np.full(points, new[1] - new[0])
        weights[[0, -1]] /= 2
        density = (stats.norm.pdf((new[:, None] - grid[None, :]) / step) / step) @ density * weights
        grid = new
    return tuple(found)


def nominal(level: float, looks: tuple[int, ...]) -> Array:
    """Return the two-sided nominal level of each look."""
    return np.asarray(2 * stats.norm.sf(normal_boundaries(level, looks)))


def simulated(looks: tuple[int, ...]) -> Array:
    """Return p-values of Student's t at each look, [paths, looks], without a difference."""
    generator = np.random.default_rng(SEED)
    chunks = []
    for _ in range(PATHS // CHUNK):
        values = generator.standard_normal((CHUNK, looks[-1]))
        columns = []
        for look in looks:
            part = values[:, :look]
            t = np.sqrt(look) * part.mean(1) / part.std(1, ddof=1)
            columns.append(2 * stats.t.sf(np.abs(t), look - 1))
        chunks.append(np.stack(columns, 1))
    return np.concatenate(chunks)


def calibrated(level: float, looks: tuple[int, ...], values: Array) -> tuple[float, float, Array]:
    """Return the level to spend, the error without calibration, and the nominal level of each look."""

    def error(spending: float) -> float:
        return float((values <= nominal(spending, looks)).any(1).mean())

    low, high = 0.6 * level, 1.05 * level
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) < level else (low, middle)
    return low, error(level), nominal(low, looks)


def main() -> None:
    for looks in PLANS:
        values = simulated(looks)
        print(f"| runs | {' | '.join(map(str, looks))} | spent | uncalibrated |")
        for share in range(1, SHARES + 1):
            spending, plain, levels = calibrated(LEVEL / share, looks, values)
            bounds = [stats.t.isf(p / 2, look - 1) for p, look in zip(levels, looks)]
            shown = " | ".join(f"{bound:.3f}" for bound in bounds)
            print(f"| 0.05 / {share} | {shown} | {spending:.5f} | {plain * share / LEVEL:.3f} |", flush=True)


if __name__ == "__main__":
    main()
