"""What the spread of Gaussian outputs adds to a loss, against quadrature, closed forms and many plain draws."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from contdrop.theory.penalty_terms import draws, increase, symmetric_root

SAMPLES = 512


def gaussian(examples=4, outputs=3, *, scale=1.0, rank=None):
    generator = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(examples, outputs, generator=generator, dtype=torch.float64)
    factor = torch.randn(examples, outputs, rank or outputs, generator=generator, dtype=torch.float64)
    return mean, scale * factor @ factor.mT


def by_plain_draws(loss, mean, covariance, target, count=200_000):
    """The increase and its standard error, for a loss of each example [N]."""
    generator = torch.Generator().manual_seed(1)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    total = []
    for _ in range(count // 1000):
        z = torch.randn(1000, *mean.shape, generator=generator, dtype=torch.float64)
        total.append(loss(mean + torch.einsum("nij,snj->sni", root, z), target) - loss(mean, target))
    each = torch.cat(total)
    return each.mean().item(), each.std().item() / math.sqrt(count)


@pytest.mark.parametrize(("dimension", "samples"), [(1, 2), (1, 512), (2, 64), (10, 512), (100, 16)])
def test_draws_have_the_moments_of_the_normal_distribution(dimension, samples):
    z = draws(dimension, samples)
    assert z.shape == (max(samples, 4 * dimension), dimension)
    count = len(z)
    assert z.mean(0).abs().max() < 1e-12
    torch.testing.assert_close(z.T @ z / count, torch.eye(dimension, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.einsum("si,sj,sk->ijk", z, z, z).abs().max() < 1e-9 * count
    if count >= 512 and dimension <= 10:
        # Var(Z^4) = 96, which plain draws would have.
        assert ((z**4).mean(0) - 3).abs().max() < 3 * math.sqrt(96 / count)


def test_draws_leave_the_global_generator_alone():
    draws.cache_clear()
    before = torch.get_rng_state()
    first = draws(5, 64)
    assert torch.equal(torch.get_rng_state(), before)
    draws.cache_clear()
    assert torch.equal(draws(5, 64), first)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_squared_error_is_exact(rank):
    """E[(Y - t)^2] = (E[Y] - t)^2 + Var(Y)."""
    mean, covariance = gaussian(rank=rank, scale=30)
    got = increase(F.mse_loss, mean, covariance, torch.zeros_like(mean), 8)
    assert got.item() == pytest.approx(covariance.diagonal(dim1=1, dim2=2).mean().item(), rel=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.1, 1.0, 100.0])
def test_binary_cross_entropy_is_integrated_to_rounding(scale):
    mean, covariance = gaussian(outputs=2, scale=scale)
    deviation = covariance.diagonal(dim1=1, dim2=2).sqrt()
    # The trapezoidal rule over z, fine enough for the sharpest bend.
    z = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    weight = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    expected = 0.0
    for m, s in zip(mean.flatten(), deviation.flatten()):
        expected += (weight * (F.softplus(m + s * z, threshold=40) - F.softplus(m, threshold=40))).sum().item()
    for loss, count in ((F.binary_cross_entropy_with_logits, 8), (nn.BCEWithLogitsLoss(reduction="sum"), 1)):
        got = increase(loss, mean, covariance, torch.rand_like(mean), SAMPLES).item()
        assert got == pytest.approx(expected / count, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("centre", [21.0, 25.0, 29.0])
def test_binary_cross_entropy_of_sure_outputs(centre):
    """log(1 + e^y) - y = e^-y up to its square, so its expected increase is e^-m (e^(v/2) - 1); torch's threshold of
    20, beyond which it takes the function for linear, would make it 0, or as large as e^-m.
    """
    mean, variance = torch.full((1, 1), centre, dtype=torch.float64), 0.49
    covariance = torch.full((1, 1, 1), variance, dtype=torch.float64)
    got = increase(F.binary_cross_entropy_with_logits, mean, covariance, torch.ones_like(mean), SAMPLES).item()
    rounding = 4 * torch.finfo(torch.float64).eps * centre
    assert got == pytest.approx(math.exp(-centre) * math.expm1(variance / 2), rel=1e-6, abs=rounding)
    assert math.exp(-centre) > 4 * rounding


def test_binary_cross_entropy_with_weights_is_drawn():
    mean, covariance = gaussian(outputs=2)
    target = torch.ones_like(mean)
    plain = increase(nn.BCEWithLogitsLoss(), mean, covariance, target, SAMPLES).item()
    twice = increase(nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 2.0])), mean, covariance, target, SAMPLES)
    # With target 1 the loss is that many times softplus(-y), whose expected increase is that of softplus(y).
    assert twice.item() == pytest.approx(2 * plain, rel=0.02)


class Focal(nn.BCEWithLogitsLoss):
    def forward(self, output, target):
        entropy = F.binary_cross_entropy_with_logits(output, target, reduction="none")
        return ((1 - torch.exp(-entropy)) ** 2 * entropy).mean()


def test_a_subclass_of_binary_cross_entropy_is_another_loss():
    mean, covariance = gaussian(outputs=2)
    target = torch.ones_like(mean)
    loss = lambda outputs, _: (torch.sigmoid(-outputs) ** 2 * F.softplus(-outputs)).mean(-1)  # noqa: E731
    sampled, error = by_plain_draws(loss, mean, covariance, target)
    assert increase(Focal(), mean, covariance, target, 4096).item() == pytest.approx(sampled, abs=5 * error + 0.002)
    hooked, patched = nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss()
    hooked.register_forward_hook(lambda module, args, output: 3 * output)
    patched.forward = lambda output, target: 3 * F.binary_cross_entropy_with_logits(output, target)
    plain = increase(nn.BCEWithLogitsLoss(), mean, covariance, target, SAMPLES).item()
    for other in (hooked, patched):
        assert increase(other, mean, covariance, target, SAMPLES).item() == pytest.approx(3 * plain, rel=0.02)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("rank", [2, 10])
def test_cross_entropy_by_many_draws(scale, rank):
    mean, covariance = gaussian(outputs=10, scale=scale, rank=rank)
    target = torch.arange(4)

    def each(output, target):
        return F.cross_entropy(output.transpose(1, 2), target.expand(len(output), -1), reduction="none").mean(1)

    expected, error = by_plain_draws(lambda y, t: each(y if y.dim() == 3 else y[None], t), mean, covariance, target)
    got = increase(F.cross_entropy, mean, covariance, target, SAMPLES).item()
    assert got == pytest.approx(expected, abs=5 * error + 0.02 * abs(expected))


def test_weak_noise_adds_the_second_order():
    mean, covariance = gaussian(outputs=5, scale=1e-8)
    target = torch.arange(4)
    p = mean.softmax(1)
    curvature = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    expected = (curvature * covariance).sum((1, 2)).mean().item() / 2
    assert increase(F.cross_entropy, mean, covariance, target, 32).item() == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_looks_at_its_values_is_drawn_one_by_one():
    mean, covariance = gaussian()

    def loss(output, target):
        return output.square().mean() if output.sum() > -1e9 else output.sum()

    expected = covariance.diagonal(dim1=1, dim2=2).mean().item()
    assert increase(loss, mean, covariance, None, 16).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (F.cross_entropy, torch.arange(4) % 3),
        (nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum"), torch.arange(4) % 3),
        (F.binary_cross_entropy_with_logits, torch.full((4, 3), 0.3, dtype=torch.float64)),
        (F.mse_loss, torch.zeros(4, 3, dtype=torch.float64)),
        (F.huber_loss, torch.zeros(4, 3, dtype=torch.float64)),
    ],
)
def test_gradcheck(loss, target):
    mean, covariance = gaussian()

    def value(mean, factor):
        return increase(loss, mean, factor @ factor.mT, target, 32)

    inputs = mean.requires_grad_(), torch.linalg.cholesky(covariance).requires_grad_()
    assert torch.autograd.gradcheck(value, inputs, atol=1e-6)


@pytest.mark.parametrize("kind", ["distinct", "equal", "singular", "zero"])
def test_the_root_and_its_slope(kind):
    factor = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factor = {
        "distinct": factor,
        "equal": torch.eye(4, dtype=torch.float64).expand(2, 4, 4).clone(),
        "singular": factor[:, :, :2],
        "zero": torch.zeros_like(factor),
    }[kind].requires_grad_()
    root = symmetric_root(factor @ factor.mT)
    assert torch.equal(root, root.mT) or (root - root.mT).abs().max() < 1e-13
    torch.testing.assert_close(root @ root, factor @ factor.mT, rtol=1e-12, atol=1e-12)
    if kind in ("distinct", "equal"):
        assert torch.autograd.gradcheck(lambda f: symmetric_root(f @ f.mT), factor)
    (gradient,) = torch.autograd.grad(root.sum(), factor)
    assert gradient.isfinite().all()


def test_no_spread_adds_nothing():
    mean, covariance = gaussian()
    for loss in (F.cross_entropy, F.binary_cross_entropy_with_logits):
        target = torch.arange(4) % 3 if loss is F.cross_entropy else torch.ones_like(mean)
        start = torch.zeros_like(covariance).requires_grad_()
        value = increase(loss, mean, start, target, SAMPLES)
        assert abs(value.item()) < 1e-15
        assert torch.autograd.grad(value, start)[0].isfinite().all()
