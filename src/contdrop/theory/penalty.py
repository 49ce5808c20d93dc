"""The explicit regularizer of dropout: the expected loss that the noise adds, without sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from .._torch.checks import check_choice, check_module, check_whole
from .._torch.private import BATCH_NORMS
from ..surgery.dropout_layers import DROPOUT_LAYERS, switched
from . import _numerics, penalty_terms
from .penalty_terms import Loss, Noise, noisy_forward, replaced_forwards
from .propagation import Moments, propagate

Method: TypeAlias = Literal["expectation", "moments", "gauss-newton", "exact", "hutchinson"]
METHODS: tuple[Method, ...] = get_args(Method)

# Those that propagate moments through the network.
_PROPAGATED = ("expectation", "moments")

_ROWS_AT_ONCE = 256  # second derivatives that the exact method takes at a time: bounds its memory


def penalty(
    model: torch.nn.Module,
    x: Tensor,
    target: Any,
    loss: Loss,
    *,
    method: Method | None = None,
    samples: int = 512,
    probes: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute the expected loss that dropout adds to a network, without sampling; differentiable.

    Let L(e) be the loss as a function of the noise e_k of all mask values of all dropout layers, independent with mean
    zero and variance v_k, so that L(0) is the loss with mean masks, as in evaluation. Then (Taylor)::

        E[L(e)] - L(0) = 1/2 sum over k of v_k d^2 L / d e_k^2 + higher orders in the noise

    For an activation h with mask m and ``scale="inverted"``, v_k = Var(m) / E[m]^2 and d^2 L / d e_k^2 = h^2 d^2 L / d
    h^2; for ``scale="paper"``, v_k = Var(m). Where elements share a mask value, e_k is the noise of that value. The
    higher orders are small if no single mask value changes the loss much, and zero for a loss that is quadratic in the
    noise.

    Train with it instead of sampling: ``loss(model(x), target) + penalty(model, x, target, loss)`` with ``model`` in
    evaluation mode. It knows contdrop's layers and torch.nn.Dropout, Dropout1d, 2d and 3d. Fast dropout and DropConnect
    put their noise on the pre-activation; adaptive dropout has v = p (1 - p) for a unit kept with probability p, and is
    differentiated through p, which the layer itself is not. During the call the whole model is in evaluation mode, so
    batch norm uses its running statistics.

    The methods are:

    * "expectation": propagates mean and covariance through the network (:mod:`.propagation`), and averages the loss
      over Gaussian outputs with these moments: exactly for squared error, to rounding for
      ``binary_cross_entropy_with_logits``, over ``samples`` fixed draws for other losses. It holds for strong noise and
      sees kinks. Needs layers that ``propagation.moments`` knows, and a loss that is a mean or a sum over examples and
      defined for every output: logits, not probabilities.
    * "moments": the same with the loss expanded to second order around the mean output. Cheaper, and too low for a
      network that is sure of its outputs, around which the loss is flat. Needs a loss as "gauss-newton" does.
    * "gauss-newton": the diagonal of J^T H J, with J the derivatives of the output with respect to e and H the second
      derivatives of the loss with respect to the output. Deterministic, not negative for a convex loss, and two
      backward passes per output. It leaves out the curvature of the model, so it equals "exact" where the output is
      piecewise linear in each e_k (ReLU, max-pooling, linear layers), but not with sigmoid or tanh after the noise.
      Needs a loss that is a mean or a sum over examples and has curvature (``cross_entropy`` of logits, not a model
      that ends in ``log_softmax``), and a model that treats each example, along axis 0, by itself.
    * "exact": the diagonal of the Hessian, by one backward pass per mask value: for small networks and checks.
    * "hutchinson": u * (Hessian u) with random signs u, averaged over ``probes``: an unbiased estimate of "exact" for
      any model and loss, by one backward pass per probe.

    Second derivatives do not see the kinks of ReLU and max-pooling, so the last three miss the effect of noise that
    carries a unit across its kink. ``docs/theory.md`` compares the methods with Monte Carlo on trained networks:
    "expectation" was nearest in all cases, so it is the default.

    Args:
        model: A network with dropout layers; called as ``model(x)``.
        x: A batch of inputs.
        target: Second argument of ``loss``.
        loss: ``loss(output, target)``, a scalar tensor.
        method: One of the above. None takes "expectation" if it knows all layers, else "gauss-newton".
        samples: Draws of "expectation", at least 2; at least four per output are taken, the same in every call.
        probes: Number of probes of "hutchinson".
        generator: CPU generator of the probes; torch's default generator if None.
    """
    _check(model, x, target, method, samples, probes, generator)
    task = _Task(model, x, target, loss, torch.is_grad_enabled())
    with torch.enable_grad():
        total = None
        if method is None or method in _PROPAGATED:
            total = _propagated(task, method, samples)
        if total is None:
            total = _expanded(task, method or "gauss-newton", probes, generator)
    return total if task.differentiable else total.detach()


class _Task(NamedTuple):
    """Arguments that all methods take, and whether the result is to be differentiated."""

    model: torch.nn.Module
    x: Tensor
    target: Any
    loss: Loss
    differentiable: bool

    def evaluate(self, output: Any) -> Tensor:
        """Return the loss of an output, after checking that it is a scalar."""
        value: Any = self.loss(output, self.target)
        if not isinstance(value, Tensor) or value.dim() != 0:
            received = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"penalty: expected loss to return a scalar tensor, got {received}; take its mean")
        return value

    def evaluate_with(self, noise: Noise) -> tuple[Any, Tensor]:
        """Return output and loss of a pass with explicit noise."""
        with replaced_forwards(self.model, noise):
            output = self.model(self.x)
        if not noise.values:
            raise ValueError(
                "penalty: expected the model's forward pass to call a dropout layer, but it called none; "
                "noise that does not come from a layer is not seen"
            )
        return output, self.evaluate(output)


def _expanded(task: _Task, method: Method, probes: int, generator: torch.Generator | None) -> Tensor:
    """Compute the penalty from second derivatives."""
    noise = Noise(by_example=method == "gauss-newton")
    output, value = task.evaluate_with(noise)
    if method == "gauss-newton":
        each, curvature = _loss_curvature(output, value, method, task.differentiable)
        both = torch.cat((each, curvature))
        along = _derivatives([output], noise.values, [both], create_graph=task.differentiable)
        diagonals = [(g[: len(each)] * g[len(each) :]).sum(0) for g in along]
    else:
        slopes = _derivatives([value], noise.values, None, create_graph=True)
        if method == "exact":
            diagonals = [_diagonal(g, e, task.differentiable) for g, e in zip(slopes, noise.values)]
        else:
            signs = [_signs((probes, *value.shape), value, generator) for value in noise.values]
            products = _derivatives(slopes, noise.values, signs, create_graph=task.differentiable)
            diagonals = [(u * product).mean(0) for u, product in zip(signs, products)]
    return torch.stack([(v * d).sum() for v, d in zip(noise.variances, diagonals)]).sum() / 2


def _derivatives(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], directions: Sequence[Tensor] | None, *, create_graph: bool
) -> list[Tensor]:
    """Differentiate the outputs along each of the directions (stacked along axis 0), or a scalar output if None.

    An output that does not depend on an input has derivative zero.
    """
    dependent = [i for i, output in enumerate(outputs) if output.requires_grad]
    gradients: Sequence[Tensor | None] = [None] * len(inputs)
    if dependent:
        gradients = torch.autograd.grad(
            [outputs[i] for i in dependent],
            inputs,
            None if directions is None else [directions[i] for i in dependent],
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
            is_grads_batched=directions is not None,
        )
    stack = () if directions is None else directions[0].shape[:1]
    return [value.new_zeros((*stack, *value.shape)) if g is None else g for g, value in zip(gradients, inputs)]


def _propagated(task: _Task, method: Method | None, samples: int) -> Tensor | None:
    """Compute the penalty by propagated moments; return None for an unknown layer, unless the method is named."""
    try:
        return _by_moments(task, method or "expectation", samples)
    except NotImplementedError as error:
        if method is None:
            return None
        reason = str(error).removeprefix("moments: ")
        raise NotImplementedError(f"penalty: {reason}; use method='gauss-newton'") from None
    except ValueError as error:
        raise ValueError(f"penalty: {str(error).removeprefix('moments: ').removeprefix('penalty: ')}") from error


def _by_moments(task: _Task, method: Method, samples: int) -> Tensor:
    output, base = task.evaluate_with(Noise(by_example=False))
    with switched(task.model, training=False):
        found = propagate(task.model, _numerics.as_tensor("penalty", "x", task.x), "output")
    if method == "moments":
        mean = found.mean.to(output.dtype)
        mean = mean if mean.requires_grad else mean.requires_grad_()
        value = task.evaluate(mean)
        _, curvature = _loss_curvature(mean, value, method, task.differentiable)
        assert found.covariance is not None
        curvature = curvature.reshape(*curvature.shape[:2], -1)
        return value + torch.einsum("cno,nco->", curvature, found.covariance.to(mean)) / 2 - base
    value = _expectation(task, found, output.dtype, base, samples)
    if not torch.isfinite(value):
        raise ValueError(
            "penalty: expected a loss that is defined for every output for method='expectation', got "
            f"{value.item()} for outputs drawn from a Gaussian; give logits instead of probabilities, or use "
            "method='moments'"
        )
    return value


def _expectation(task: _Task, found: Moments, dtype: torch.dtype, base: Tensor, samples: int) -> Tensor:
    assert found.covariance is not None
    mean = found.mean.to(dtype)
    try:
        _check_additive(task, mean.detach(), found.variance.detach().to(mean))
        value = task.evaluate(mean) - base
        return value + penalty_terms.increase(task.loss, mean, found.covariance, task.target, samples)
    except (RuntimeError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"penalty: loss failed on outputs drawn from a Gaussian, as method='expectation' does it: {reason}; use "
            "method='moments' or 'hutchinson'"
        ) from error


def _coupled(method: str) -> ValueError:
    return ValueError(
        f"penalty: expected loss to be a mean or a sum over examples for method={method!r}, got one that "
        "couples them; use method='hutchinson'"
    )


@torch.no_grad()
def _check_additive(task: _Task, mean: Tensor, variance: Tensor) -> None:
    """Refuse a loss that couples examples, for which the draws, the same for all of them, would not do.

    Moving each half of the examples, and both, must change the loss additively.
    """
    if len(mean) < 2:
        return
    half = torch.zeros(len(mean), dtype=torch.bool)
    half[torch.randperm(len(mean), generator=torch.Generator().manual_seed(0))[: len(mean) // 2]] = True
    half = half.to(mean.device).reshape(-1, *[1] * (mean.dim() - 1))
    moved = mean + variance.sqrt()
    outputs = (mean, torch.where(half, moved, mean), torch.where(half, mean, moved), moved)
    none, first, second, both = (task.evaluate(output).item() for output in outputs)
    size = max(abs(first - none), abs(second - none))
    if abs(both - first - second + none) > 1e-3 * size + 100 * torch.finfo(mean.dtype).eps * max(abs(none), abs(both)):
        raise _coupled("expectation")


def _loss_curvature(output: Any, value: Tensor, method: str, differentiable: bool) -> tuple[Tensor, Tensor]:
    """Return unit directions [C, N, ...] of each of the C outputs, and the loss's second derivatives along them."""
    if not isinstance(output, Tensor) or output.dim() == 0:
        received = "a scalar" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"penalty: expected the model to return a tensor [batch, ...] for method={method!r}, "
            f"got {received}; use method='hutchinson'"
        )
    (slope,) = _derivatives([value], [output], None, create_graph=True)
    # Since examples do not touch each other, one direction serves output c of all of them.
    outputs = output.shape[1:].numel()
    each = torch.eye(outputs, dtype=output.dtype, device=output.device)
    each = each[:, None].expand(-1, len(output), -1).reshape(outputs, *output.shape)
    (curvature,) = _derivatives([slope], [output], [each], create_graph=differentiable)
    if not curvature.any():
        raise ValueError(
            f"penalty: expected a loss with curvature in the model's output for method={method!r}, got one that "
            "is linear in it; end the model before log_softmax and use cross_entropy, or use method='hutchinson'"
        )
    _check_separable(slope, output, curvature.detach(), method)
    return each, curvature


def _check_separable(slope: Tensor, output: Tensor, curvature: Tensor, method: str) -> None:
    """Refuse a loss whose Hessian is more than each example's block, by comparing a product with both."""
    direction = _signs(output.shape, output, torch.Generator().manual_seed(0))
    (product,) = _derivatives([slope], [output], [direction[None]], create_graph=False)
    by_output = direction.reshape(len(direction), -1), curvature.reshape(*curvature.shape[:2], -1)
    blocks = torch.einsum("nc,cno->no", *by_output).reshape(output.shape)
    # Where the loss is nearly flat, as that of a network that is sure of itself, rounding is all there is.
    bound = 1e-3 * curvature.abs().max().item() + 10 * torch.finfo(output.dtype).eps
    if not torch.allclose(product[0], blocks, rtol=0, atol=bound):
        raise _coupled(method)


def _diagonal(slope: Tensor, noise: Tensor, differentiable: bool) -> Tensor:
    parts = []
    for index in torch.arange(noise.numel(), device=noise.device).split(_ROWS_AT_ONCE):  # type: ignore[no-untyped-call]
        units = torch.nn.functional.one_hot(index, noise.numel()).to(noise.dtype).reshape(-1, *noise.shape)
        (rows,) = _derivatives([slope], [noise], [units], create_graph=differentiable)
        parts.append(rows.flatten(1).gather(1, index[:, None]))
    return torch.cat(parts).reshape(noise.shape)


def _signs(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    # Drawn on the CPU, so that a seed gives the same signs on every device.
    return (2 * torch.randint(2, tuple(shape), generator=generator, device="cpu") - 1).to(like)


def _check(
    model: Any, x: Any, target: Any, method: str | None, samples: int, probes: int, generator: torch.Generator | None
) -> None:
    check_module("penalty", model)
    check_choice("penalty", "method", method, (None, *METHODS))
    check_whole("penalty", "samples", samples, 2)
    check_whole("penalty", "probes", probes, 1)
    if generator is not None and (not isinstance(generator, torch.Generator) or generator.device.type != "cpu"):
        raise TypeError(f"penalty: expected generator to be a torch.Generator on the cpu or None, got {generator!r}")
    if not isinstance(x, Tensor):
        raise TypeError(f"penalty: expected x to be a tensor, got {type(x).__name__}")
    if not x.numel():
        raise ValueError(f"penalty: expected x to hold at least one example, got shape {tuple(x.shape)}")
    for name, given in (("x", x), ("target", target)):
        if isinstance(given, Tensor) and not torch.isfinite(given).all():
            raise ValueError(f"penalty: expected {name} to be finite, got inf or nan; look at what produced it")
    known = [_check_layer(name, layer, method) for name, layer in model.named_modules()]
    if not any(known):
        raise ValueError(
            "penalty: expected a model with dropout layers, such as contdrop.GaussianDropout or torch.nn.Dropout, "
            f"got {type(model).__name__} without any"
        )


def _check_layer(name: str, layer: torch.nn.Module, method: str | None) -> bool:
    """Tell whether the noise of a layer is known; raise ValueError if it is noisy in an unknown way."""
    what = f"layer {name!r} ({type(layer).__name__})"
    if isinstance(layer, (torch.nn.RNNBase, torch.nn.MultiheadAttention)) and layer.dropout:
        raise ValueError(f"penalty: {what} has dropout={layer.dropout} inside, which cannot be seen; set it to 0")
    if method == "gauss-newton" and isinstance(layer, BATCH_NORMS) and layer.running_mean is None:
        raise ValueError(
            f"penalty: {what} keeps no running statistics, so it couples examples, which method='gauss-newton' does "
            "not allow for; use method='hutchinson'"
        )
    known = noisy_forward(layer) is not None
    if isinstance(layer, DROPOUT_LAYERS) and not known:
        raise ValueError(f"penalty: {what} is a dropout layer whose noise is not known here; replace it")
    return known
