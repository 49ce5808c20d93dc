"""The theory of the layers, independent of their kernels: what dropout does to a network, in closed form.

- ``static``: moments of a forward pass, for a linear, sigmoid or ReLU unit.
- ``dynamic``: errors, gradients and regularisers of one unit, and ``penalty``, the regulariser of a whole network.
- ``propagation``: moments through whole networks.
- ``bounds``: confidence bounds on errors, and mixtures of networks.
- ``paper_equations``: every equation of the paper against Monte Carlo.
"""

from . import bounds as bounds
from . import dynamic as dynamic
from . import paper_equations as paper_equations
from . import propagation as propagation
from . import static as static
