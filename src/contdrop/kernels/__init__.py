"""How masks are made: one torch.library operator per operation, and the back ends that fill them."""

from .ops import dropconnect as dropconnect
from .ops import dropout as dropout
from .ops import keep_where as keep_where
from .ops import normal as normal
from .reference import STREAM_BIAS as STREAM_BIAS
from .reference import STREAM_MASK as STREAM_MASK
from .seeds import checkpoint_context as checkpoint_context
from .seeds import draw_seed as draw_seed
