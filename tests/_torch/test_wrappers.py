"""Monte-Carlo wrappers of other libraries, and what they do; int8 weights of torchao."""

import copy

import pytest
import torch
from torch.nn.modules.dropout import _DropoutNd

import contdrop as cd
from conformance import seeded


def network(dropout):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.ReLU(), dropout, torch.nn.Linear(20, 3))


DROPOUTS = {
    "nn.Dropout": lambda: torch.nn.Dropout(0.3),
    "bernoulli": lambda: cd.BernoulliDropout(0.3),
    "gaussian": lambda: cd.GaussianDropout(0.3),
}
every_dropout = pytest.mark.parametrize("make", DROPOUTS.values(), ids=DROPOUTS)


def varies(model):
    x = torch.randn(4, 6)
    return bool((torch.stack([model(x) for _ in range(20)]).var(0) > 0).all())


@every_dropout
@pytest.mark.parametrize(
    "is_found",
    [lambda module: isinstance(module, _DropoutNd), lambda module: type(module).__name__.endswith("Dropout")],
    ids=["type", "name"],
)
def test_layers_that_are_found_by_type_or_name_are_left_on(make, is_found):
    # What torch-uncertainty does: finds the instances of _DropoutNd, refuses those with p = 0, and leaves them on.
    model = network(make()).eval()
    (found,) = filter(is_found, model.modules())
    assert found.p > 0
    found.train()
    assert varies(model)


def test_bernoulli_dropout_is_a_dropout_of_torch():
    # What baal looks for. The continuous layers are none: it would put Bernoulli noise in their place.
    assert isinstance(cd.BernoulliDropout(0.3), torch.nn.Dropout)
    assert not isinstance(cd.GaussianDropout(0.3), torch.nn.Dropout)


def test_baal():
    bayesian = pytest.importorskip("baal.bayesian.dropout", reason="baal is not installed")
    model = bayesian.patch_module(network(cd.BernoulliDropout(0.3)), inplace=False).eval()
    assert model[2].p == 0.3
    assert varies(model)


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
    reference = cd.DropConnectLinear(16, 8, masks=masks, inference="analytic", activation="relu")
    layer = copy.deepcopy(reference)
    quantized = torch.nn.Sequential(layer)
    quantization.quantize_(quantized, quantization.Int8WeightOnlyConfig())
    assert type(layer.weight) is not torch.nn.Parameter
    x = torch.randn(5, 16)
    expected, result = (seeded(each.train(training), x) for each in (reference, quantized))
    # A weight is rounded to within half of a 127th of the largest of its row; the mask at most doubles a weight.
    bound = 2 * (reference.weight.abs().amax(1) / 127 / 2)[None, :] * x.abs().sum(1, keepdim=True)
    assert ((result - expected).abs() <= bound + 1e-5).all()
    assert not torch.equal(result, expected)
