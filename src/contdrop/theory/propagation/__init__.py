from .network import COVARIANCES as COVARIANCES
from .network import LayerMoments as LayerMoments
from .network import Moments as Moments
from .network import moments as moments
from .network import propagate as propagate
