"""All figures. Each is a :class:`Picture`: words, and a function that draws it with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping

from ...results import Results
from ...stats import Comparison
from ...store import Store
from . import classes as _classes
from .certificates import certificates as certificates
from .covariances import covariances
from .curves import curves
from .drawing import Picture as Picture
from .drawing import save as save
from .ledger import claims as claims
from .noise import noise
from .pairs import pairs as pairs
from .ranks import across as across
from .reliability import reliability
from .samples import samples as samples
from .sweep import sweep


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
