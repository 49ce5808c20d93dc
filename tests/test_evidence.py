"""The second protocol: that its text, its studies and its boundaries agree."""

import pathlib
import re

import numpy as np
import pytest
from scipy import stats

from contdrop.lab.catalogue import evidence

TEXT = (pathlib.Path(__file__).parents[1] / "results" / "PROTOCOL.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("\n## Second protocol\n")[2]
CELLS = [line.strip("| ").split(" | ") for line in SECTION.splitlines()]
ROWS = {cells[1].strip("`"): cells for cells in CELLS if cells[0].isdigit() and len(cells) == 8}
PATHS = 100_000


def boundaries():
    """Yield looks, share of the level and boundaries of each row of the tables."""
    looks = ()
    for line in SECTION.splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[0] == "runs":
            looks = tuple(map(int, cells[1:-1]))
        elif line.startswith("| 0.05 / "):
            yield looks, int(cells[0].rpartition(" ")[2]), tuple(map(float, cells[1:-1]))


@pytest.mark.parametrize("study", evidence.STUDIES, ids=lambda study: study.name)
def test_the_protocol_has_every_study_with_its_size(study):
    number, _, methods, runs, epochs, looks, margin, _ = ROWS[study.name]
    size = study.sizes["quick"]
    assert (int(runs), int(epochs)) == (size.runs, size.epochs)
    assert looks == "none" or int(looks.split()[-1]) == size.runs
    assert margin == "by pair" or float(margin) == study.margin
    count = re.search(r"\((\d+)\)", methods)
    assert count is None or int(count[1]) == len(study.methods)
    assert int(number) >= 1


def test_looks_have_boundaries():
    wanted = {tuple(map(int, row[5].split())) for row in ROWS.values() if row[5] != "none"}
    assert wanted == {looks for looks, _, _ in boundaries()}
    assert {share for _, share, _ in boundaries()} == set(range(1, 13))


def test_boundaries_keep_the_level():
    generator = np.random.default_rng(1)
    values = generator.standard_normal((PATHS, 40))
    wanted = {look for looks, _, _ in boundaries() for look in looks}
    at = {look: stats.ttest_1samp(values[:, :look], 0, axis=1).statistic for look in wanted}
    for looks, share, bounds in boundaries():
        crossed = np.any([abs(at[look]) >= bound for look, bound in zip(looks, bounds, strict=True)], axis=0)
        level = 0.05 / share
        assert crossed.mean() == pytest.approx(level, abs=4 * np.sqrt(level / PATHS)), (looks, share)
