"""The lab's networks."""

import dataclasses
import json
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from contdrop.lab.study.methods import NAMES, parse
from contdrop.replication.networks import CNN, MLP, VGG, ConvLocal
from contdrop.replication.networks.models import Glorot, dense_probabilities

every_method = pytest.mark.parametrize("name", NAMES)

# Small enough to be quick: 12 -> 10 -> 5 -> 3 -> 1 pixels a side.
SMALL_CNN = CNN(maps=(3, 4), kernel=3, hidden=7, classes=5, image=(2, 12, 12), scale="paper")
SMALL_MLP = MLP((288, 9, 8, 5), scale="paper")
SMALL_MODELS = [SMALL_MLP, MLP((288, 9, 5), "sigmoid", scale="paper"), SMALL_CNN]
SMALL = pytest.mark.parametrize("model", SMALL_MODELS, ids=str)
LARGE_MODELS = [
    ConvLocal(image=(2, 12, 12), classes=5, maps=(4, 5, 6, 3), hidden=7),
    VGG(stages=((4,), (6, 6)), hidden=9, classes=5, side=12),
]
IMAGES = torch.rand(6, 2, 12, 12, generator=torch.Generator().manual_seed(0))


def shapes(network):
    return [(name, tuple(value.shape)) for name, value in network.named_parameters()]


def with_biases(layers):
    return [
        (f"{name}.{part}", size)
        for name, shape in layers.items()
        for part, size in (("weight", shape), ("bias", shape[:1]))
    ]


def test_default_networks_are_those_of_the_paper():
    method = parse("gaussian")
    layers = {"hidden1.linear": (800, 784), "hidden2.linear": (800, 800), "output": (10, 800)}
    assert shapes(MLP()(method)) == with_biases(layers)
    layers = {"convolution1": (32, 1, 5, 5), "convolution2": (64, 32, 5, 5)}
    layers |= {"hidden1.linear": (150, 1024), "output": (10, 150)}
    network = CNN()(method)
    assert shapes(network) == with_biases(layers)
    assert network(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@every_method
@pytest.mark.parametrize("model", [*SMALL_MODELS, *LARGE_MODELS], ids=lambda model: model.kind)
@pytest.mark.parametrize("scale", ["paper", "inverted"])
def test_names_shapes_and_order_of_parameters_do_not_depend_on_the_method(name, model, scale):
    network = dataclasses.replace(model, scale=scale, input_keep=0.8)(parse(name))
    plain = dataclasses.replace(model, scale=scale)(parse("none"))
    assert shapes(network) == shapes(plain)
    assert list(network.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(network.parameters(), plain.parameters()))
    logits = network(IMAGES if model.kind != "vgg" else IMAGES[:, [0, 1, 0]])
    assert logits.shape == (6, 5)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@every_method
@SMALL
def test_hidden_layers_put_out_units_after_dropout(name, model):
    network = model(parse(name))
    units = {}
    layers = model.hidden_layers if isinstance(model, MLP) else ("hidden1",)
    for layer in layers:
        network.get_submodule(layer).register_forward_hook(
            lambda _, __, output, layer=layer: units.update({layer: output})
        )
    logits = network(IMAGES)
    assert tuple(units) == layers
    widths = model.widths[1:-1] if isinstance(model, MLP) else (model.hidden,)
    assert tuple(output.shape for output in units.values()) == tuple((6, width) for width in widths)
    if name != "fast":  # which masks them in the layer that reads them
        assert torch.equal(logits, network.output(units[layers[-1]]))
    if name == "bernoulli" and isinstance(model, MLP) and model.activation == "sigmoid":
        assert all((output == 0).any() and (output > 0).any() for output in units.values())


@every_method
@SMALL
def test_evaluation_is_deterministic_and_training_is_not(name, model):
    network = model(parse(name))
    assert torch.equal(network(IMAGES), network(IMAGES)) == (name == "none")
    network.eval()
    assert torch.equal(network(IMAGES), network(IMAGES))


def test_mlp_is_the_textbook_network():
    network = SMALL_MLP(parse("bernoulli:keep=0.25")).eval()
    x = IMAGES.flatten(1)
    for layer in (network.hidden1, network.hidden2):
        x = 0.25 * nn.functional.linear(x, layer.linear.weight, layer.linear.bias).relu()
    torch.testing.assert_close(network(IMAGES), nn.functional.linear(x, network.output.weight, network.output.bias))


@pytest.mark.parametrize("channels", [1, 2])
def test_cnn_is_convolution_relu_pooling(channels):
    model = dataclasses.replace(SMALL_CNN, image=(channels, 12, 12))
    network, copy = (model(parse("none")) for _ in range(2))
    copy.load_state_dict(network.state_dict())
    images = IMAGES[:, :channels]
    x = images
    for layer in (copy.convolution1, copy.convolution2):
        x = nn.functional.max_pool2d(layer(x).relu(), 2)
    expected = copy.output(copy.hidden1.linear(x.flatten(1)).relu())
    logits = network(images)
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(network.parameters(), copy.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
        assert ours.grad.is_contiguous()
        assert (ours.grad != 0).any()


@SMALL
def test_input_keep_drops_pixels(model):
    network = dataclasses.replace(model, input_keep=0.8)(parse("none"))
    torch.manual_seed(0)
    pixels = network.input(torch.ones(20, 2, 12, 12))
    assert set(pixels.unique().tolist()) == {0.0, 1.0}
    assert pixels.mean() == pytest.approx(0.8, abs=5 * (0.16 / pixels.numel()) ** 0.5)
    assert torch.equal(network.eval().input(IMAGES), IMAGES * 0.8)
    assert "input" not in dict(model(parse("none")).named_children())


def test_some_methods_see_whole_inputs():
    model = dataclasses.replace(SMALL_MLP, input_keep=0.8, whole_inputs=("none",))
    drops = {name: "input" in dict(model(parse(name)).named_children()) for name in NAMES}
    assert drops == {name: name != "none" for name in NAMES}
    assert "input" not in dict(model(parse("none:mean=0.5")).named_children())


@SMALL
@every_method
@pytest.mark.parametrize("divisor", [255.0, 16.0])
def test_images_may_be_whole_numbers(name, model, divisor):
    network = dataclasses.replace(model, divisor=divisor, input_keep=0.8)(parse(name))
    images = torch.randint(0, int(divisor) + 1, IMAGES.shape, generator=torch.Generator().manual_seed(1))
    images = images.to(torch.uint8)
    before, logits = images.clone(), []
    for given in (images, images.to(torch.float32) / divisor):
        torch.manual_seed(2)
        logits.append(network(given))
    assert torch.equal(*logits)
    assert torch.equal(images, before)
    floats = torch.rand(3, 2, 12, 12)
    assert network.pixels(floats) is floats
    assert 0 <= network.pixels(images).min() < 0.1
    assert 0.9 < network.pixels(images).max() <= 1


@pytest.mark.parametrize("model", [MLP(), CNN(initialisation=Glorot())], ids=lambda model: model.kind)
def test_as_dict_is_what_json_gives_back(model):
    """The keys of the golden plans pin what is in it."""
    assert json.loads(json.dumps(model.as_dict())) == model.as_dict()
    assert pickle.loads(pickle.dumps(model)) == model


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (MLP, {"widths": (784,)}, r"MLP: expected at least two widths, each at least 1; got \(784,\)"),
        (MLP, {"activation": "tanh"}, "MLP: expected activation to be one of relu, sigmoid; got 'tanh'"),
        (MLP, {"scale": "half"}, "MLP: expected scale to be one of 'inverted', 'paper'; got 'half'"),
        (CNN, {"image": (1, 14, 14)}, "CNN: nothing is left of images"),
        (CNN, {"input_keep": 0.0}, "CNN: expected 0 < input_keep <= 1 and divisor > 0; got 0.0 and 255.0"),
        (CNN, {"input_keep": 1.1}, "CNN: expected 0 < input_keep <= 1 and divisor > 0; got 1.1 and 255.0"),
        (CNN, {"divisor": 0.0}, "CNN: expected 0 < input_keep <= 1 and divisor > 0; got 1.0 and 0.0"),
    ],
)
def test_networks_that_cannot_be(model, settings, message):
    with pytest.raises(ValueError, match=message):
        model(**settings)


def test_no_hidden_layer_is_allowed():
    network = MLP((288, 5))(parse("fast"))
    assert MLP((288, 5)).hidden_layers == ()
    assert type(network.output) is nn.Linear


# VGG: its shape, its images, and dense evaluation against one window after another.


def vgg_of(method="none"):
    torch.manual_seed(0)
    network = LARGE_MODELS[1](parse(method))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.1)
    return network.eval()


def bytes_of(side=12, width=None):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, 3, side, width or side), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("method", NAMES)
def test_dense_evaluation_of_an_image_of_training_size_is_the_ordinary_pass(method):
    network = vgg_of(method)
    x = bytes_of()
    with torch.no_grad():
        expected = (network(x).softmax(1) + network(x.flip(3)).softmax(1)) / 2
    torch.testing.assert_close(dense_probabilities(network, x), expected, atol=1e-5, rtol=0)


def test_dense_evaluation_of_a_large_image_as_convolutions():
    """The hidden layers as 3x3, 1x1 and 1x1 convolutions over the last maps."""
    network = vgg_of()
    x = bytes_of(20, 28)

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
    network = vgg_of()
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
