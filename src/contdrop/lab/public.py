"""All that ``contdrop.lab`` offers."""

try:
    import numpy as _numpy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'contdrop.lab needs {error.name}, which is not installed; run: pip install "contdrop[lab]"', name=error.name
    ) from None

from .asking import Job as Job
from .asking import ask as ask
from .batches import Data as Data
from .comparing import compare as compare
from .confidence import uncertainty as uncertainty
from .metrics import Metric as Metric
from .result import Result as Result
from .result import analyse as analyse
from .study import METHODS as METHODS
from .study import Size as Size
from .study import Study as Study
