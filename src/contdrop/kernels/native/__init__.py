"""Native back end: C++ kernels for the CPU, with the numbers of the reference back end.

The library is plain C++ behind a C interface and uses the threads of the OpenMP library that torch has loaded. The
functions are those of :mod:`contdrop.kernels.reference`.
"""

from .binding import dropconnect as dropconnect
from .binding import dropconnect_gradients as dropconnect_gradients
from .binding import dropconnect_input_gradient as dropconnect_input_gradient
from .binding import dropconnect_weight_gradient as dropconnect_weight_gradient
from .binding import dropout as dropout
from .binding import keep_where as keep_where
from .loader import detail as detail
from .loader import interface as interface
from .loader import library as library
from .loader import use_instructions as use_instructions
