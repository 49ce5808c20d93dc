"""The lab: which dropout is better on a model, and whether the gain is real. See :mod:`contdrop.lab.study.study`."""

from typing import TYPE_CHECKING

from .._lazy import lazily as _lazily

if TYPE_CHECKING:
    from .public import *  # noqa: F403
else:
    __getattr__, __dir__ = _lazily(__name__)
