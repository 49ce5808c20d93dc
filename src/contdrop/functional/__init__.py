"""Dropout functions. The modules in :mod:`contdrop.nn` store arguments and call these.

Scaling: with ``scale="inverted"`` (torch's convention) training multiplies by m / E[m] and evaluation is the identity;
with ``scale="paper"`` training multiplies by m and evaluation by E[m].

Randomness: each call draws one seed from ``generator``, or from torch's default CPU generator, and recreates its mask
from that seed in backward.
"""

from .elementwise import adaptive_dropout as adaptive_dropout
from .elementwise import dropout as dropout
from .linear import dropconnect_linear as dropconnect_linear
from .linear import fast_dropout_linear as fast_dropout_linear
