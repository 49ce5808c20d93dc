"""VGG: its shape, its images, and dense evaluation against one window after another."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from contdrop.lab.study.methods import NAMES, parse
from contdrop.replication.networks import VGG
from contdrop.replication.networks.vgg import dense_probabilities

SMALL = VGG(stages=((4,), (6, 6)), hidden=9, classes=5, side=12)


def made(method="none"):
    torch.manual_seed(0)
    network = SMALL(parse(method))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.1)
    return network.eval()


def images(side=12, width=None):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, 3, side, width or side), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("method", NAMES)
def test_dense_evaluation_of_an_image_of_training_size_is_the_ordinary_pass(method):
    network = made(method)
    x = images()
    with torch.no_grad():
        expected = (network(x).softmax(1) + network(x.flip(3)).softmax(1)) / 2
    torch.testing.assert_close(dense_probabilities(network, x), expected, atol=1e-5, rtol=0)


def test_dense_evaluation_of_a_large_image_as_convolutions():
    """The hidden layers as 3x3, 1x1 and 1x1 convolutions over the last maps."""
    network = made()
    x = images(20, 28)

    def scores(x):
        maps = network.convolutions(network.means(x.float()))
        assert maps.shape[2:] == (5, 7)
        first, second, last = network.fc6.linear, network.fc7.linear, network.fc8
        maps = F.relu(F.conv2d(maps, first.weight.view(9, 6, 3, 3), first.bias))
        maps = F.relu(F.conv2d(maps, second.weight.view(9, 9, 1, 1), second.bias))
        return F.conv2d(maps, last.weight.view(5, 9, 1, 1), last.bias).mean((2, 3)).softmax(1)

    with torch.no_grad():
        expected = (scores(x) + scores(x.flip(3))) / 2
    torch.testing.assert_close(dense_probabilities(network, x), expected, atol=1e-5, rtol=0)


def test_images_become_blue_green_red_without_their_means():
    network = made()
    pixels = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)
    found = network.means(network.pixels(pixels)).flatten()
    torch.testing.assert_close(found, torch.tensor([30 - 103.939, 20 - 116.779, 10 - 123.68]))


def test_configuration_d():
    with torch.device("meta"):
        convolutions = VGG._layers(VGG(hidden=1, classes=1), parse("none"))["convolutions"]
    layers = [layer for layer in convolutions if isinstance(layer, nn.Conv2d)]
    assert len(layers) == 13
    assert sum(p.numel() for p in convolutions.parameters()) == 14_714_688  # as published without the dense layers
    with torch.device("meta"):
        whole = VGG()._layers(parse("none"))
    assert sum(p.numel() for layer in whole.values() for p in layer.parameters()) == 138_357_544
