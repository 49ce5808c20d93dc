"""The paper's claims in our own words, and the tests that decide each: data only, committed before the runs.

The rules that turn runs and theory checks into verdicts are in
:mod:`contdrop.replication.claims.verdicts`, the reasons in
results/PROTOCOL.md. Nothing here, and nothing there, is a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Rule = Literal["each", "general"]
Relation = Literal["less", "not worse"]

TEST, UNUSED = "test_error", "test:unused error"


class PlannedSize(NamedTuple):
    """Size of a study by the protocol."""

    runs: int
    epochs: int


# With fewer runs than these no claim is decided, and runs of other epochs are not those of the protocol.
PLANNED = {
    "dose-1000": PlannedSize(30, 80),
    "dose-5000": PlannedSize(30, 20),
    "fashion-5000": PlannedSize(30, 20),
    "cifar10-nin-head": PlannedSize(30, 10),
    "full-relu": PlannedSize(20, 20),
    "coadaptation": PlannedSize(10, 20),
    "sigma-5000": PlannedSize(10, 20),
    "replication-cnn-gaussian": PlannedSize(10, 10),
    "full-sigmoid": PlannedSize(10, 20),
    "fashion-cnn": PlannedSize(10, 10),
    "replication-authors-relu": PlannedSize(3, 300),
    "replication-cnn-uniform": PlannedSize(10, 10),
}
EXPLORATORY = frozenset({"replication-authors-relu"})  # outside of every family; decides nothing


@dataclass(frozen=True)
class Contrast:
    """One comparison: that ``first`` is less than ``second``, or not worse, in paired runs of a study.

    Attributes:
        study: Its name in the catalogue.
        first: The method that the claim favours.
        second: The other one.
        metric: What is compared: a result of the final model, or "test_error@5" for that after five epochs.
        second_metric: Where it is another one for ``second``.
        relation: "less", or "not worse" by more than the margin.
        margin_share: The margin as a share of the second's mean, where the study's own margin is one of errors.
    """

    study: str
    first: str
    second: str
    metric: str = TEST
    second_metric: str = ""
    relation: Relation = "less"
    margin_share: float | None = None

    @property
    def key(self) -> str:
        other = f" ({self.second_metric})" if self.second_metric else ""
        sign = "<" if self.relation == "less" else "<~"
        return f"{self.metric}: {self.first} {sign} {self.second}{other}"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        id: Short, and never used again for another.
        text: The claim in our own words.
        where: In the paper.
        kind: "theory" or "empirical".
        confirms: What would confirm it.
        refutes: What would refute it.
        tests: The comparisons that decide it.
        rule: "each" if the paper says it of every case, so that one counter-example refutes it; "general" if it is a
            tendency, which one case may show and only all of them together refute.
        equations: Checks of ``contdrop theory`` that decide it.
        allowed: Verdicts of those checks with which the claim holds.
        trade_off: Whether the ratio of covariance to variance over the laws decides it.
        untestable: Why it cannot be tested here; empty if it can.
        unplanned: Why no study of the protocol decides it, though one could; empty if one does.
    """

    id: str
    text: str
    where: str
    kind: Literal["theory", "empirical"]
    confirms: str
    refutes: str
    tests: tuple[Contrast, ...] = ()
    rule: Rule = "each"
    equations: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ("exact",)
    trade_off: bool = False
    untestable: str = ""
    unplanned: str = ""

    @property
    def studies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(test.study for test in self.tests))


DOSES = ("dose-1000", "dose-5000")
_FOUND = "the checks of contdrop theory give the verdicts named"
_NOT = "one of the equations does not hold, or not as exactly as the paper writes it"
_LESS = "each difference is negative, with Holm's p below 0.05"
_NOT_LESS = "a difference is within the margin (equivalence test, Holm's p below 0.05), or positive with p below 0.05"
_SOME = "one difference is negative with Holm's p below 0.05, and none positive"
_NONE = "every difference is within the margin, or positive with p below 0.05"


def _theory(id: str, text: str, where: str, *equations: str, approximately: bool = False) -> Claim:
    allowed = ("exact", "approximation") if approximately else ("exact",)
    return Claim(id, text, where, "theory", _FOUND, _NOT, equations=equations, allowed=allowed)


def _each(id: str, text: str, where: str, *tests: Contrast) -> Claim:
    return Claim(id, text, where, "empirical", _LESS, _NOT_LESS, tests)


def _general(id: str, text: str, where: str, *tests: Contrast) -> Claim:
    return Claim(id, text, where, "empirical", _SOME, _NONE, tests, "general")


def _out(id: str, text: str, where: str, *, untestable: str = "", unplanned: str = "") -> Claim:
    return Claim(id, text, where, "empirical", _LESS, _NOT_LESS, untestable=untestable, unplanned=unplanned)


_THEORY = (
    _theory("T1", "All three kinds of mask give the same expected output.", "III-A.1", "0"),
    _theory("T2", "A linear layer's variances and covariances are Var(m) times one matrix.", "III-A.1", "1"),
    _theory("T3", "The Gaussian's formula, with sigma^2, is that of the masks that are sampled.", "III-A.1, IV", "1a"),
    Claim(
        "T4",
        "A suitable sigma balances variance and covariance better than the other laws do.",
        "III-A.1",
        "theory",
        "the ratio of covariance to variance differs between laws",
        "the ratio is the same for all laws: there is one knob, the strength, and nothing to balance",
        trade_off=True,
    ),
    _theory("T5", "A unit's input tends to a normal distribution.", "III-A.2, eq. 3", "3", approximately=True),
    _theory(
        "T6",
        "The expected output of a sigmoid unit is nearly a sigmoid of the mean, shrunk by the variance.",
        "III-A.2, eq. 4; III-B.2, eq. 13",
        *("4", "13"),
        approximately=True,
    ),
    _theory("T7", "Layer by layer, that shrinking is a division by 1 + pi Var / 8.", "III-A.2, eq. 5", "5"),
    _theory("T8", "For Bernoulli masks the means alone propagate.", "III-A.2, eq. 6", "6", approximately=True),
    _theory(
        "T9", "For a linear unit noise adds weight decay, scaled by inputs and variance.", "III-B.1", "9", "10", "11"
    ),
    _theory(
        "T10",
        "The expected gradient of a sigmoid unit is that with the unit's own mask at its mean.",
        "III-B.2, eq. 16 and after 17",
        *("16", "17a"),
        approximately=True,
    ),
    _theory(
        "T11",
        "For a sigmoid unit continuous noise adds a penalty on products of weights and inputs of different units.",
        "III-B.2, eq. 18",
        "18",
        approximately=True,
    ),
    _theory("T12", "Bernoulli noise adds a penalty on squares only.", "III-B.2, eq. 19", "19", approximately=True),
)

_OTHER_RATES = ("0.1", "0.2", "0.3", "0.6", "2", "4")
_SHAPES = (
    *(("gaussian", r) for r in ("0.1", "0.2", "0.3", "0.6")),
    *(("uniform", r) for r in ("0.1", "0.2", "0.3")),
    *(("normal", r) for r in ("0.1", "0.2", "0.3", "0.6", "1", "2", "4")),
)


def _shapes(study: str, *laws: str) -> tuple[Contrast, ...]:
    return tuple(
        Contrast(study, f"{law}:r={r}", f"bernoulli:r={r}", UNUSED) for law, r in _SHAPES if not laws or law in laws
    )


_AMOUNT = (
    _each(
        "E1",
        "Bernoulli dropout reduces the error of a large network on few training data.",
        "I; II",
        *(Contrast(study, "bernoulli:r=1", "none", UNUSED) for study in DOSES),
    ),
    Claim(
        "E2",
        "A drop rate of one half works best.",
        "II; III; IV",
        "empirical",
        "no other rate is better by more than the margin (simultaneous interval)",
        "another rate is better with Holm's p below 0.05",
        tuple(
            Contrast(study, "bernoulli:r=1", f"bernoulli:r={r}", UNUSED, relation="not worse")
            for study in DOSES
            for r in _OTHER_RATES
        ),
    ),
    _each(
        "E3",
        "Gaussian dropout with sigma from 1/5 to 1/3 beats Bernoulli and uniform dropout.",
        "III-A.1",
        *(
            Contrast(study, "gaussian:r=0.3", other, UNUSED)
            for study in DOSES
            for other in ("bernoulli:r=1", "uniform:r=0.3")
        ),
    ),
)

_SHAPE = (
    _general(
        "E4",
        "The gain of Gaussian dropout comes from the distribution, not from the freedom of sigma.",
        "IV-A, Figure 3",
        *(test for study in DOSES for test in _shapes(study, "gaussian")),
    ),
    _general(
        "E5",
        "Continuous masks, of which there are infinitely many, work better than binary ones.",
        "II",
        *(test for study in DOSES for test in _shapes(study)),
    ),
    _general(
        "E6",
        "Continuous dropout improves test performance (asked of data that the paper does not have: Fashion-MNIST).",
        "abstract; I",
        Contrast("fashion-5000", "gaussian:r=0.3", "bernoulli:r=1", UNUSED),
        Contrast("fashion-5000", "uniform:r=0.3", "bernoulli:r=1", UNUSED),
        Contrast("fashion-5000", "gaussian:r=0.3", "bernoulli:r=0.3", UNUSED),
        Contrast("fashion-5000", "normal:r=1", "bernoulli:r=1", UNUSED),
        Contrast("fashion-cnn", "gaussian", "bernoulli"),
        Contrast("fashion-cnn", "uniform", "bernoulli"),
    ),
)

_TABLES = (
    _each(
        "E7",
        "MNIST, ReLU: no dropout errs more than Bernoulli, uniform and Gaussian dropout.",
        "IV-A, Table I",
        *(Contrast("full-relu", method, "none") for method in ("bernoulli", "uniform", "gaussian")),
    ),
    _each(
        "E8",
        "MNIST, sigmoid: no dropout errs more than Bernoulli, uniform and Gaussian dropout.",
        "IV-A, Table I",
        *(Contrast("full-sigmoid", method, "none") for method in ("bernoulli", "uniform", "gaussian")),
    ),
    _each(
        "E9",
        "MNIST, ReLU: Gaussian dropout errs less than Bernoulli dropout.",
        "IV-A, Table I",
        Contrast("full-relu", "gaussian", "bernoulli"),
    ),
    _each(
        "E10",
        "MNIST, sigmoid: Gaussian dropout errs less than Bernoulli dropout.",
        "IV-A, Table I",
        Contrast("full-sigmoid", "gaussian", "bernoulli"),
    ),
    _each(
        "E11",
        "MNIST: uniform dropout errs less than Bernoulli dropout, whichever the units.",
        "IV-A, Table I",
        Contrast("full-relu", "uniform", "bernoulli"),
        Contrast("full-sigmoid", "uniform", "bernoulli"),
    ),
    _each(
        "E12",
        "MNIST: Gaussian dropout errs slightly less than uniform dropout.",
        "IV-A, Table I",
        Contrast("full-relu", "gaussian", "uniform"),
        Contrast("full-sigmoid", "gaussian", "uniform"),
    ),
    _each(
        "E13",
        "MNIST, convolutional, Gaussian initial weights: Gaussian dropout is best.",
        "IV-A, Table II",
        *(Contrast("replication-cnn-gaussian", "gaussian", other) for other in ("none", "bernoulli", "uniform")),
    ),
    _each(
        "E14",
        "MNIST, convolutional, uniform initial weights: Gaussian dropout is best.",
        "IV-A, Table III",
        *(Contrast("replication-cnn-uniform", "gaussian", other) for other in ("none", "bernoulli", "uniform")),
    ),
    _each(
        "E15",
        "As the authors' code trains: Gaussian dropout is best, Bernoulli dropout beats none.",
        "IV-A, Table I (exploratory)",
        *(Contrast("replication-authors-relu", "gaussian", other) for other in ("bernoulli", "uniform")),
        Contrast("replication-authors-relu", "bernoulli", "none"),
    ),
)

_WIDTHS = tuple(f"gaussian:sigma={tenths / 10:g}" for tenths in range(1, 11))

_FIGURES = (
    _each(
        "E16",
        "Throughout training continuous dropout has a lower test error than Bernoulli dropout.",
        "IV-A, Figure 2",
        *(
            Contrast("full-relu", law, "bernoulli", f"{TEST}@{epoch}")
            for law in ("gaussian", "uniform")
            for epoch in (5, 10, 15, 20)
        ),
    ),
    _each(
        "E17",
        "Gaussian dropout beats Bernoulli dropout at every sigma from 0.1 to 1.",
        "IV-A, Figure 3",
        *(Contrast("sigma-5000", width, "bernoulli", UNUSED) for width in _WIDTHS),
    ),
    Claim(
        "E18",
        "The best sigma is 0.2 or 0.3.",
        "IV-A, Figure 3",
        "empirical",
        "no other width is better than 0.3 by more than the margin (simultaneous interval)",
        "a width other than 0.2 is better than 0.3 with Holm's p below 0.05",
        tuple(
            Contrast("sigma-5000", "gaussian:sigma=0.3", width, UNUSED, relation="not worse")
            for width in _WIDTHS
            if width not in ("gaussian:sigma=0.2", "gaussian:sigma=0.3")
        ),
    ),
)


def _together(first: str, second: str, metric: str) -> Contrast:
    return Contrast("coadaptation", first, second, f"test:{metric}", margin_share=0.1)


_EQUAL = (
    *(("gaussian:r=0.3", "bernoulli:r=0.3"), ("uniform:r=0.3", "bernoulli:r=0.3")),
    ("normal:r=1", "bernoulli:r=1"),
)

_TOGETHER = (
    _each(
        "E19",
        "Under its own noise, a network with continuous dropout has less covariance between units.",
        "IV-A, Figure 4",
        *(_together(law, "bernoulli:r=1", "own layer2 covariance") for law in ("gaussian:r=0.3", "uniform:r=0.3")),
    ),
    _general(
        "E20",
        "Continuous noise prevents co-adaptation better than binary noise (equal strength, measured alike).",
        "abstract; IV-A, Figure 4; V",
        *(
            _together(first, second, f"common {layer} correlation")
            for layer in ("layer1", "layer2")
            for first, second in _EQUAL
        ),
    ),
    _each(
        "E21",
        "Continuous dropout leaves less covariance than no dropout, in both layers.",
        "IV-A, Figure 4",
        *(_together("gaussian:r=0.3", "none", f"common {layer} covariance") for layer in ("layer1", "layer2")),
    ),
    _each(
        "E22",
        "Without dropout the second layer has less covariance than the first.",
        "IV-A, Figure 4",
        Contrast(
            "coadaptation",
            "none",
            "none",
            "test:common layer2 covariance",
            "test:common layer1 covariance",
            margin_share=0.1,
        ),
    ),
)

_OTHERS = ("none", "bernoulli", "adaptive", "dropconnect", "uniform")

_CIFAR = (
    _each(
        "E25",
        "CIFAR-10: Gaussian dropout errs less than every other method.",
        "IV-B, Table IV",
        *(Contrast("cifar10-nin-head", "gaussian", other) for other in _OTHERS),
    ),
    _general(
        "E30",
        "CIFAR-10: continuous masks work better than binary ones of the same strength.",
        "II; IV-B",
        Contrast("cifar10-nin-head", "gaussian", "bernoulli-matched"),
        Contrast("cifar10-nin-head", "uniform", "bernoulli-matched:uniform"),
    ),
)

_NO_DATA = "needs data and computing time that are not to be had here"
_OUT = (
    _out(
        "E23",
        "MNIST: Gaussian dropout errs less than adaptive dropout and DropConnect.",
        "IV-A, Tables I to III",
        unplanned="both baselines have settings of their own to select, which the time does not allow",
    ),
    _out("E24", "Fast dropout performs like Bernoulli dropout.", "IV", unplanned="the paper does not run it either"),
    _out(
        "E26", "SVHN: continuous dropout errs less; uniform and Gaussian alike.", "IV-C, Table V", untestable=_NO_DATA
    ),
    _out("E27", "NORB: Gaussian dropout errs less than every other method.", "IV-D, Table VI", untestable=_NO_DATA),
    _out("E28", "ILSVRC-2012: Gaussian dropout errs less than all others.", "IV-E, Table VII", untestable=_NO_DATA),
    _out(
        "E29",
        "Over all five data sets Gaussian dropout has the best average rank.",
        "IV-E, Table VIII",
        untestable="three of the five data sets are not to be had here",
    ),
    _out(
        "E31",
        "CIFAR-10: Gaussian dropout is ahead of each other method on most of the ten classes.",
        "IV-B, confusion matrices",
        unplanned="the runs kept the errors of whole networks, not of classes",
    ),
)

_EMPIRICAL = (*_AMOUNT, *_SHAPE, *_TABLES, *_FIGURES, *_TOGETHER, *_CIFAR, *_OUT)
CLAIMS: tuple[Claim, ...] = (*_THEORY, *sorted(_EMPIRICAL, key=lambda claim: int(claim.id[1:])))
