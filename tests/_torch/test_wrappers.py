"""Monte-Carlo wrappers of other libraries, and what they do; int8 weights of torchao."""

import pytest
import torch
from torch.nn.modules.dropout import _DropoutNd

import contdrop as cd


def network(dropout):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.ReLU(), dropout, torch.nn.Linear(20, 3))


DROPOUTS = {
    "nn.Dropout": lambda: torch.nn.Dropout(0.3),
    "bernoulli": lambda: cd.BernoulliDropout(0.3),
    "gaussian": lambda: cd.GaussianDropout(0.3),
}
every_dropout = pytest.mark.parametrize("make", DROPOUTS.values(), ids=DROPOUTS)


@every_dropout
def test_layers_that_are_found_by_type_are_left_on(make):
    # What torch-uncertainty does: finds the instances of _DropoutNd, refuses those with p = 0, and leaves them on.
    model = network(make()).eval()
    found = [module for module in model.modules() if isinstance(module, _DropoutNd)]
    assert len(found) == 1
    assert found[0].p > 0
    for module in found:
        module.train()
    x = torch.randn(4, 6)
    passes = torch.stack([model(x) for _ in range(20)])
    assert (passes.var(0) > 0).all()


@every_dropout
def test_layers_that_are_found_by_name_are_left_on(make):
    model = network(make()).eval()
    for module in model.modules():
        if type(module).__name__.endswith("Dropout"):
            module.train()
    x = torch.randn(4, 6)
    assert not torch.equal(model(x), model(x))


@every_dropout
def test_layers_that_are_replaced_by_others_with_their_p(make):
    # What baal does: puts a layer of its own that is always on in place of each, made from p and inplace.
    model = network(make())
    strength = {
        name: layer.p / (1 - layer.p) for name, layer in model.named_children() if isinstance(layer, _DropoutNd)
    }
    for name, layer in list(model.named_children()):
        if isinstance(layer, _DropoutNd):
            strength[name] = layer.p / (1 - layer.p)
            model.add_module(name, torch.nn.Dropout(p=layer.p, inplace=layer.inplace))
    law = getattr(make(), "law", cd.Bernoulli(keep=0.7))
    assert strength == {"2": pytest.approx(law.relative_variance)}


def test_bernoulli_dropout_is_a_dropout_of_torch():
    # What baal looks for. The continuous layers are none: it would put Bernoulli noise in their place.
    assert isinstance(cd.BernoulliDropout(0.3), torch.nn.Dropout)
    assert not isinstance(cd.GaussianDropout(0.3), torch.nn.Dropout)


def test_baal():
    bayesian = pytest.importorskip("baal.bayesian.dropout", reason="baal is not installed")
    model = bayesian.patch_module(network(cd.BernoulliDropout(0.3)), inplace=False).eval()
    assert model[2].p == 0.3
    x = torch.randn(4, 6)
    assert (torch.stack([model(x) for _ in range(20)]).var(0) > 0).all()


@every_dropout
def test_torch_uncertainty(make):
    methods = pytest.importorskip("torch_uncertainty.methods.mc_dropout", reason="torch-uncertainty is not installed")
    wrapped = methods.mc_dropout(network(make()), num_estimators=16, task="regression", probabilistic=False).eval()
    y = wrapped(torch.randn(4, 6))
    assert (y.reshape(16, 4, 3).var(0) > 0).all()


@pytest.mark.filterwarnings("ignore")  # of torchao
@pytest.mark.parametrize("masks", ["example", "batch"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_int8_weights(masks, training):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    configuration = quantization.Int8WeightOnlyConfig()
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(16, 8)).eval()
    quantization.quantize_(plain, configuration)
    layer = cd.DropConnectLinear(16, 8, masks=masks, inference="analytic", activation="relu")
    torch.manual_seed(0)
    reference = cd.DropConnectLinear(16, 8, masks=masks, inference="analytic", activation="relu")
    layer.load_state_dict(reference.state_dict())
    quantised = torch.nn.Sequential(layer)
    quantization.quantize_(quantised, configuration)
    assert type(layer.weight) is not torch.nn.Parameter
    x = torch.randn(5, 16)
    torch.manual_seed(1)
    expected = reference.train(training)(x)
    torch.manual_seed(1)
    result = quantised.train(training)(x)
    # A weight is rounded to within half of a 127th of the largest of its row; the mask at most doubles a weight.
    bound = 2 * (reference.weight.abs().amax(1) / 127 / 2)[None, :] * x.abs().sum(1, keepdim=True)
    assert ((result - expected).abs() <= bound + 1e-5).all()
    assert not torch.equal(result, expected)
