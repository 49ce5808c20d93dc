"""Locally connected layers, cross-map and local contrast normalisation against loops; the network made of them."""

import dataclasses
import time

import numpy as np
import pytest
import torch
from torch import nn

from contdrop.lab.study.methods import parse
from contdrop.replication.networks import ConvLocal
from contdrop.replication.networks.conv_local import CrossMapNorm, LocalContrast, LocallyConnected2d

RANDOM = np.random.default_rng(0)


def naive_local(x, layer):
    number, channels, height, width = x.shape
    kernel, half = layer.kernel, layer.kernel // 2
    weight = layer.weight.detach().double().reshape(kernel, kernel, height, width, channels, -1)
    bias = layer.bias.detach().double().reshape(height, width, -1)
    found = torch.zeros(number, layer.out_channels, height, width, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            found[:, :, i, j] += bias[i, j]
            for p in range(kernel):
                for q in range(kernel):
                    row, column = i + p - half, j + q - half
                    if 0 <= row < height and 0 <= column < width:
                        found[:, :, i, j] += x[:, :, row, column].double() @ weight[p, q, i, j]
    return found


@pytest.mark.parametrize(("size", "kernel"), [((5, 4), 3), ((3, 3), 5), ((4, 6), 1)])
def test_a_local_layer_against_loops(size, kernel):
    torch.manual_seed(0)
    layer = LocallyConnected2d(3, 4, size, kernel)
    nn.init.normal_(layer.bias)
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(layer(x).double(), naive_local(x, layer), atol=1e-5, rtol=0)


def test_gradients_of_a_local_layer():
    layer = LocallyConnected2d(2, 3, (3, 4)).double()
    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)

    def function(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(function, (x, layer.weight, layer.bias))


def seconds(layer, x, gradient):
    """Of the processor, forward and backward: the best of several, after two to warm up."""
    found = []
    for _ in range(8):
        start = time.process_time()
        layer(x).backward(gradient)
        found.append(time.process_time() - start)
    return min(found[2:])


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("side", [7, 12])
@pytest.mark.parametrize("maps", [64, 32])
def test_a_local_layer_takes_at_most_three_times_as_long_as_a_convolution(side, maps):
    x = torch.randn(128, 64, side, side, requires_grad=True)
    gradient = torch.randn(128, maps, side, side)
    local = seconds(LocallyConnected2d(64, maps, (side, side)), x, gradient)
    assert local < 3 * seconds(nn.Conv2d(64, maps, 3, padding=1), x, gradient)


def test_a_local_layer_says_what_it_expects():
    with pytest.raises(ValueError, match="expected an odd kernel; got 2"):
        LocallyConnected2d(1, 1, (3, 3), 2)
    with pytest.raises(ValueError, match=r"expected inputs \[N, \(1, 3, 3\)\]; got \(2, 1, 4, 3\)"):
        LocallyConnected2d(1, 1, (3, 3))(torch.zeros(2, 1, 4, 3))


def test_cross_map_normalisation_against_loops():
    x = torch.randn(2, 12, 3, 4) * 20
    found = CrossMapNorm(size=9, alpha=1e-3, beta=0.75)(x)
    for m in range(12):
        window = x[:, max(0, m - 4) : m + 5].double()
        expected = x[:, m].double() / (1 + 1e-3 / 9 * window.square().sum(1)) ** 0.75
        torch.testing.assert_close(found[:, m].double(), expected, atol=1e-5, rtol=0)


def naive_contrast(plane, window=9, deviation=2.25):
    height, width = plane.shape
    half = window // 2
    line = np.exp(-((np.arange(window) - half) ** 2) / (2 * deviation**2))

    def mean(values, row, column):
        total = weight = 0.0
        for p in range(max(0, row - half), min(height, row + half + 1)):
            for q in range(max(0, column - half), min(width, column + half + 1)):
                w = line[p - row + half] * line[q - column + half]
                total, weight = total + w * values[p, q], weight + w
        return total / weight

    places = [(row, column) for row in range(height) for column in range(width)]
    centred = np.array([plane[at] - mean(plane, *at) for at in places]).reshape(height, width)
    deviations = np.array([mean(centred**2, *at) for at in places]).reshape(height, width) ** 0.5
    return centred / np.maximum(deviations, deviations.mean())


def test_local_contrast_against_loops():
    images = RANDOM.random((1, 2, 11, 12))
    found = LocalContrast()(torch.from_numpy(images).float())
    for channel in range(2):
        np.testing.assert_allclose(found[0, channel], naive_contrast(images[0, channel]), atol=1e-5)


def test_local_contrast_of_an_even_image_is_nothing():
    assert float(LocalContrast()(torch.full((1, 3, 12, 12), 0.7)).abs().max()) < 1e-2


def test_the_network_of_the_paper():
    network = ConvLocal()(parse("gaussian"))
    names = [name for name, _ in network.named_children()]
    assert names.index("normalisation1") > names.index("pooling1")
    assert names.index("normalisation2") < names.index("pooling2")
    assert network.local3.size == (7, 7)
    assert network.hidden1.linear.in_features == 32 * 49
    assert dataclasses.replace(ConvLocal(), image=(2, 48, 48))(parse("none")).local4.size == (12, 12)
    deviation = {name: float(p.detach().std()) for name, p in network.named_parameters() if p.dim() > 1}
    assert deviation["local3.weight"] == pytest.approx(0.04, rel=0.01)
    assert deviation["hidden1.linear.weight"] == pytest.approx(0.1, rel=0.01)
    assert not any(p.any() for p in network.parameters() if p.dim() < 2)
