"""Continuous dropout and its relatives for PyTorch.

Everything is imported on first use: torch takes seconds to import, and not every command needs it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import certificates as certificates
    from . import functional as functional
    from . import nn as nn
    from . import schedules as schedules
    from . import surgery as surgery
    from . import theory as theory
    from .covariances import Coadaptation as Coadaptation
    from .covariances import coadaptation as coadaptation
    from .inference import Prediction as Prediction
    from .inference import mc_predict as mc_predict
    from .kernels import Backend as Backend
    from .kernels import backend as backend
    from .kernels import checkpoint_context as checkpoint_context
    from .kernels import use_backend as use_backend
    from .laws import Bernoulli as Bernoulli
    from .laws import Gaussian as Gaussian
    from .laws import Law as Law
    from .laws import Uniform as Uniform
    from .laws import parse_law as parse_law
    from .nn import AdaptiveDropout as AdaptiveDropout
    from .nn import BernoulliDropout as BernoulliDropout
    from .nn import DropConnectLinear as DropConnectLinear
    from .nn import Dropout as Dropout
    from .nn import FastDropoutLinear as FastDropoutLinear
    from .nn import GaussianDropout as GaussianDropout
    from .nn import UniformDropout as UniformDropout
    from .surgery import Swap as Swap
    from .surgery import swap_dropout as swap_dropout
    from .surgery.relu_fusion import fuse_relu as fuse_relu

__version__ = "0.1.0"

_MODULES = ("certificates", "functional", "nn", "schedules", "surgery", "theory")
_NAMES = {
    "covariances": ("Coadaptation", "coadaptation"),
    "inference": ("Prediction", "mc_predict"),
    "kernels": ("Backend", "backend", "checkpoint_context", "use_backend"),
    "laws": ("Bernoulli", "Gaussian", "Law", "Uniform", "parse_law"),
    "nn": (
        *("AdaptiveDropout", "BernoulliDropout", "DropConnectLinear", "Dropout", "FastDropoutLinear"),
        *("GaussianDropout", "UniformDropout"),
    ),
    "surgery": ("Swap", "swap_dropout"),
    "surgery.relu_fusion": ("fuse_relu",),
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted([*_MODULES, *_PLACES])


def __getattr__(name: str) -> Any:
    """Import a public name or a submodule on first use (PEP 562)."""
    if name in _PLACES:
        found = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    elif name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        found = importlib.import_module(f".{name}", __name__)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
