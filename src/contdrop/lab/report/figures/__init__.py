"""All figures. Each is a :class:`Picture`: words, and a function that draws it with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping

from ...stats import Comparison
from ...store.results import Results
from ...store.writer import Store
from . import class_errors as _classes
from .average_ranks import across as across
from .covariance_histogram import covariances
from .curves import curves
from .drawing import Picture as Picture
from .drawing import save as save
from .paired_differences import pairs as pairs
from .reliability import reliability
from .strength import certificates as certificates
from .strength import noise, sweep


def figures(store: Store, results: Results, comparisons: Mapping[str, Comparison] | None = None) -> list[Picture]:
    """Those that apply to one protocol, the most telling first. All is read here: drawing needs no store."""
    shares = _classes.matrices(store, results)
    found = (
        pairs(results, comparisons),
        sweep(results),
        noise(results),
        curves(store, results),
        covariances(store, results),
        reliability(store, results),
        _classes.classes_of(results, shares),
        _classes.confusion_of(results, shares),
    )
    return [picture for picture in found if picture is not None]
