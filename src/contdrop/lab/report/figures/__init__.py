"""Figures of a report; each is a :class:`Picture`."""

from __future__ import annotations

from ...analysis.verdict import Analysis
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


def figures(store: Store, analysis: Analysis) -> list[Picture]:
    """Return the figures that apply to one experiment, the most telling first; drawing them needs no store."""
    results = analysis.results
    shares = _classes.matrices(store, results)
    found = (
        pairs(analysis),
        sweep(results),
        noise(results),
        curves(store, results),
        covariances(store, results),
        reliability(store, results),
        _classes.classes_of(results, shares),
        _classes.confusion_of(results, shares),
    )
    return [picture for picture in found if picture is not None]
