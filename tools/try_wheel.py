"""Smoke test of an installed wheel, run by [tool.cibuildwheel] for each wheel.

python tools/try_wheel.py
"""

from __future__ import annotations

import torch

import contdrop as cd
from contdrop.kernels.native import _express  # noqa: F401  (that it can be loaded)


def draw() -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.linspace(1, 2, 1000, requires_grad=True)
    y = cd.GaussianDropout(sigma=0.3)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return torch.stack([y.detach(), gradient])


def main() -> None:
    backend = cd.backend()
    assert backend.name == "native", backend
    assert backend.detail != "portable", backend
    ours = draw()
    with cd.use_backend("reference"):
        assert torch.allclose(ours, draw(), rtol=1e-5, atol=1e-6)
    print(f"contdrop {cd.__version__}: {backend} gives the masks of the reference")


if __name__ == "__main__":
    main()
