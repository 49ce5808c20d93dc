"""Mask kernels: one torch.library operator per operation, and the back ends that implement them."""

from . import fast_path as fast_path
from . import ops as ops
from .backends import Backend as Backend
from .backends import backend as backend
from .backends import use_backend as use_backend
from .ops import LIBRARY as LIBRARY
from .reference import MASKS_VERSION as MASKS_VERSION
from .reference import STREAM_BIAS as STREAM_BIAS
from .reference import STREAM_MASK as STREAM_MASK
from .reference import STREAM_NORMAL as STREAM_NORMAL
from .reference import compute_dtype as compute_dtype
from .seeds import checkpoint_context as checkpoint_context
from .seeds import draw_seed as draw_seed
