"""Fit of the normal quantile that src/contdrop/kernels/native/values.h computes; prints the coefficients.

With u = 1/2 + v the quantile is z = v N(r) / D(r), where r = 1/4 - v^2, or for the far tails v N(t) / D(t), where
t = -log(4 r); the logarithm is log(1 + x) = x P(x) for x in [-1/4, 1/2). Each fit makes the largest error of z (of the
logarithm) as small as it can: least squares for N - f D, whose weights grow where the error is large (Lawson's method).
For each it prints the coefficients, their error in exact arithmetic and in the float32 arithmetic of the kernels (for
every uniform number there is), and how far the coefficients in values.h are from them.

Needs numpy and scipy; takes some ten seconds: ``python tools/fit_quantile.py``.
"""

import pathlib
import re

import numpy as np
from scipy.special import ndtr, ndtri

VALUES = pathlib.Path(__file__).parents[1] / "src" / "contdrop" / "kernels" / "native" / "values.h"
POINTS = 1500


def fit(variable, factor, target, degree, bottom_degree, rounds=3000):
    """Return coefficients of N and D, lowest power first (D begins with 1), and the largest error of factor * N / D."""
    f = target / factor
    powers = variable[:, None] ** np.arange(degree + 1)
    bottom_powers = powers[:, 1 : bottom_degree + 1]
    columns = np.concatenate([powers, -f[:, None] * bottom_powers], axis=1)
    sizes = np.abs(columns).max(0)
    weight, bottom, best = np.ones_like(f), np.ones_like(f), (np.inf, None)
    for _ in range(rounds):
        scale = weight * np.abs(factor / bottom)
        solution = np.linalg.lstsq(columns / sizes * scale[:, None], f * scale, rcond=None)[0] / sizes
        bottom = 1 + bottom_powers @ solution[degree + 1 :]
        error = np.abs(factor * (powers @ solution[: degree + 1]) / bottom - target)
        if bottom.min() > 0 and error.max() < best[0]:
            best = error.max(), solution
        weight *= (0.05 + error / error.max()) ** 0.15
        weight /= weight.mean()
    return best[1][: degree + 1], np.concatenate([[1.0], best[1][degree + 1 :]]), best[0]


def polynomial(coefficients, x):
    """Evaluate in float32 by fused operations: float64 holds the product of two float32 numbers exactly."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = (result.astype(np.float64) * x + np.float32(coefficient)).astype(np.float32)
    return result


def log4(r, logarithm):
    """Return log(4 r) as the kernels compute it."""
    bits = r.view(np.int32)
    exponent = (bits + 0x00400000) >> 23
    x = (bits - (exponent << 23) + 0x3F800000).view(np.float32) - np.float32(1)
    power = (exponent - 125).astype(np.float64)
    return (power * np.float32(np.log(2)) + x * polynomial(logarithm, x)).astype(np.float32)


def float32_error(top, bottom, reach, logarithm=None):
    """Return the largest error of z over all uniform numbers above 1/2 whose quantile is within reach."""
    exact_v = (2 * np.arange(1 << 21) + 1) * 2.0**-23
    exact_v = exact_v[exact_v <= ndtr(reach) - 0.5]
    v = exact_v.astype(np.float32)
    r = (0.25 - exact_v**2).astype(np.float32)
    variable = r if logarithm is None else -log4(r, logarithm)
    z = v * (polynomial(top, variable) / polynomial(bottom, variable))
    return np.abs(z + ndtri(0.5 - exact_v)).max()


def shipped(name, recipe=None):
    """Return an array of values.h: a fit's ``top`` or ``bottom`` for a recipe, or a separate array."""
    place = "" if recipe is None else rf"struct Fit<{recipe}> .*?"
    (text,) = re.findall(rf"{place}constexpr float {name}\[\] = \{{(.*?)\}};", VALUES.read_text(), re.DOTALL)
    return np.array([float(number.strip().rstrip("f")) for number in text.split(",")])


def show(name, error, error32, *arrays):
    print(f"{name}: largest error {error:.1e}, in float32 {error32:.1e}")
    for fitted, there in arrays:
        print(f"  {fitted.tolist()}\n    in values.h within {np.abs(there / fitted - 1).max():.0e}")


def main():
    for name, recipe, reach, degree in (("near", "kNormalNear", 1.7, 3), ("middle", "kNormalMiddle", 2.55, 5)):
        v = (ndtr(reach) - 0.5) * np.sin(np.linspace(0, np.pi / 2, POINTS)[1:])
        top, bottom, error = fit(0.25 - v**2, v, ndtri(0.5 + v), degree, degree)
        there = shipped("top", recipe), shipped("bottom", recipe)
        show(name, error, float32_error(top, bottom, reach), *zip((top, bottom), there))

    x = 0.125 + 0.375 * np.cos(np.linspace(0, np.pi, POINTS))
    logarithm, _, error = fit(x, x, np.log1p(x), 7, 0)
    r = np.geomspace(2.0**-24, 0.25, 1_000_000).astype(np.float32)
    error32 = np.abs(log4(r, logarithm) - np.log(4 * r.astype(np.float64))).max()
    show("logarithm", error, error32, (logarithm, shipped("kLogarithm")))

    # A little further out than the smallest uniform number, 2^-23: what is left is all rounding.
    y = np.concatenate([np.geomspace(2.0**-24.2, 0.5, POINTS)[:-1], np.linspace(0.4, 0.5 - 1e-6, POINTS // 3)])
    top, bottom, error = fit(-np.log(4 * y * (1 - y)), 0.5 - y, -ndtri(y), 5, 5)
    there = shipped("top", "kNormalFar"), shipped("bottom", "kNormalFar")
    show("far", error, float32_error(top, bottom, np.inf, logarithm), *zip((top, bottom), there))


if __name__ == "__main__":
    main()
