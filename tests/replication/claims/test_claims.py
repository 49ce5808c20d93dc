"""The claims of the paper, and that the protocol and the catalogue agree on what decides them."""

import pathlib
import re

import pytest

from contdrop.replication import studies as catalogue
from contdrop.replication.claims import claims
from contdrop.replication.studies import dose
from contdrop.replication.studies.common import UNUSED
from contdrop.theory import paper_equations

PROTOCOL = (pathlib.Path(__file__).parents[3] / "results" / "PROTOCOL.md").read_text(encoding="utf-8")


def test_claims_have_an_id_of_their_own_and_say_what_would_decide_them():
    assert len(claims.CLAIMS) >= 15
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS)
    for claim in claims.CLAIMS:
        assert claim.text
        assert claim.where
        assert claim.confirms
        assert claim.refutes
        ways = (claim.tests, claim.equations, claim.trade_off, claim.untestable, claim.unplanned)
        assert sum(bool(way) for way in ways) == 1, claim.id


def test_every_comparison_is_one_that_its_study_runs():
    measured = {f"test:{UNUSED}": ("dose", "fashion-5000", "sigma"), "test:common": "coadaptation", "test:own": "coad"}
    for claim in claims.CLAIMS:
        for test in claim.tests:
            study = catalogue.STUDIES[test.study]
            assert {test.first, test.second} <= set(study.methods), test.key
            assert (test.first, test.metric) != (test.second, test.second_metric or test.metric)
            metric, _, epoch = test.metric.partition("@")
            if metric != claims.TEST:
                (studies,) = [studies for start, studies in measured.items() if metric.startswith(start)]
                assert test.study.startswith(studies)
                assert study.measure
            assert not epoch or int(epoch) % study.training.evaluate == 0


def test_the_protocol_has_every_study_with_its_runs_epochs_and_margin():
    assert set(claims.PLANNED) == {study.name for study in dose.STUDIES}
    for study in dose.STUDIES:
        size = study.presets["quick"]
        assert claims.PLANNED[study.name] == (size.runs, size.epochs)
        row = next(line for line in PROTOCOL.splitlines() if line.startswith(f"| `{study.name}`"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        margin = "10 %" if study.name == "coadaptation" else f"{study.margin:g}"
        assert cells[3:6] == [str(size.runs), str(size.epochs), margin]
        assert float(cells[7]) <= 2
        number = re.search(r"\((\d+)\)", cells[2])
        assert number is None or int(number[1]) == len(study.methods)
    hours = [float(line.strip("| ").split("|")[-1]) for line in PROTOCOL.splitlines() if line.startswith("| `")]
    assert sum(hours) <= 15
    assert all(claim.id in PROTOCOL for claim in claims.CLAIMS if claim.unplanned)


def test_theory_claims_name_checks_that_there_are():
    numbers = {check.number for check in paper_equations.check_equations(draws=1000)}
    assert {number for claim in claims.CLAIMS for number in claim.equations} <= numbers


@pytest.mark.parametrize("study", sorted(claims.PLANNED))
def test_every_study_decides_a_claim(study):
    assert any(study in claim.studies for claim in claims.CLAIMS)
