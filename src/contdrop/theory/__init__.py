"""Closed forms for dropout networks, independent of the kernels.

- ``static``: moments of a forward pass of a linear, sigmoid or ReLU unit.
- ``dynamic``: errors, gradients and regularizers of one unit; ``penalty``: the regularizer of a whole network.
- ``propagation``: moments through whole networks.
- ``bounds``: confidence bounds on errors, and mixtures of networks.
- ``paper_equations``: every equation of the paper against Monte Carlo.
"""

from . import bounds as bounds
from . import dynamic as dynamic
from . import paper_equations as paper_equations
from . import propagation as propagation
from . import static as static
