"""contdrop: continuous dropout and its relatives for PyTorch."""

from typing import TYPE_CHECKING

from ._lazy import lazily as _lazily

if TYPE_CHECKING:
    from .public import *  # noqa: F403
else:
    __getattr__, __dir__ = _lazily(__name__)

__version__ = "0.1.0"
