"""contdrop: continuous dropout and its relatives for PyTorch."""

from . import certificates as certificates
from . import functional as functional
from . import nn as nn
from . import schedules as schedules
from . import surgery as surgery
from . import theory as theory
from .coadaptation import Coadaptation as Coadaptation
from .coadaptation import coadaptation as coadaptation
from .fusion import fuse_relu as fuse_relu
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

__version__ = "0.1.0"
