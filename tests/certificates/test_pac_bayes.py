"""PAC-Bayes certificates: they hold, and a Gaussian network has the stated distribution."""

import copy
import math

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

import contdrop as cd
from architectures import Centred, blobs, trained
from contdrop.certificates import SCALES, GaussianNetwork, pac_bayes_certificate
from contdrop.theory import bounds

pytestmark = pytest.mark.usefixtures("one_thread")


def test_weights_and_outputs_of_a_gaussian_network_have_one_distribution():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 3))
    network = GaussianNetwork(layer, 0.2)
    x = torch.randn(1, 4)
    with torch.no_grad():
        drawn = network(x.expand(200_000, 4))
        weights = layer[0].weight + 0.2 * torch.randn(50_000, 3, 4)
        biases = layer[0].bias + 0.2 * torch.randn(50_000, 3)
        direct = (weights * x).sum(-1) + biases
    torch.testing.assert_close(drawn.mean(0), direct.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), direct.T.cov(), atol=0.005, rtol=0.03)


def test_divergence_of_a_gaussian_network():
    torch.manual_seed(0)
    network = GaussianNetwork(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), 0.2)
    assert network.kl().item() == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        for mean, log_scale in zip(network.means, network.log_scales):
            mean.add_(torch.randn_like(mean) * 0.1)
            log_scale.add_(torch.randn_like(log_scale) * 0.3)
    expected = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(mean.double(), log_scale.double().exp()),
            torch.distributions.Normal(centre.double(), torch.tensor(0.2, dtype=torch.float64)),
        ).sum()
        for mean, centre, log_scale in zip(network.means, network.centres, network.log_scales)
    )
    assert network.kl().item() == pytest.approx(expected.item(), rel=1e-6)
    shifts = GaussianNetwork(torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False)), 0.5)
    with torch.no_grad():
        shifts.means[0].add_(1.0)
    assert shifts.kl().item() == pytest.approx(bounds.weight_kl([1.0, 1.0], [0.0, 0.0], 0.5).item(), rel=1e-6)


def test_pac_bayes_takes_labels_of_every_whole_type():
    prior = trained(cd.Uniform(), n=200, epochs=1)
    x, y = blobs(100, 4)
    found = [pac_bayes_certificate(prior, x, y.to(kind), epochs=1) for kind in (torch.int64, torch.uint8)]
    assert found[0].bound == found[1].bound


@pytest.mark.parametrize("law", [cd.Gaussian(sigma=0.3), cd.Bernoulli(keep=0.5), cd.Uniform()], ids=str)
def test_pac_bayes_certificate_is_gained_by_training_and_holds(law):
    prior = trained(law, n=200, epochs=6)
    kept = copy.deepcopy(prior.state_dict())
    x, y = blobs(4000, 4)
    steps = []
    at_first = pac_bayes_certificate(prior, x, y, epochs=0)
    found = pac_bayes_certificate(prior, x, y, epochs=6, learning_rate=0.01, after_each=steps.append)
    assert all(torch.equal(prior.state_dict()[name], value) for name, value in kept.items())
    assert steps == [1, 2, 3, 4, 5, 6]
    assert at_first.kl == pytest.approx(0, abs=1e-9)
    assert found.kl > 0
    assert found.bound < at_first.bound
    assert found.empirical < found.empirical_bound < found.bound < 1
    price = math.log(2 * math.sqrt(4000) * len(SCALES) / 0.025)
    assert found.bound == pytest.approx(bounds.kl_inverse(found.empirical_bound, (found.kl + price) / 4000).item())
    tested, truth = blobs(20_000, 5)
    with torch.no_grad():
        error = (found.network(tested).argmax(1) != truth).double().mean().item()
    assert error < found.bound
    assert found.bound < error + 0.12  # and is not empty


class Scaled(torch.nn.Linear):
    def forward(self, x):
        return 100 * super().forward(x)


class Rows(torch.nn.Module):
    """The positions of all examples, one below the other."""

    def forward(self, x):
        return x.flatten(0, 1)


class ByExample(torch.nn.Module):
    """The mean over the positions of each example."""

    def __init__(self, positions):
        super().__init__()
        self.positions = positions

    def forward(self, x):
        return x.reshape(-1, self.positions, x.shape[-1]).mean(1)


def hooked(layer):
    layer.register_forward_hook(lambda layer, args, output: 100 * output)
    return layer


def replaced(layer):
    layer.forward = lambda x: 100 * torch.nn.functional.linear(x, layer.weight, layer.bias)
    return layer


def frozen(layer):
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", weight)
    return layer


class Doubling(torch.nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layers", "positions", "message"),
    [
        ([torch.nn.Linear(100, 2)], None, None),
        ([torch.nn.Linear(100, 2), ByExample(1)], 1, None),
        ([torch.nn.Linear(100, 2), ByExample(400)], 400, r"a row for each example; got \(40, 400, 100\) for 40"),
        ([Rows(), torch.nn.Linear(100, 2), ByExample(400)], 400, r"got \(16000, 100\) for 40, whose rows would share"),
        ([Scaled(100, 2)], None, "0 is a Scaled with a forward or hooks of its own"),
        ([hooked(torch.nn.Linear(100, 2))], None, "0 is a Linear with a forward or hooks of its own"),
        ([replaced(torch.nn.Linear(100, 2))], None, "0 is a Linear with a forward or hooks of its own"),
        ([frozen(torch.nn.Linear(100, 2))], None, "whose parameters are weight and bias; 0 computes"),
    ],
)  # fmt: skip
def test_a_bound_from_coin_flips_is_at_least_a_half_or_refused(layers, positions, message):
    """Labels are drawn without regard to the inputs, so every network errs in half of all examples."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 100, generator=generator), torch.randint(2, (40,), generator=generator)
    x = x if positions is None else x[:, None].expand(-1, positions, -1).contiguous()
    model = torch.nn.Sequential(*layers)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    settings = {"epochs": 40, "learning_rate": 0.01, "batch_size": 40, "scales": [0.3]}
    if message is None:
        assert pac_bayes_certificate(model, x, y, **settings).bound >= 0.5
    else:
        with pytest.raises(ValueError, match=message):
            pac_bayes_certificate(model, x, y, **settings)


def certify(*layers, model=None, n=20, **changes):
    x, y = blobs(n, 0)
    model = torch.nn.Sequential(*layers, torch.nn.Linear(10, 3)) if model is None else model
    return pac_bayes_certificate(model, x, y, **changes)


COUPLED, WEIGHT_NORM = Centred(), weight_norm(torch.nn.Linear(10, 3))


def test_refusals(code_refusals):
    code_refusals("pac_bayes_refusals", globals())
