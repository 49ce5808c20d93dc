"""Which method is the control of another: Bernoulli masks of the same mean and strength, and whether they are that."""

from __future__ import annotations

import math

from ..store.results import Results
from ..study.labels import MATCH, ORIGINAL, name_in_text

_MATCHED = "bernoulli-matched"
_ALIKE = 0.01  # in proportion: strengths that count as equal


def control_of(method: str) -> str | None:
    """The label of the method with as much noise in Bernoulli's shape; None if there is none.

    >>> control_of("gaussian:sigma=0.3"), control_of("uniform"), control_of("none")
    ('bernoulli-matched:sigma=0.3', 'bernoulli-matched:uniform', None)
    >>> control_of("gaussian:r=0.3")
    'bernoulli:r=0.3'
    """
    name, _, given = method.partition(":")
    if name not in ("gaussian", "uniform"):
        return None
    if given == MATCH:  # the strength is that of the model's own dropout
        return ORIGINAL
    if given.startswith("r="):  # a strength that Bernoulli takes as it is
        return f"bernoulli:{given}"
    word = given or ("uniform" if name == "uniform" else "")
    return f"{_MATCHED}:{word}" if word else _MATCHED


def unlike(results: Results, first: str, second: str) -> str | None:
    """Why two methods are not of equal noise: their masks differ in relative variance or in mean, or may do so."""
    found = {job.method: job.results for job in results.finished}
    for key, what in (("relative_variance", "relative variance"), ("mean", "mean of the masks")):
        ours, theirs = found[first].get(key), found[second].get(key)
        if ours is not None and theirs is not None and not math.isclose(ours, theirs, rel_tol=_ALIKE):
            kind = "another amount of noise" if key == "relative_variance" else "masks of another mean"
            return f"{name_in_text(second)} was run with {kind}, {what} {theirs:.3f} instead of {ours:.3f}"
    configuration = results.protocol.configuration
    scale = configuration.get("scale") or (configuration.get("recipe") or {}).get("scale")
    for key, what in (("relative_variance", "strength"), ("mean", "mean")):
        known = all(found[each].get(key) is not None for each in (first, second))
        if not known and (key != "mean" or scale == "paper"):
            start, masks = ("masks are unscaled here, and ", "those") if key == "mean" else ("", "the masks")
            return (
                f"{start}the store does not say whether {masks} of {name_in_text(second)} have the {what} of those of "
                f"{name_in_text(first)}"
            )
    return None


def too_weak(results: Results) -> list[tuple[str, float, float]]:
    """Methods whose law cannot be as strong as the model's own dropout, with their strength and the model's."""
    found = {job.method: job.results.get("relative_variance") for job in results.finished}
    own = found.get(ORIGINAL)
    return [
        (method, strength, own)
        for method, strength in found.items()
        if method.endswith(f":{MATCH}") and strength is not None and own is not None
        if strength < own * (1 - _ALIKE)
    ]
