"""All that ``contdrop.lab`` offers."""

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
