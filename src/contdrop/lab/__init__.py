"""The lab: which dropout is better on a model, and whether the gain is real. See :mod:`contdrop.lab.study`."""

from typing import TYPE_CHECKING

from ..lazy import lazily as _lazily

if TYPE_CHECKING:
    from .public import *  # noqa: F403
else:
    __getattr__, __dir__ = _lazily(__name__)
