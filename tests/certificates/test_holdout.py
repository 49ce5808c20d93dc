"""Certificates: that they hold and say when they cannot, and that a Gaussian network is what it says."""

import math

import pytest
import torch

import contdrop as cd
from architectures import blobs, trained
from contdrop.certificates import holdout_certificate, pac_bayes_certificate
from contdrop.theory import bounds

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(one_thread):
    return trained(cd.Gaussian(sigma=0.3))


def test_holdout_certificate_counts_what_it_says(model):
    x, y = blobs(3000, 2)
    model.train()
    before = torch.get_rng_state()
    found = holdout_certificate(model, x, y, members=20, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    again = holdout_certificate(model, x, y, members=20, seed=5)
    assert found == again
    model.eval()
    assert found.mean.errors == (model(x).argmax(1) != y).sum().item()
    drawn = cd.mc_predict(model, x, 400, transform="softmax", seed=1).mean
    assert found.mixture.error == pytest.approx((drawn.argmax(1) != y).double().mean().item(), abs=0.01)
    for part in (found.member, found.mixture, found.mean):
        assert part.n == 3000
        assert part.bound == pytest.approx(bounds.clopper_pearson(part.errors, 3000, 0.05 / 3).item())
    assert found.brier.mixture.item() == pytest.approx((found.brier.members - found.brier.diversity).item(), abs=1e-12)
    assert found.brier.diversity > 0
    several = holdout_certificate(model, x, y, members=20, seed=5, comparisons=4)
    assert several.mean.bound > found.mean.bound


@pytest.mark.parametrize("connect", [False, True])
def test_a_mixture_of_fixed_masks_is_the_same_networks_for_all_examples(connect, model):
    x, y = blobs(500, 4)
    if connect:
        model[0] = cd.DropConnectLinear(10, 32, law=cd.Uniform())
    found = holdout_certificate(model, x, y, members=3, masks="fixed", seed=5)
    model.train()
    layers = [layer for layer in model if hasattr(layer, "law")]
    ways = {
        layer: ("masks", "batch", "example") if hasattr(layer, "masks") else ("shared_axes", (0,), ())
        for layer in layers
    }
    for layer, (name, shared, _) in ways.items():
        setattr(layer, name, shared)
    drawn = []
    for seed in (5, 6, 7):
        torch.manual_seed(seed)
        drawn.append(model(x).double().softmax(1))
    assert found.mixture.errors == (torch.stack(drawn).mean(0).argmax(1) != y).sum().item()
    for layer, (name, _, own) in ways.items():
        setattr(layer, name, own)
    parts = holdout_certificate(model, x, y, members=3, masks="fixed", seed=5, batch_size=70)
    assert parts.mixture == found.mixture  # the last batch is shorter
    assert found.brier.diversity > 0


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


@pytest.mark.parametrize("certify", [holdout_certificate, pac_bayes_certificate])
def test_a_first_layer_that_works_in_place_leaves_the_examples_alone(certify):
    x, y = torch.ones(30, 4), torch.zeros(30, dtype=torch.long)
    model = torch.nn.Sequential(cd.BernoulliDropout(0.5, inplace=True), torch.nn.Linear(4, 2))
    certify(model, x, y)
    assert torch.equal(x, torch.ones(30, 4))


def test_a_seed_governs_layers_with_a_generator_of_their_own():
    x, y = blobs(40, 1)
    generator = torch.Generator()
    model = torch.nn.Sequential(torch.nn.Linear(10, 8), cd.GaussianDropout(generator=generator), torch.nn.Linear(8, 3))
    found = []
    for state in (1, 2):
        generator.manual_seed(state)
        before = generator.get_state()
        found.append(pac_bayes_certificate(model, x, y, epochs=1).kl)
        assert torch.equal(generator.get_state(), before)
    assert found[0] == found[1]


def test_members_of_a_transformer_differ():
    torch.manual_seed(0)
    found = holdout_certificate(Encoder(), torch.randn(20, 5, 8), torch.arange(20) % 3, members=3)
    assert found.brier.diversity > 1e-5


class Elsewhere(torch.Tensor):
    """Stands for a tensor of another device: all that can be done with it is to copy it to the CPU."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if function is torch.Tensor.cpu:
                return args[0].as_subclass(torch.Tensor)
        raise RuntimeError(f"{function} of tensors on two devices")


class ToElsewhere(torch.nn.Module):
    def forward(self, x):
        return x.as_subclass(Elsewhere)


def test_outputs_are_judged_on_the_cpu(model):
    x, y = blobs(30, 4)
    here = holdout_certificate(model, x, y, members=2)
    assert holdout_certificate(torch.nn.Sequential(model, ToElsewhere()), x, y, members=2) == here


def test_holdout_certificate_holds_as_often_as_it_says():
    """A population of 300 examples, whose errors under random masks are known; data sets are drawn from it."""
    model = trained(cd.Bernoulli(keep=0.3), epochs=8)
    x, y = blobs(300, 3)
    with torch.no_grad():
        model.train()
        torch.manual_seed(0)
        member = torch.stack([model(x).argmax(1) != y for _ in range(4000)]).double().mean().item()
        mean = (model.eval()(x).argmax(1) != y).double().mean().item()
    sets, failed = 300, torch.zeros(2)
    for seed in range(sets):
        chosen = torch.randint(300, (80,), generator=torch.Generator().manual_seed(seed))
        found = holdout_certificate(model, x[chosen], y[chosen], 0.3, members=2, seed=seed)
        failed += torch.tensor([found.member.bound < member, found.mean.bound < mean])
    # Each may fail in a tenth of the sets, with four standard errors; a certificate of twice the examples fails more.
    assert (failed / sets).max() < 0.1 + 4 * math.sqrt(0.09 / sets)
    assert (failed / sets).max() > 0.02


def certify(*layers, x=None, y=None, **changes):
    model = torch.nn.Sequential(*(layers or [cd.UniformDropout()]))
    x, y = torch.zeros(8, 10) if x is None else x, torch.zeros(8, dtype=torch.long) if y is None else y
    return holdout_certificate(model, x, y, **changes)


REFUSED = """
holdout_certificate(3, torch.zeros(8, 10), torch.zeros(8, dtype=torch.long))
certify(torch.nn.Linear(10, 3))
certify(cd.UniformDropout(shared_axes=(0,)))
certify(cd.UniformDropout(shared_axes=(-2,)))
certify(cd.FastDropoutLinear(10, 32, law=cd.Uniform()), masks="fixed")
certify(masks="any")
certify(y=torch.zeros(9))
certify(y=torch.zeros(8))
certify(x=torch.zeros(0, 10), y=torch.zeros(0, dtype=torch.long))
certify(delta=0.0)
certify(delta=1.2)
certify(batch_size=0)
certify(members=1)
certify(comparisons=0)
certify(seed=None)
"""


def test_refusals(code_refusals):
    code_refusals("holdout_refusals", REFUSED, globals())
