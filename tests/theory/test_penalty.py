"""The explicit regularizer against closed forms, Monte Carlo with the real layers, and finite differences."""

import math
import pathlib
import re
import runpy
import sys

import pytest
import torch
from torch import nn

import contdrop as cd
from contdrop.theory import penalty_terms
from contdrop.theory.penalty import METHODS, penalty
from contdrop.theory.propagation import activations

NOISY = (cd.Dropout, nn.modules.dropout._DropoutNd, cd.AdaptiveDropout, cd.DropConnectLinear, cd.FastDropoutLinear)

cross_entropy = nn.functional.cross_entropy
every_method = pytest.mark.parametrize("method", METHODS)


def half_square(output, target):
    return 0.5 * (output - target).square().flatten(1).sum(1).mean()


def mlp(activation, dropout, *, dtype=torch.float64):
    """Two hidden layers, with what ``dropout()`` makes after each."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(6, 20), activation(), dropout()), *(nn.Linear(20, 20), activation(), dropout()), nn.Linear(20, 4)
    ).to(dtype)


def conv(dropout):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3), nn.Tanh(), dropout()),
        *(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)),
    ).double()


class Standout(nn.Module):
    """A network with adaptive dropout, which needs the pre-activation too, and is called twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(6, 20), nn.Linear(20, 20), nn.Linear(20, 4)
        self.dropout = cd.AdaptiveDropout(alpha=0.5, beta=4.0)
        self.double()

    def forward(self, x):
        for linear in (self.first, self.second):
            a = linear(x)
            x = self.dropout(a.tanh(), a)
        return self.last(x)


def fast(law, **options):
    torch.manual_seed(0)
    first, last = cd.FastDropoutLinear(6, 20, law=law, **options), cd.FastDropoutLinear(20, 4, law=law)
    return nn.Sequential(first, nn.Tanh(), last).double()


def dropconnect(law, **options):
    torch.manual_seed(0)
    first, last = (cd.DropConnectLinear(*size, law=law, inference="mean", **options) for size in ((6, 20), (20, 4)))
    return nn.Sequential(first, nn.Sigmoid(), last).double()


def batch_for(model):
    """Inputs and classes for one of the models above, in the type of its parameters."""
    first = next(model.parameters())
    shape = (3, 2, 6, 6) if first.dim() == 4 else (8, 6)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(first.dtype)
    return x, torch.randint(3, shape[:1], generator=generator)


def value_of(model, method=None, loss=cross_entropy, **options):
    """The penalty on the model's batch."""
    return penalty(model, *batch_for(model), loss, method=method, **options).item()


@torch.no_grad()
def _centre(layer, args):
    """What a layer would have returned without noise of its own."""
    layer.training = False
    try:
        return layer.forward(*args)
    finally:
        layer.training = True


def expected_increase(model, x, target, passes, *, copies=100, example_loss=None):
    """E[loss with noise] - loss without, of the real layers, and its standard error.

    Of every pass, ``copies`` of the batch are independent draws, unless they share a mask.

    The noise that each layer adds has mean zero whatever its input. So the loss's slope times that noise may be
    subtracted without changing the expectation; it takes with it nearly all of the variance.
    """
    example_loss = example_loss or (lambda output, target: cross_entropy(output, target, reduction="none"))
    layers = [module for module in model.modules() if isinstance(module, NOISY)]
    model.eval()
    outputs = []
    handles = [layer.register_forward_hook(lambda layer, args, output: outputs.append(output)) for layer in layers]
    base = example_loss(model(x), target).mean()
    slopes = torch.autograd.grad(base, outputs)
    for handle in handles:
        handle.remove()

    first_order = []

    def record(layer, args, output):
        noise = (output - _centre(layer, args)).unflatten(0, (copies, len(x)))
        first_order.append((slopes[len(first_order)] * noise).flatten(1).sum(1))

    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    handles = [layer.register_forward_hook(record) for layer in layers]
    torch.manual_seed(2)
    increases = []
    with torch.no_grad():
        for _ in range(passes // copies):
            first_order.clear()
            output = model(x.repeat(copies, *[1] * (x.dim() - 1)))
            losses = example_loss(output, target.repeat(copies, *[1] * (target.dim() - 1)))
            increases.append(losses.unflatten(0, (copies, len(x))).mean(1) - base - sum(first_order))
    for handle in handles:
        handle.remove()
    model.eval()
    increase = torch.cat(increases)
    return increase.mean().item(), increase.std().item() / math.sqrt(len(increase))


def far_from_kinks(dropout):
    """A ReLU network whose units are all clearly on or clearly off."""
    model = mlp(nn.ReLU, dropout)
    with torch.no_grad():
        for linear, size in ((model[0], 4.0), (model[3], 8.0)):
            linear.bias.copy_(torch.tensor([size, -size]).repeat(10))
    return model


def last_only(activation, dropout):
    model = mlp(activation, dropout)
    model[2] = nn.Identity()
    return model


SMALL = cd.Gaussian(sigma=0.05)
WIDE = {"low": -math.inf, "high": math.inf}


def gaussian(sigma, **options):
    return lambda: cd.GaussianDropout(sigma, **options)


# Gauss-Newton is named where nothing after the noise is curved.
BOTH = ("exact", "gauss-newton")
MONTE_CARLO = {
    "ReLU": (lambda: far_from_kinks(gaussian(0.05)), BOTH),
    "ReLU, more noise": (lambda: far_from_kinks(gaussian(0.1)), BOTH),
    "ReLU, paper's scale": (lambda: far_from_kinks(gaussian(0.1, scale="paper")), BOTH),
    "ReLU, noise after the last": (lambda: last_only(nn.ReLU, gaussian(0.1)), BOTH),
    "tanh": (lambda: mlp(nn.Tanh, gaussian(0.1)), ["exact"]),
    "tanh, paper's scale": (lambda: mlp(nn.Tanh, gaussian(0.1, scale="paper")), ["exact"]),
    "sigmoid": (lambda: mlp(nn.Sigmoid, gaussian(0.1)), ["exact"]),
    "uniform": (lambda: mlp(nn.Tanh, lambda: cd.UniformDropout(0.4, 0.8)), ["exact"]),
    "unclipped": (lambda: mlp(nn.Tanh, gaussian(0.1, mu=1, **WIDE)), ["exact"]),
    "mean zero": (lambda: mlp(nn.Tanh, gaussian(0.1, mu=0, scale="paper", **WIDE)), ["exact"]),
    "Bernoulli": (lambda: mlp(nn.Tanh, lambda: cd.BernoulliDropout(0.05)), ["exact"]),
    "torch": (lambda: mlp(nn.Tanh, lambda: nn.Dropout(0.05)), ["exact"]),
    "mask of the batch": (lambda: mlp(nn.Tanh, lambda: cd.Dropout(SMALL, shared_axes=(0,))), ["exact"]),
    "feature maps": (lambda: conv(lambda: cd.Dropout(SMALL, shared_axes=(2, 3))), ["exact"]),
    "rows": (lambda: conv(lambda: cd.Dropout(SMALL, shared_axes=(-1,))), ["exact"]),
    "torch's feature maps": (lambda: conv(lambda: nn.Dropout2d(0.02)), ["exact"]),
    "adaptive": (Standout, ["exact"]),
    "fast dropout": (lambda: fast(SMALL), ["exact"]),
    "fast dropout, paper's scale": (lambda: fast(SMALL, scale="paper"), ["exact"]),
    "DropConnect": (lambda: dropconnect(SMALL), ["exact"]),
    "DropConnect, bias kept": (lambda: dropconnect(SMALL, mask_bias=False, scale="paper"), ["exact"]),
    "DropConnect, masks of the batch": (lambda: dropconnect(SMALL, masks="batch"), ["exact"]),
}


@pytest.mark.parametrize("case", MONTE_CARLO)
def test_agrees_with_monte_carlo(case):
    """To 10 % for small noise, beyond five standard errors of Monte Carlo, which are a few per cent."""
    make, methods = MONTE_CARLO[case]
    model = make()
    x, target = batch_for(model)
    copies = 1 if "of the batch" in case else 100
    increase, error = expected_increase(model, x, target, 4_000 if copies == 1 else 20_000, copies=copies)
    assert 5 * error < 0.1 * abs(increase)
    for method in methods:
        assert value_of(model, method) == pytest.approx(increase, abs=0.1 * abs(increase) + 5 * error), method


@pytest.mark.parametrize("case", MONTE_CARLO)
def test_without_noise_the_model_is_that_of_evaluation(case):
    model = MONTE_CARLO[case][0]()
    x, target = batch_for(model)
    seen = []

    def loss(output, target):
        seen.append(output.detach())
        return cross_entropy(output, target)

    penalty(model.train(), x, target, loss, method="hutchinson")
    torch.testing.assert_close(seen[0], model.eval()(x), rtol=1e-12, atol=1e-12)


def test_weight_masks_of_the_batch_are_shared_along_a_sequence():
    """The square of the sum of all outputs has curvature 2 (w_i sum over positions of x_i)^2 in mask value i."""
    layer = cd.DropConnectLinear(2, 1, bias=False, masks="batch").double()
    x = torch.tensor([[[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]], dtype=torch.float64)
    value = penalty(layer, x, None, lambda output, _: output.sum().square(), method="exact")
    expected = (layer.weight[0] * x.sum((0, 1))).square().sum()  # keep = 0.5 has relative variance 1
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)


def test_weight_masks_that_a_sequence_shares_are_those_of_the_default():
    """Squared error of what is linear in the masks: the second derivatives are all there is."""
    torch.manual_seed(0)
    layer = cd.DropConnectLinear(6, 4, masks="batch")
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 3)).double()
    x, target = torch.rand(2, 5, 6, dtype=torch.float64) + 0.5, torch.zeros(2, 3, dtype=torch.float64)
    expected = penalty(model, x, target, nn.MSELoss(), method="exact").item()
    for method in (None, "moments"):
        assert penalty(model, x, target, nn.MSELoss(), method=method).item() == pytest.approx(expected, rel=1e-10)
    layer.masks = "example"
    assert penalty(model, x, target, nn.MSELoss()).item() > 1.3 * expected


def linear_unit(law, scale="inverted"):
    torch.manual_seed(0)
    return nn.Sequential(cd.Dropout(law, scale=scale), nn.Linear(6, 1)).double()


LAWS = [cd.Bernoulli(keep=0.5), cd.Uniform(0, 1), cd.Gaussian(sigma=0.3), cd.Gaussian(mu=0.4, sigma=0.3)]


@every_method
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_linear_unit_in_closed_form(law, method):
    """Squared error is quadratic, so that the second order is all there is, however strong the noise."""
    for scale, variance in (("inverted", law.variance / law.mean**2), ("paper", law.variance)):
        model = linear_unit(law, scale)
        x, _ = batch_for(model)
        w = model[1].weight[0]
        expected = 0.5 * variance * (w * x).square().sum(1).mean()
        # Random signs give each example's trace plus cross terms, which average out.
        probes = 20_000 if method == "hutchinson" else 1
        value = penalty(model, x, torch.ones(8, 1), half_square, method=method, probes=probes, generator=seeded(0))
        bound = 5 * cross_term_error(w, x, variance, probes) if method == "hutchinson" else 1e-12
        assert value.item() == pytest.approx(expected.item(), abs=bound)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def cross_term_error(w, x, variance, probes):
    """Standard error of Hutchinson's estimate for the linear unit: Var(u^T H u) = 4 sum over i < j of H_ij^2."""
    c = w * x
    hessians = variance / 2 * c[:, :, None] * c[:, None, :] / len(x)
    off_diagonal = hessians - torch.diag_embed(torch.diagonal(hessians, dim1=1, dim2=2))
    return (2 * off_diagonal.square().sum() / probes).sqrt().item()


@pytest.mark.parametrize("method", ["exact", "gauss-newton"])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_logistic_unit_in_closed_form(law, method):
    model = linear_unit(law)
    x, target = batch_for(model)
    target = (target[:, None] > 0).double()
    s = model[1](x)
    slope = torch.sigmoid(s) * (1 - torch.sigmoid(s))
    expected = (0.5 * law.relative_variance * (model[1].weight * x).square().sum(1, keepdim=True) * slope).mean()
    value = penalty(model, x, target, nn.functional.binary_cross_entropy_with_logits, method=method)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)


ALL_LAYERS = {
    "ReLU": lambda: mlp(nn.ReLU, gaussian(0.3)),
    "tanh": lambda: mlp(nn.Tanh, gaussian(0.3)),
    "mask of the batch": lambda: mlp(nn.ReLU, lambda: cd.Dropout(SMALL, shared_axes=(0,))),
    "feature maps": lambda: conv(lambda: cd.Dropout(SMALL, shared_axes=(2, 3))),
    "torch": lambda: mlp(nn.ReLU, lambda: nn.Dropout(0.5)),
    "adaptive": Standout,
    "fast dropout": lambda: fast(SMALL),
    "DropConnect": lambda: dropconnect(SMALL),
    "DropConnect, masks of the batch": lambda: dropconnect(SMALL, masks="batch"),
}


@pytest.mark.parametrize("case", ["ReLU", "mask of the batch", "torch", "max-pooling", "linear DropConnect"])
def test_gauss_newton_is_exact_where_the_model_is_piecewise_linear(case):
    torch.manual_seed(0)
    pooled = nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.2), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4)),
        *(cd.Dropout(SMALL, shared_axes=(0, 2)), nn.Flatten(), nn.Linear(16, 3)),
    ).double()
    connected = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), cd.DropConnectLinear(9, 4, masks="batch")).double()
    models = {"max-pooling": lambda: pooled, "linear DropConnect": lambda: connected, **ALL_LAYERS}
    model = models[case]()
    exact, approximate = (value_of(model, method) for method in BOTH)
    assert approximate == pytest.approx(exact, rel=1e-10)
    assert exact > 0


@pytest.mark.parametrize("method", ["expectation", "moments", *BOTH])
def test_axes_may_be_counted_from_the_end(method):
    """The batch is axis 0, or -2 of two, and is told apart from the axis of the units."""
    values = {}
    for axes in ((0,), (-2,), (1,), (-1,), ()):
        model = mlp(nn.ReLU, lambda axes=axes: cd.Dropout(SMALL, shared_axes=axes))
        try:
            values[axes] = value_of(model, method)
        except NotImplementedError:  # moments are not propagated through masks shared by units
            values[axes] = None
    assert values[0,] == values[-2,] == pytest.approx(values[()], rel=1e-12)
    assert values[1,] == values[-1,] != values[0,]


@pytest.mark.parametrize(("axes", "expected"), [((0,), 36.0), ((-2,), 36.0), ((), 14.0)])
def test_mask_of_the_batch_is_one_where_the_loss_couples_examples(axes, expected):
    """(sum of x m)^2 has r (sum of x)^2 added to it if one m serves all, and r (sum of x^2) if each has its own."""
    x, law = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64), cd.Gaussian(sigma=0.2)
    model = nn.Sequential(cd.Dropout(law, shared_axes=axes))
    value = penalty(model, x, None, lambda output, _: output.sum().square(), method="exact")
    assert value.item() == pytest.approx(law.relative_variance * expected, rel=1e-12)


def test_gauss_newton_leaves_out_the_curvature_of_the_model():
    model = mlp(nn.Tanh, gaussian(0.3))
    exact, approximate = (value_of(model, method) for method in BOTH)
    assert abs(approximate / exact - 1) > 0.05


@pytest.mark.parametrize("case", ALL_LAYERS)
def test_hutchinson_is_unbiased(case):
    model = ALL_LAYERS[case]()
    with torch.no_grad():
        exact = value_of(model, "exact")
        draws = [value_of(model, "hutchinson", probes=20, generator=seeded(i)) for i in range(50)]
    draws = torch.tensor(draws)
    assert draws.std() > 0
    assert abs(draws.mean() - exact) < 5 * draws.std() / math.sqrt(len(draws))


def test_a_seed_governs_the_probes():
    def draw(**options):
        return value_of(mlp(nn.Tanh, gaussian(0.3)), "hutchinson", **options)

    assert draw(generator=seeded(3)) == draw(generator=seeded(3)) != draw(generator=seeded(4))
    model = mlp(nn.Tanh, gaussian(0.3))
    torch.manual_seed(3)
    assert value_of(model, "hutchinson") == draw(generator=seeded(3))


def test_a_kink_is_not_seen():
    """At the kink of a ReLU noise of deviation s adds s / sqrt(2 pi), which no second derivative shows."""
    model = nn.Sequential(cd.GaussianDropout(0.1), nn.Linear(2, 1, bias=False), nn.ReLU()).double()
    nn.init.ones_(model[1].weight)
    x = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    s = math.sqrt(2 * model[0].law.relative_variance)
    assert penalty(model, x, torch.zeros(1, 1), lambda output, _: output.sum(), method="exact").item() == 0
    torch.manual_seed(0)
    outputs = model.train()(x.expand(100_000, 2))
    error = (outputs.std() / math.sqrt(len(outputs))).item()
    # The clipped Gaussian is normal here: its bounds are five deviations away.
    assert outputs.mean().item() == pytest.approx(s / math.sqrt(2 * math.pi), abs=5 * error)


@every_method
@pytest.mark.parametrize("case", ALL_LAYERS)
def test_gradient_agrees_with_finite_differences(case, method):
    if case == "adaptive" and method in ("expectation", "moments"):
        pytest.skip("adaptive dropout takes two inputs, which propagation does not know")
    model = ALL_LAYERS[case]()
    x, target = batch_for(model)

    def value():
        return penalty(model, x, target, cross_entropy, method=method, generator=seeded(0))

    parameters = list(model.parameters())
    gradients = torch.autograd.grad(value(), parameters, allow_unused=True, materialize_grads=True)
    assert sum(bool(g.any()) for g in gradients) >= len(gradients) - 1  # the last bias may have none
    # Central differences: the step's square, 1e-10, and rounding over the step, 1e-11, stay far below the bound.
    step = 1e-5
    for parameter, gradient in zip(parameters, gradients):
        direction = torch.randn(parameter.shape, dtype=torch.float64, generator=seeded(5))
        with torch.no_grad():
            ends = []
            for move in (step, -2 * step):
                parameter += move * direction
                ends.append(value().item())
            parameter += step * direction
        difference = (ends[0] - ends[1]) / (2 * step)
        scale = gradient.norm().item() * direction.norm().item()
        assert (gradient * direction).sum().item() == pytest.approx(difference, abs=1e-6 * scale + 1e-9)


def test_differentiable_with_respect_to_the_input_and_not_without_grad():
    model = mlp(nn.ReLU, gaussian(0.3))
    x, target = batch_for(model)
    (gradient,) = torch.autograd.grad(penalty(model, x.requires_grad_(), target, cross_entropy), x)
    assert gradient.any()
    with torch.no_grad():
        assert not penalty(model, x, target, cross_entropy).requires_grad
        assert not penalty(fast(SMALL), x, target, cross_entropy).requires_grad


@every_method
def test_float32_follows_float64(method):
    values = []
    for dtype in (torch.float64, torch.float32):
        model = mlp(nn.ReLU, gaussian(0.3), dtype=dtype)
        values.append(penalty(model, *batch_for(model), cross_entropy, method=method, generator=seeded(0)))
        values[-1].backward()
        assert values[-1].dtype == dtype
        assert all(p.grad.dtype == dtype for p in model.parameters() if p.grad is not None)
    # A few hundred roundings of float32 at most, of terms that are not much larger than their sum.
    assert values[1].item() == pytest.approx(values[0].item(), rel=1e-4)


@pytest.mark.parametrize(
    ("layer", "shape", "masks"),
    [
        (nn.Dropout(), (4, 3, 5), 60),
        (nn.Dropout1d(), (4, 3, 5), 12),
        (nn.Dropout1d(), (3, 5), 3),
        (nn.Dropout2d(), (4, 3, 5, 5), 12),
        (nn.Dropout3d(), (4, 3, 2, 2, 2), 12),
        (nn.Dropout3d(), (3, 2, 2, 2), 3),
    ],
)
def test_torch_dropouts_share_masks_as_torch_does(layer, shape, masks):
    """The sum's square has curvature 2 (sum of x)^2 in each mask value: the number of values shows in the total."""
    per_mask = math.prod(shape) / masks
    value = penalty(layer, torch.ones(shape), None, lambda output, _: output.sum().square(), method="exact")
    assert value.item() == pytest.approx(masks * per_mask**2, rel=1e-5)  # p = 0.5 has relative variance 1
    ones = layer.train()(torch.ones(shape)).flatten(len(shape) - 1)
    if masks < 60:
        assert all(len(set(row.flatten().tolist())) == 1 for row in ones.reshape(masks, -1))


def test_no_noise_no_penalty():
    for layer in (nn.Dropout(0.0), cd.GaussianDropout(0.0), cd.BernoulliDropout(0.0)):
        assert value_of(mlp(nn.Tanh, lambda layer=layer: layer)) == 0


@pytest.mark.parametrize(
    ("layer", "activation"),
    [
        (lambda **options: nn.Sequential(nn.Linear(6, 9), cd.GaussianDropout(0.3, **options)), "relu"),
        (lambda **options: cd.DropConnectLinear(6, 9, **options), "relu"),
        (lambda **options: cd.DropConnectLinear(6, 9, **options), "sigmoid"),
    ],
    ids=["dropout, relu", "DropConnect, relu", "DropConnect, sigmoid"],
)
def test_an_activation_inside_is_the_same_outside(layer, activation):
    torch.manual_seed(0)
    inside, last = layer(activation=activation), nn.Linear(9, 3)
    outside = layer()
    outside.load_state_dict(inside.state_dict())
    function = nn.ReLU() if activation == "relu" else nn.Sigmoid()
    # Dropout comes after its activation, DropConnect before.
    parts = [outside[0], function, outside[1]] if isinstance(outside, nn.Sequential) else [outside, function]
    models = nn.Sequential(inside, last), nn.Sequential(*parts, last)
    values = [value_of(model, "exact") for model in models]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert values[0] != 0


def _state(model):
    """Everything about a model that a call could leave behind."""
    parts = dict(model.named_modules())
    modules = {name: {key: repr(value) for key, value in vars(part).items()} for name, part in parts.items()}
    return modules, [p.grad for p in model.parameters()], torch.get_rng_state().tolist()


class Boom(nn.Module):
    def forward(self, x):
        raise RuntimeError("boom")


@pytest.mark.parametrize("fails", ["nowhere", "model", "loss"])
@pytest.mark.parametrize("method", ["exact", "gauss-newton", "moments"])
def test_the_model_is_left_as_it_was(method, fails):
    model = nn.Sequential(conv(lambda: cd.Dropout(SMALL)), cd.DropConnectLinear(3, 3).double(), nn.Dropout(0.1))
    model.train()
    model[0][2].eval()
    if method != "moments":
        model[0][2].register_forward_hook(lambda module, args, output: None)
    if fails == "model":
        model.append(Boom())
    before = _state(model)
    loss = nn.CrossEntropyLoss(reduction="none" if fails == "loss" else "mean")
    call = (model, *batch_for(model), loss)
    if fails == "nowhere":
        penalty(*call, method=method)
    else:
        with pytest.raises((RuntimeError, ValueError), match=r"boom|scalar"):
            penalty(*call, method=method)
    assert _state(model) == before


def test_batch_norm_uses_its_running_statistics():
    model = conv(lambda: cd.Dropout(SMALL))
    model[4].running_mean.fill_(0.3)
    assert value_of(model.train()) == value_of(model.eval())


class Uses(nn.Module):
    """Has a dropout layer that its forward pass does not call."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(6, 4), nn.Dropout()

    def forward(self, x):
        return self.linear(x)


def _plain():
    return mlp(nn.ReLU, gaussian(0.3), dtype=torch.float32)


def _rmse(output, target):
    return (output - 1).square().mean().sqrt()


def _fails_far_out(output, target):
    if output.abs().max() > 0.6:
        raise RuntimeError("too far")
    return output.square().mean()


def refuse(*layers, loss=cross_entropy, **changes):
    """Compute a penalty of these layers behind a plain network, or of another model."""
    model = nn.Sequential(_plain(), *layers)
    x, target = batch_for(model)
    return penalty(**{"model": model, "x": x, "target": target, "loss": loss, **changes})


def patched(layer):
    """Give a layer another forward."""
    layer.forward = lambda x: 2 * x
    return layer


def derived(kind):
    """Return a class of layers with a forward of its own."""
    return type("Other", (kind,), {"forward": lambda self, *inputs: 2 * kind.forward(self, *inputs)})


SEQUENCE = {"model": cd.DropConnectLinear(6, 4, masks="batch"), "x": torch.ones(8, 3, 6)}


def test_refusals(code_refusals):
    code_refusals("penalty_refusals", globals())


@pytest.mark.parametrize("method", ["exact", "hutchinson"])
def test_what_gauss_newton_refuses_the_others_take(method):
    model = nn.Sequential(_plain(), nn.BatchNorm1d(4, track_running_stats=False))
    assert penalty(model, *batch_for(model), _rmse, method=method).isfinite()
    split = nn.Sequential(_plain(), nn.LogSoftmax(1))
    arguments = {"method": method, "generator": seeded(0)}
    whole = penalty(split[0], *batch_for(split), cross_entropy, **arguments)
    apart = penalty(split, *batch_for(split), nn.functional.nll_loss, **(arguments | {"generator": seeded(0)}))
    assert apart.item() == pytest.approx(whole.item(), rel=1e-4)


EXAMPLE = str(pathlib.Path(__file__).parents[2] / "examples" / "penalty.py")


@pytest.mark.usefixtures("lab_packages")
def test_the_example_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["penalty.py", "--runs", "2", "--epochs", "2"])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # it would stay so for the tests that follow
    runpy.run_path(EXAMPLE, run_name="__main__")
    printed = capsys.readouterr().out
    error, interval = r"\d+\.\d\d ± \d+\.\d\d", r"[+-]\d+\.\d\d \[[+-]\d+\.\d\d, [+-]\d+\.\d\d\]"
    for name, intervals in (("no dropout", 1), ("sampled dropout", 1), ("explicit penalty", 2)):
        assert re.search(rf"{name} +{error} +({interval} +){{{intervals}}}\d+\.\d", printed), name


@pytest.mark.usefixtures("lab_packages")
def test_the_ways_of_the_example_differ_only_in_their_loss():
    """With no noise, all three train the same network to the same errors."""
    example = runpy.run_path(EXAMPLE)
    example["run"].__globals__["LAW"] = cd.Gaussian(sigma=0.0)
    losses = [example[f"loss_{name}"] for name in ("without_noise", "with_noise", "with_penalty")]
    ways = [example["Way"]("", loss) for loss in losses]
    for way in ways:
        example["run"](way, 0, example["load_images"](), 2)
    assert ways[0].errors == ways[1].errors == ways[2].errors


@pytest.mark.usefixtures("lab_packages")
def test_the_example_refuses_one_run(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["penalty.py", "--runs", "1"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(EXAMPLE, run_name="__main__")
    assert "expected --runs to be a whole number of at least 2, got 1" in capsys.readouterr().err


# By moments.


def relu_network(sigma, scale):
    """Untrained, with noise before a ReLU; larger weights make it less linear."""
    torch.manual_seed(3)
    dropout = cd.GaussianDropout
    layers = [nn.Linear(20, 32), nn.ReLU(), dropout(sigma), nn.Linear(32, 32), nn.ReLU(), dropout(sigma)]
    model = nn.Sequential(*layers, nn.Linear(32, 5)).double()
    with torch.no_grad():
        for layer in (model[0], model[3], model[6]):
            layer.weight.mul_(scale)
    x = torch.randn(64, 20, dtype=torch.float64)
    return model, x, torch.randint(5, (64,))


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2, 0.3])
def test_moments_see_kinks(sigma, scale):
    """Ten per cent, as for the others elsewhere, in networks for which second derivatives miss a quarter."""
    model, x, target = relu_network(sigma, scale)
    increase, error = expected_increase(model, x, target, 4000)
    value = penalty(model, x, target, cross_entropy, method="moments").item()
    assert value == pytest.approx(increase, abs=0.1 * increase + 5 * error)


def test_second_derivatives_miss_what_moments_see():
    model, x, target = relu_network(0.3, 1.0)
    increase, error = expected_increase(model, x, target, 4000)
    by_moments, exact = (penalty(model, x, target, cross_entropy, method=m).item() for m in ("moments", "exact"))
    assert abs(by_moments - increase) + 5 * error < abs(exact - increase)


def test_the_expectation_is_the_default_where_layers_are_known():
    model, x, target = relu_network(0.2, 1.0)
    default, *others = (
        penalty(model, x, target, cross_entropy, method=m) for m in (None, "expectation", "moments", "gauss-newton")
    )
    assert default == others[0]
    assert default not in others[1:]
    unknown = nn.Sequential(model[:3], nn.GELU(), model[3:])
    value = penalty(unknown, x, target, cross_entropy)
    assert value == penalty(unknown, x, target, cross_entropy, method="gauss-newton")
    with pytest.raises(NotImplementedError, match=r"penalty: layer '1' \(GELU\).*; use method='gauss-newton'"):
        penalty(unknown, x, target, cross_entropy, method="moments")


@pytest.mark.parametrize("method", ["moments", "gauss-newton"])
def test_a_network_that_is_sure_of_itself(method):
    """In float32 the second derivatives of its loss are hardly more than rounding."""
    model, x, _ = relu_network(0.3, 1.0)
    model.float()
    with torch.no_grad():
        model[6].weight.mul_(20)
        target = model.eval()(x.float()).argmax(1)
    value = penalty(model, x.float(), target, cross_entropy, method=method)
    assert value.isfinite()
    gradients = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in gradients)


@every_method
def test_an_output_without_an_axis_of_units(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), cd.GaussianDropout(0.1), nn.Linear(8, 1), nn.Flatten(0)).double()
    x, target = torch.randn(9, 6, dtype=torch.float64), torch.rand(9, dtype=torch.float64)
    loss = nn.functional.binary_cross_entropy_with_logits
    value, with_axis = (
        penalty(*arguments, loss, method=method, probes=2000, generator=seeded(0)).item()
        for arguments in ((model, x, target), (model[:4], x, target[:, None]))
    )
    assert value == pytest.approx(with_axis, rel=1e-9)


def test_draws_that_were_made_in_inference_mode_can_be_differentiated():
    penalty_terms.draws.cache_clear()
    torch.manual_seed(0)
    model = nn.Sequential(cd.GaussianDropout(), nn.Linear(5, 3)).double()
    arguments = torch.randn(6, 5).double(), torch.zeros(6, dtype=torch.long), nn.functional.cross_entropy
    with torch.inference_mode():
        before = penalty(model, *arguments)
    after = penalty(model, *arguments)
    after.backward()
    assert torch.equal(before, after.detach())


def test_a_call_in_inference_mode_leaves_later_ones_alone():
    for cached in (activations._nodes, activations._hermite):
        cached.cache_clear()
    with torch.inference_mode():
        z, table = activations._hermite(torch.device("cpu"))
    assert not z.is_inference()
    assert not table.is_inference()
