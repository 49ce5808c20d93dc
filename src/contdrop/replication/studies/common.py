"""What the paper's comparisons have in common."""

from __future__ import annotations

from typing import Any

from ...lab.study.study import Study, group_settings

# The paper's six methods; fast dropout, which it names but does not run; and the controls of the continuous laws,
# Bernoulli masks of the same mean and relative variance, without which a gain may come from their strength alone.
METHODS = (
    "none",
    "bernoulli",
    "adaptive",
    "dropconnect",
    "uniform",
    "gaussian",
    "fast",
    "bernoulli-matched",
    "bernoulli-matched:uniform",
)

# With unscaled masks the mean of a mask changes the rate at which layers learn, so no dropout has a halved twin.
UNSCALED_METHODS = (*METHODS, "none:mean=0.5")

# "sigma^2 is selected from {0.2, 0.3, 0.4}", read as standard deviations; see the deviations page. Adaptive dropout
# with alpha = 0 and beta = 0 is Bernoulli dropout.
CANDIDATES = {
    "gaussian": tuple(f"gaussian:sigma={sigma}" for sigma in ("0.2", "0.3", "0.4")),
    "adaptive": tuple(
        f"adaptive:alpha={alpha},beta={beta}" for alpha in ("-1", "0", "1") for beta in ("-0.5", "0", "0.5")
    ),
}

FOLLOWS = {"bernoulli-matched": "gaussian"}

# One run of a few epochs would choose by luck; the report says how far apart the candidates were.
SELECTION_RUNS = 3

COMMON: dict[str, Any] = {
    "reference": "gaussian",
    "candidates": CANDIDATES,
    "follows": FOLLOWS,
    "evaluation_batch_size": 1000,
}


def study(**settings: Any) -> Study:
    """Return a study from settings given by their own names, those of groups too."""
    return Study(**group_settings(settings))
