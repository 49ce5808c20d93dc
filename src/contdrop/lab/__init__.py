"""Paired experiments: studies, data, training, store, statistics and reports.

Everything is imported on first use, as in :mod:`contdrop`.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Result as Result
    from .api import analyze as analyze
    from .api import compare as compare
    from .data.data import Data as Data
    from .runner.custom_loop import Job as Job
    from .runner.custom_loop import ask as ask
    from .runner.ray_cluster import RayResources as RayResources
    from .study.study import METHODS as METHODS
    from .study.study import Description as Description
    from .study.study import Selection as Selection
    from .study.study import Size as Size
    from .study.study import Study as Study
    from .study.study import Training as Training
    from .training.metrics import Metric as Metric
    from .training.uncertainty import uncertainty as uncertainty

_NAMES = {
    "api": ("Result", "analyze", "compare"),
    "data.data": ("Data",),
    "runner.custom_loop": ("Job", "ask"),
    "runner.ray_cluster": ("RayResources",),
    "study.study": ("METHODS", "Description", "Selection", "Size", "Study", "Training"),
    "training.metrics": ("Metric",),
    "training.uncertainty": ("uncertainty",),
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """Import a public name or a submodule on first use (PEP 562)."""
    if name in _PLACES:
        try:
            importlib.import_module("numpy")
        except ModuleNotFoundError:
            missing = 'contdrop.lab needs numpy, which is not installed; run: pip install "contdrop[lab]"'
            raise ModuleNotFoundError(missing, name="numpy") from None
        found = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    elif name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        found = importlib.import_module(f".{name}", __name__)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
