"""Gradients of everything that is propagated: finite for every stack of layers, and those of finite differences."""

import math
import random

import pytest
import torch
from torch import nn

import contdrop as cd
from contdrop.theory.penalty import penalty
from contdrop.theory.propagation import layers, propagate

# 256 has ties between units so saturated that only rounding tells them apart.
FEW, MANY = (*range(30), 256), range(30, 1000)
STEP = 1e-6


def random_law(rng):
    """From noise that is hardly there to noise that is stronger than the signal."""
    sigma = 10 ** rng.uniform(-6, 0.5)
    wide = cd.Gaussian(sigma=sigma, mu=1, low=-math.inf, high=math.inf)
    keep = rng.choice([0.05, 0.5, 0.9, 1 - 1e-6])
    uniform = cd.Uniform(0, 1), cd.Uniform(1 - min(sigma, 1), 1 + min(sigma, 1))
    return rng.choice([cd.Gaussian(sigma=sigma), wide, cd.Bernoulli(keep=keep), *uniform])


def random_dropout(rng, axes):
    shared = rng.choice([(), (), (0,), tuple(range(2, axes)), (-1,)])
    options = {"shared_axes": shared, "activation": rng.choice([None, None, "relu"])}
    ours = cd.Dropout(random_law(rng), scale=rng.choice(["inverted", "paper"]), **options)
    rate = rng.choice([1e-6, 0.2, 0.9])
    return rng.choice([ours, ours, nn.Dropout(rate), nn.Dropout2d(rate) if axes == 4 else nn.Dropout(rate)])


def random_pooling(rng):
    maxima = nn.MaxPool2d(2), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(3, 2, 1, ceil_mode=True)
    means = nn.AvgPool2d(2), nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.AdaptiveAvgPool2d(3)
    return rng.choice([*maxima, *means, nn.Identity()])


def with_statistics(norm):
    nn.init.normal_(norm.weight)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 2)
    return norm


def random_activation(rng):
    return rng.choice([nn.ReLU, nn.Sigmoid, nn.Tanh])()


def random_dense(rng, width, outputs):
    law = random_law(rng)
    function = rng.choice([None, "relu", "sigmoid"])
    options = {"law": law, "activation": function, "mask_bias": rng.choice([True, False])}
    plain = nn.Linear(width, outputs), nn.Linear(width, outputs)
    connected = cd.DropConnectLinear(width, outputs, **options)
    return rng.choice([*plain, connected, cd.FastDropoutLinear(width, outputs, law=law)])


def random_model(rng, dense):
    parts = []
    width = 6
    if not dense:
        channels = 2
        for _ in range(rng.randint(1, 2)):
            parts += [nn.Conv2d(channels, 3, 3, padding=1), random_activation(rng), random_dropout(rng, 4)]
            parts += [with_statistics(nn.BatchNorm2d(3))] * rng.randint(0, 1) + [random_pooling(rng)]
            channels = 3
        rng.shuffle(parts[1:])
        parts.append(nn.Flatten())
        width = nn.Sequential(*parts).eval()(torch.zeros(1, 2, 6, 6)).shape[1]
    for _ in range(rng.randint(1, 2)):
        parts += [random_dense(rng, width, 5), random_activation(rng), random_dropout(rng, 2)]
        parts += [with_statistics(nn.BatchNorm1d(5))] * rng.randint(0, 1)
        width = 5
    model = nn.Sequential(*parts, random_dense(rng, width, 3)).eval()
    degenerate(rng, model)
    return model


@torch.no_grad()
def degenerate(rng, model):
    """Dead units, units that are always on, equal units, large weights."""
    for module in model:
        if not hasattr(module, "weight") or module.weight.dim() < 2:
            continue
        choice = rng.randint(0, 8)
        if choice == 0:
            module.weight[0] = 0
        elif choice == 1:
            module.weight[1] = module.weight[0]
        elif choice == 2:
            module.weight.mul_(30)
        elif choice == 3 and module.bias is not None:
            module.bias.copy_(torch.linspace(-20, 20, len(module.bias)))
        elif choice == 4:
            module.weight.zero_()


def random_input(rng, dense):
    x = torch.randn((3, 6) if dense else (2, 2, 6, 6))
    choice = rng.randint(0, 7)
    if choice == 2:
        x[:, 0] = 0.5
    changed = {0: 0 * x, 1: torch.full_like(x, 0.7), 3: 100 * x, 4: 1e-8 * x, 5: x.round()}
    return changed.get(choice, x)


def random_case(seed, dtype):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dense = rng.random() < 0.4
    model = random_model(rng, dense).to(dtype)
    return model, random_input(rng, dense).to(dtype)


def test_the_random_stacks_hold_every_layer_that_is_propagated():
    seen = {type(module) for seed in range(60) for module in random_case(seed, torch.float32)[0]}
    assert set(layers.HANDLERS) <= seen | {nn.Sequential}


def moments_of(model, x, covariance):
    """One number that all moments of the output have a part in, of the size of one however weak the noise."""
    found = propagate(model, x.double(), covariance)
    matrix = found.covariance if found.covariance is not None else found.variance
    parts = []
    for tensor in (found.mean, matrix):
        weights = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        parts.append((weights * tensor).sum() / sizes_of(tensor))
    return sum(parts)


def sizes_of(tensor):
    """A fixed scale: a power of ten, so that it does not change with the finite step."""
    largest = tensor.detach().abs().max().item()
    return 10.0 ** round(math.log10(largest)) if largest > 1e-290 else 1.0


def penalty_of(method):
    def value(model, x):
        target = torch.arange(len(x)) % 3
        return penalty(model, x, target, nn.functional.cross_entropy, method=method, samples=64)

    return value


VALUES = {
    "diagonal": lambda model, x: moments_of(model, x, "diagonal"),
    "output": lambda model, x: moments_of(model, x, "output"),
    "full": lambda model, x: moments_of(model, x, "full"),
    "expectation": penalty_of("expectation"),
    "moments": penalty_of("moments"),
}


def evaluate(name, model, x):
    """The value, or None where "moments" sees a loss so flat that it has no curvature."""
    try:
        return VALUES[name](model, x)
    except ValueError as error:
        if name == "moments" and "curvature" in str(error):
            return None
        raise


def gradients_of(name, model, x):
    x = x.clone().requires_grad_()
    value = evaluate(name, model, x)
    if value is None:
        return None
    assert value.isfinite()
    return torch.autograd.grad(value, [*model.parameters(), x], allow_unused=True, materialize_grads=True)


@torch.no_grad()
def along(name, model, x, direction, step):
    """The value a step away."""
    parameters = list(model.parameters())
    for parameter, part in zip(parameters, direction):
        parameter.add_(part, alpha=step)
    try:
        value = evaluate(name, model, x + step * direction[-1])
        return math.nan if value is None else value.item()
    finally:
        for parameter, part in zip(parameters, direction):
            parameter.sub_(part, alpha=step)


def check_gradients(name, seed):
    """Whether the finite differences of this case were good for a comparison; fails if they differ."""
    model, x = random_case(seed, torch.float64)
    gradients = gradients_of(name, model, x)
    if gradients is None:
        return False
    assert all(gradient.isfinite().all() for gradient in gradients), f"{name}, seed {seed}: gradient not finite"
    generator = torch.Generator().manual_seed(seed)
    direction = [torch.randn(g.shape, generator=generator, dtype=torch.float64) for g in gradients]
    slope = sum((g * d).sum().item() for g, d in zip(gradients, direction))
    here, *ends = (along(name, model, x, direction, k * STEP) for k in (0, 1, -1, 2, -2))
    near, far = (ends[0] - ends[1]) / (2 * STEP), (ends[2] - ends[3]) / (4 * STEP)
    size = max(abs(near), abs(far), 1e-3)
    # A kink between the ends shows as two slopes, and curvature too strong for the step as two estimates.
    smooth = abs(near - far) < 1e-4 * size and abs(ends[0] + ends[1] - 2 * here) / STEP < 2e-4 * size
    if smooth:
        assert slope == pytest.approx((4 * near - far) / 3, abs=3e-4 * size), f"{name}, seed {seed}"
    return smooth


@pytest.mark.parametrize("name", VALUES)
def test_gradients_are_finite_and_those_of_finite_differences(name):
    assert sum(check_gradients(name, seed) for seed in FEW) > len(FEW) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
def test_gradients_of_many_stacks(name):
    assert sum(check_gradients(name, seed) for seed in MANY) > len(MANY) / 2


@pytest.mark.parametrize("name", ["expectation", "moments"])
def test_gradients_in_float32_are_finite(name):
    for seed in FEW:
        gradients = gradients_of(name, *random_case(seed, torch.float32))
        assert gradients is None or all(g.isfinite().all() for g in gradients), f"seed {seed}"
