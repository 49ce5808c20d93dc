"""The theory of the layers, independent of their kernels: what dropout does to a network, in closed form."""
