"""Fits the normal quantile for ``quantile()`` in src/contdrop/kernels/native/kernels.h, and prints the coefficients.

With u = 1/2 + v the quantile is z = v N(r) / D(r), where r = 1/4 - v^2, or for the far tails v N(t) / D(t), where
t = -log(4 r). Each fit makes the largest error of z as small as it can: least squares for N - f D, whose weights grow
where the error is large (Lawson's method). Needs numpy and scipy: ``python tools/fit_quantile.py``.
"""

import numpy as np
from scipy.special import ndtr, ndtri


def fit(variable, v, z, degree, rounds=3000):
    """Coefficients of N and D (which begins with 1), lowest power first, and the largest error of v N / D."""
    f = z / v
    powers = variable[:, None] ** np.arange(degree + 1)
    columns = np.concatenate([powers, -f[:, None] * powers[:, 1:]], axis=1)
    sizes = np.abs(columns).max(0)
    weight, bottom, best = np.ones_like(v), np.ones_like(v), (np.inf, None)
    for _ in range(rounds):
        scale = weight * v / np.abs(bottom)
        solution = np.linalg.lstsq(columns / sizes * scale[:, None], f * scale, rcond=None)[0] / sizes
        top, bottom = powers @ solution[: degree + 1], 1 + powers[:, 1:] @ solution[degree + 1 :]
        error = np.abs(v * top / bottom - z)
        if bottom.min() > 0 and error.max() < best[0]:
            best = error.max(), solution
        weight *= (0.05 + error / error.max()) ** 0.15
        weight /= weight.mean()
    return best[1][: degree + 1], np.concatenate([[1.0], best[1][degree + 1 :]]), best[0]


def show(name, top, bottom, error):
    print(f"{name}: largest error {error:.1e}\n  top    {top.tolist()}\n  bottom {bottom.tolist()}")


def main():
    for name, reach, degree in (("near", 1.7, 3), ("middle", 2.55, 5)):
        v = (ndtr(reach) - 0.5) * np.sin(np.linspace(0, np.pi / 2, 3000)[1:])
        show(name, *fit(0.25 - v**2, v, ndtri(0.5 + v), degree))
    y = np.concatenate([np.geomspace(2.0**-24.2, 0.5, 3000)[:-1], np.linspace(0.4, 0.5 - 1e-6, 1000)])
    show("far", *fit(-np.log(4 * y * (1 - y)), 0.5 - y, -ndtri(y), 5))


if __name__ == "__main__":
    main()
