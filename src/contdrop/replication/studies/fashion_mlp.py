"""Fashion-MNIST, with the networks and the training of the MNIST tables: images that are harder to tell apart."""

import dataclasses
from typing import Any

from . import mnist_cnn, mnist_mlp

_COMMON: dict[str, Any] = {
    "paper": "",
    "data": dataclasses.replace(mnist_mlp.IMAGES, name="fashion-mnist"),
    "notes": ("The paper has no such table. Networks, rates and schedules are those of its MNIST tables.",),
    "margin": 0.2,
    "margin_reason": "two test images in a thousand, where networks like these err on about a hundred",
}

MLP_SIGMOID = mnist_mlp.SIGMOID.replace(
    name="fashion-mlp-sigmoid", title="Fashion-MNIST, 784-800-800-10, sigmoid", **_COMMON
)

MLP_RELU = mnist_mlp.RELU.replace(name="fashion-mlp-relu", title="Fashion-MNIST, 784-800-800-10, ReLU", **_COMMON)

CNN_GAUSSIAN = mnist_cnn.GAUSSIAN.replace(
    name="fashion-cnn-gaussian",
    title="Fashion-MNIST, two convolutions and 150 ReLU units, Gaussian initial weights",
    **_COMMON,
)

CNN_UNIFORM = mnist_cnn.UNIFORM.replace(
    name="fashion-cnn-uniform",
    title="Fashion-MNIST, two convolutions and 150 ReLU units, uniform initial weights",
    **_COMMON,
)
