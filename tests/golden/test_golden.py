"""What version 0.1.0 gave comes out again: keys, fingerprints, results, masks, archives and verdicts.

``python tests/golden/freeze.py`` prints all that differs; see there how to freeze anew, and when not to.
"""

import freeze
import pytest


@pytest.mark.parametrize("section", freeze.SECTIONS)
def test_comes_out_as_frozen(section):
    found = freeze.compare(section)
    assert not found, f"{section}: {len(found)} differences, of which the first are\n" + "\n".join(found[:10])


def test_a_difference_is_seen_on_the_same_machine_and_on_another():
    old = {"key": "a1", "results": {"x": (1.0).hex(), "run": 1}}
    new = {"key": "a2", "results": {"x": (1.001).hex(), "run": 2}}
    places = [each.partition(":")[0] for each in freeze.differences(old, new, same_machine=True)]
    assert places == ["/key", "/results/run", "/results/x"]
    elsewhere = [each.partition(":")[0] for each in freeze.differences(old, new, same_machine=False)]
    assert elsewhere == ["/key", "/results/run"]
    assert list(freeze.differences([(1.0).hex()], [(1.5).hex()], same_machine=False))
    assert list(freeze.differences({"a": 1}, {}, same_machine=False)) == ["/a: gone"]


def test_on_another_machine_digests_of_rounded_numbers_do_not_count():
    study = {"s": [{"key": "a1", "arrays": {"y": "digest"}, "fingerprints": {"data": "d", "initial weights": "w"}}]}
    assert freeze.portable("studies", study) == {"s": [{"key": "a1", "arrays": ["y"], "fingerprints": {"data": "d"}}]}
    masks = {"native float32 bernoulli": ["digest", "0x1p0"], "native float32 gaussian": ["digest", "0x1p0"]}
    assert [*freeze.portable("masks", masks).values()] == [["digest", "0x1p0"], ["0x1p0"]]
