"""Holdout certificates: that they hold, and refuse models whose examples share masks or are coupled."""

import copy
import math

import pytest
import torch

import contdrop as cd
from architectures import Centred, blobs, trained
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


def test_refusals(code_refusals):
    code_refusals("holdout_refusals", globals())


# Examples that share masks or are coupled.


class Layout(torch.nn.Module):
    """Inputs [N, T, features], of which dropout sees what ``before`` makes of them."""

    def __init__(self, dropout, before, after, features=1):
        super().__init__()
        self.dropout, self.before, self.after = dropout, before, after
        self.head = torch.nn.Linear(features, 2, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[-5.0], [5.0]]).expand(2, features))

    def forward(self, x):
        return self.head(self.after(self.dropout(self.before(x)), len(x)))


class Calls(torch.nn.Module):
    """A dropout layer that is called again and again: for each part of the batch, or for what belongs to no example."""

    def __init__(self, dropout, parts):
        super().__init__()
        self.dropout, self.parts = dropout, parts

    def forward(self, x):
        return torch.cat([self.dropout(part) for part in self.parts(x)])


class Offset(Calls):
    def forward(self, x):
        return self.dropout(x) * self.dropout(torch.ones(1, *x.shape[1:]))


LAW = cd.Gaussian(mu=1.0, sigma=1.5, low=-math.inf, high=math.inf)
BATCH_FIRST = (lambda x: x, lambda h, n: h.mean(1))
TIME_FIRST = (lambda x: x.transpose(0, 1), lambda h, n: h.mean(0))
FLAT = (lambda x: x.flatten(0, 1), lambda h, n: h.reshape(n, -1, h.shape[-1]).mean(1))
LAST = (lambda x: x.permute(1, 2, 0)[None], lambda h, n: h[0].permute(2, 0, 1).mean(1))


SHARES, SAME, FIRST = "shares one over the batch", "however many there are", "along the first axis for masks='fixed'"


def drops(*axes):
    return cd.Dropout(LAW, shared_axes=axes)


LAYOUTS = [
    # dropout, where the examples are, whether fresh masks are accepted, whether fixed ones are
    (drops(), BATCH_FIRST, None, None),
    (drops(1), BATCH_FIRST, None, None),
    (drops(-3), BATCH_FIRST, SHARES, SHARES),
    (drops(), TIME_FIRST, None, FIRST),
    (drops(0), TIME_FIRST, None, FIRST),
    (drops(1), TIME_FIRST, SHARES, SHARES),
    (drops(-2), TIME_FIRST, SHARES, SHARES),
    (drops(), FLAT, None, FIRST),
    (drops(0), FLAT, SHARES, SHARES),
    (torch.nn.Dropout1d(0.25), BATCH_FIRST, None, "use masks='fresh'"),
    (torch.nn.Dropout2d(0.25), LAST, SHARES, SHARES),
    (torch.nn.Dropout1d(0.25), FLAT, None, "use masks='fresh'"),
    (torch.nn.Dropout3d(0.25), LAST, SHARES, SHARES),
    (Calls(drops(), lambda x: x.split(1)), BATCH_FIRST, None, FIRST),
    (Calls(drops(), lambda x: x.split(100)), BATCH_FIRST, None, FIRST),
    (Calls(drops(0), lambda x: x.split(100)), BATCH_FIRST, SHARES, SHARES),
    (Offset(drops(), None), BATCH_FIRST, SAME, SAME),
]  # fmt: skip


def sign_examples(positions):
    """The sign of an example is its class, so a member errs if the mean of its mask values is below 0."""
    y = torch.arange(1000) % 2
    return (2.0 * y - 1).reshape(-1, 1, 1).expand(-1, positions, 1).contiguous(), y


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize(("dropout", "layout", "message", "_"), LAYOUTS)
def test_examples_have_masks_of_their_own_or_are_refused(dropout, layout, message, _, positions):
    x, y = sign_examples(positions)
    model = Layout(dropout, *layout)
    if message is not None:
        with pytest.raises(ValueError, match=message):
            holdout_certificate(model, x, y, members=2)
        return
    errors = [holdout_certificate(model, x, y, members=2, seed=seed).member.errors for seed in range(8)]
    # With masks of their own these are binomial, which a shared one makes 0 or 1000.
    share = sum(errors) / 8000
    assert torch.tensor(errors).double().std() < 3 * math.sqrt(1000 * share * (1 - share)) + 1
    if positions == 1 and isinstance(dropout, cd.Dropout):
        assert share == pytest.approx(LAW.cdf(0.0), abs=5 * math.sqrt(0.25 * 0.75 / 8000))


@pytest.mark.parametrize(("dropout", "layout", "_", "message"), LAYOUTS)
def test_fixed_masks_are_the_same_for_all_examples_or_refused(dropout, layout, _, message):
    x, y = sign_examples(2)
    model = Layout(dropout, *layout)
    if message is not None:
        with pytest.raises(ValueError, match=message):
            holdout_certificate(model, x, y, members=2, masks="fixed")
        return
    found = holdout_certificate(model, x, y, members=2, masks="fixed")
    assert found.mixture.errors in (0, 500, 1000)  # examples are copies of two


def test_fixed_masks_of_connections_may_be_called_with_any_layout():
    x, y = sign_examples(2)
    model = Layout(cd.DropConnectLinear(1, 1, law=LAW), *TIME_FIRST)
    assert holdout_certificate(model, x, y, members=2, masks="fixed").mixture.errors in (0, 500, 1000)
    model.dropout.masks = "batch"
    with pytest.raises(ValueError, match=SHARES):
        holdout_certificate(model, x, y, members=2)


class Apart(torch.nn.Module):
    """Inputs [N, T, 6]; what ``inside`` makes of them, and a head for each example."""

    def __init__(self, inside):
        super().__init__()
        self.inside, self.dropout, self.head = inside, cd.GaussianDropout(0.3), torch.nn.Linear(6, 3)

    def forward(self, x):
        found = self.inside(x)
        return self.head(self.dropout(found[0] if isinstance(found, tuple) else found).mean(1))


class Training(torch.nn.BatchNorm1d):
    def forward(self, x):
        return torch.nn.functional.batch_norm(x, None, None, training=True)


class Trimmed(torch.nn.Module):
    """Cuts positions that no example has, so that a mean over positions hangs on the longest one."""

    def forward(self, x):
        return x[:, : int((x[..., 0] > -1).sum(1).max())]


class Remembering(torch.nn.Module):
    """Goes on from where the last batch ended, as a recurrent network may."""

    total = 0.0

    def forward(self, x):
        self.total = self.total + x.mean(0)
        return x + self.total


@pytest.mark.parametrize(
    ("inside", "coupled"),
    [
        (torch.nn.Identity(), False),
        (torch.nn.LayerNorm(6), False),
        (torch.nn.GroupNorm(1, 4), False),
        (torch.nn.InstanceNorm1d(4), False),
        (torch.nn.BatchNorm1d(4), False),
        (torch.nn.LSTM(6, 6, batch_first=True), False),
        (torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), False),
        (torch.nn.BatchNorm1d(4, track_running_stats=False), True),
        (Training(4), True),
        (Centred(), True),
        (Trimmed(), True),
        (Remembering(), True),
        (torch.nn.LSTM(6, 6), True),
        (torch.nn.TransformerEncoderLayer(6, 2, 8), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else str(value),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_examples_that_are_coupled_are_refused(inside, coupled, dtype):
    torch.manual_seed(0)
    model, x, y = Apart(copy.deepcopy(inside)).eval(), torch.randn(41, 4, 6), torch.arange(41) % 3
    x[:, :, 0] = torch.where(torch.arange(4) < torch.arange(41)[:, None] % 10, x[:, :, 0].abs(), -2.0)  # lengths
    with torch.no_grad():
        alike = torch.allclose(model(x)[1:4], model(x[1:4]), atol=1e-5)
    assert alike != coupled  # so it is, and not only by its name
    model, x = Apart(copy.deepcopy(inside)).to(dtype), x.to(dtype)
    if coupled:
        with pytest.raises(ValueError, match="expected a model that treats each example"):
            holdout_certificate(model, x, y, members=2)
    else:
        holdout_certificate(model, x, y, members=2)


def test_looking_at_a_model_leaves_its_modes_hooks_and_numbers_alone(model):
    x, y = blobs(30, 4)
    model.train()
    before, hooks = torch.get_rng_state(), model[2]._forward_pre_hooks.copy()
    holdout_certificate(model, x, y, members=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert model[2]._forward_pre_hooks == hooks
    assert all(layer.training for layer in model.modules())
    assert holdout_certificate(model, x[:1], y[:1], members=2).mean.n == 1  # alone, nothing is shared
