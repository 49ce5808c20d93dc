"""How masks are made: one torch.library operator per operation, and the back ends that fill them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import fast_path as fast_path
from . import ops
from . import variable_law as variable_law
from .backends import Backend as Backend
from .backends import backend as backend
from .backends import use_backend as use_backend
from .library import LIBRARY as LIBRARY
from .reference import MASKS_VERSION as MASKS_VERSION
from .reference import STREAM_BIAS as STREAM_BIAS
from .reference import STREAM_MASK as STREAM_MASK
from .reference import STREAM_NORMAL as STREAM_NORMAL
from .reference import compute_dtype as compute_dtype
from .reference import row_of_numbers as row_of_numbers
from .seeds import checkpoint_context as checkpoint_context
from .seeds import draw_seed as draw_seed

dropout: Callable[..., Tensor] = ops.dropout
keep_where: Callable[..., Tensor] = ops.keep_where
dropconnect: Callable[..., Tensor] = ops.dropconnect


def uniform(
    seed: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    stream: int,
    window: Sequence[int] = (),
) -> Tensor:
    """The numbers in (0, 1) behind a mask of this size with a continuous law: float32 or float64, and exact in both."""
    return dropout(torch.ones(size, dtype=dtype, device=device), seed, "uniform", (0.0, 1.0), 1.0, [], stream, window)
