"""The paper's claims in our own words, and the tests that decide each, from ``claims.ini``: committed before the runs.

The rules that turn runs and theory checks into verdicts are in
:mod:`contdrop.replication.claims.verdicts`, the reasons in
results/PROTOCOL.md. Nothing here, and nothing there, is a verdict.
"""

from __future__ import annotations

import configparser
import pathlib
import re
from collections.abc import Iterator
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


_FILE = pathlib.Path(__file__).with_name("claims.ini")
# A test in the file: a study, and what is compared as in the key of a :class:`Contrast`.
_TEST = re.compile(r"(\S+); (.+?): (\S+) (<~?) (\S+)(?: \((.+)\))?")
# What confirms and what refutes a claim, by its rule, where the file does not say otherwise.
_DECIDES = {
    "each": (
        "each difference is negative, with Holm's p below 0.05",
        "a difference is within the margin (equivalence test, Holm's p below 0.05), or positive with p below 0.05",
    ),
    "general": (
        "one difference is negative with Holm's p below 0.05, and none positive",
        "every difference is within the margin, or positive with p below 0.05",
    ),
    "equations": (
        "the checks of contdrop theory give the verdicts named",
        "one of the equations does not hold, or not as exactly as the paper writes it",
    ),
}


def _read() -> Iterator[Claim]:
    file = configparser.ConfigParser(interpolation=None)
    file.read_string(_FILE.read_text(encoding="utf-8"))
    for name, given in file.items():
        if name != file.default_section:
            yield _claim(name, given)


def _claim(name: str, given: configparser.SectionProxy) -> Claim:
    rule: Rule = "general" if given.get("rule") == "general" else "each"
    confirms, refutes = _DECIDES["equations" if "equations" in given else rule]
    share = given.getfloat("margin share")
    return Claim(
        name,
        given["text"],
        given["where"],
        "theory" if name.startswith("T") else "empirical",
        given.get("confirms", confirms),
        given.get("refutes", refutes),
        tuple(_contrast(line, share) for line in given.get("tests", "").split("\n") if line),
        rule,
        tuple(given.get("equations", "").split()),
        tuple(given.get("allowed", "exact").split()),
        trade_off=given.getboolean("trade off", False),
        untestable=given.get("untestable", ""),
        unplanned=given.get("unplanned", ""),
    )


def _contrast(line: str, margin_share: float | None) -> Contrast:
    found = _TEST.fullmatch(line)
    assert found, line
    study, metric, first, sign, second, second_metric = found.groups(default="")
    return Contrast(study, first, second, metric, second_metric, "less" if sign == "<" else "not worse", margin_share)


CLAIMS = tuple(_read())
