"""All that ``contdrop.lab`` offers."""

try:
    import numpy as _numpy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'contdrop.lab needs {error.name}, which is not installed; run: pip install "contdrop[lab]"', name=error.name
    ) from None

from .api import Result as Result
from .api import analyze as analyze
from .api import compare as compare
from .data.data import Data as Data
from .runner.custom_loop import Job as Job
from .runner.custom_loop import ask as ask
from .study.study import METHODS as METHODS
from .study.study import Size as Size
from .study.study import Study as Study
from .training.metrics import Metric as Metric
from .training.uncertainty import uncertainty as uncertainty
