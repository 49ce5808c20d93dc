"""What the paper's comparisons have in common."""

# The paper's six methods; fast dropout, which it names but does not run; and the control, a Bernoulli mask of the same
# relative variance as the Gaussian's, without which a gain may come from the strength of the noise alone.
METHODS = (
    "none",
    "bernoulli",
    "adaptive",
    "dropconnect",
    "uniform",
    "gaussian",
    "fast",
    "bernoulli-matched",
)

# "sigma^2 is selected from {0.2, 0.3, 0.4}", read as standard deviations; see the deviations page. Adaptive dropout
# with alpha = 0 and beta = 0 is Bernoulli dropout.
CANDIDATES = {
    "gaussian": tuple(f"gaussian:sigma={sigma}" for sigma in ("0.2", "0.3", "0.4")),
    "adaptive": tuple(
        f"adaptive:alpha={alpha},beta={beta}" for alpha in ("-1", "0", "1") for beta in ("-0.5", "0", "0.5")
    ),
}

FOLLOWS = {"bernoulli-matched": "gaussian"}
