"""The demonstration: a small network on scikit-learn's handwritten digits, in about two minutes."""

from ...lab.study.study import Size
from ..initialization import Glorot
from ..networks import MLP
from ..recipes import Adam
from . import common
from .study_data import Images

DIGITS = common.study(
    name="digits-mlp",
    title="Handwritten digits, 64-128-128-10, ReLU, 100 training images",
    # So few images that a network without dropout fits them perfectly, yet errs on one new image in eight.
    data=Images("digits", train=100, validation=300),
    # Width, rate and epochs were chosen by the validation error, averaged over none, bernoulli, uniform and gaussian,
    # of 8 runs by tools/choose_digits.py: 12.3 % with these; 12.5 % at the rate 0.005, 13.9 % at 0.01; at 0.005 also
    # 12.8 % with 256 units, 13.6 % with 64, and 12.7 % after 40 epochs.
    model=MLP(widths=(64, 128, 128, 10), activation="relu", initialisation=Glorot(), divisor=16.0),
    **Adam(learning_rate=0.002, batch_size=25).settings(),
    methods=common.METHODS,
    sizes={"quick": Size(runs=10, epochs=80, selection_runs=common.SELECTION_RUNS)},
    **common.COMMON,
    margin=0.5,
    margin_reason="half a point is one test image in two hundred",
    notes=(
        "Bernoulli dropout is a light switch: while a network learns, it turns each hidden unit on or off at random. "
        "Continuous dropout is a dimmer that sets it to any level between. Here one small network learns handwritten "
        "digits with each method, from the same starts, to see whether the kind of noise matters or only its strength.",
    ),
)
