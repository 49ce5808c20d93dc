"""Covariance between the units of a layer under dropout noise, for any model."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ._torch.checks import check_counts, check_module, check_seed, check_whole
from .errors import suggest
from .inference import Inputs, as_inputs
from .surgery.dropout_layers import dropout_layers, dropout_on, mask_axes, seeded

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

_LARGEST_RESULT = 1 << 30  # bytes

# The upper triangle of a product is computed in bands of this many rows: about a third less work for 800 units.
_BAND = 256


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """Covariances between the units of one layer. Pairs are pairs of different units, over all inputs.

    Attributes:
        units: Number of units.
        mean_absolute: Mean of abs(covariance).
        root_mean_square: Root mean square of the covariances.
        sampling_error: The root mean square expected if all units were independent, with the variances they have:
            sqrt(v_i v_j / (repeats - 1)). A root mean square as small as this is no evidence of co-adaptation.
        quantiles: Quantiles of the covariances, by probability.
        near_zero: Share of the pairs with abs(covariance) below ``eps``.
        mean_variance: Mean variance of a unit.
        mean_absolute_correlation: Mean over the pairs of units that both vary; nan if there are none.
    """

    units: int
    mean_absolute: float
    root_mean_square: float
    sampling_error: float
    quantiles: dict[float, float]
    near_zero: float
    mean_variance: float
    mean_absolute_correlation: float


@dataclasses.dataclass(frozen=True)
class Coadaptation:
    """Covariances between units, by layer.

    Attributes:
        covariances: For every layer [inputs, units, units], on the CPU; variances are on the diagonal. In float32, or
            float64 if the layer's output is.
        repeats: Number of passes behind every covariance.
    """

    covariances: dict[str, Tensor]
    repeats: int

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self.covariances)

    def pairs(self, layer: str, *, include_diagonal: bool = False) -> Tensor:
        """Return the covariances of all ordered pairs of units over all inputs, as one vector.

        Both (i, j) and (j, i) are included. The diagonal holds variances, which are not co-adaptation; the paper's "all
        the 800 x 800 unit pairs" includes it.
        """
        if layer not in self.covariances:
            raise ValueError(f"Coadaptation: {_unknown(layer, self.covariances)}")
        covariances = self.covariances[layer]
        return (covariances if include_diagonal else _off_diagonal(covariances)).flatten()

    def histogram(
        self, layer: str, bins: int | Sequence[float] | Tensor = 101, *, include_diagonal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Count :meth:`pairs` in bins; return counts and edges.

        Give the edges to compare models. As with numpy.histogram, pairs outside of them are not counted, and the last
        bin contains its right edge.

        Args:
            layer: Name of the layer.
            bins: Edges, increasing; or a number of equal bins from -m to m, where m is the largest absolute value (1 if
                that is 0). An odd number has a bin around 0.
            include_diagonal: True to count variances too, as the paper does.

        Returns:
            Counts [bins] in int64 and edges [bins + 1] in float64.
        """
        values = self.pairs(layer, include_diagonal=include_diagonal).double()
        if isinstance(bins, (int, numbers.Integral)):
            bins = check_whole("histogram", "bins", bins, 1)
            largest = values.abs().max().item() or 1.0
            edges = torch.linspace(-largest, largest, bins + 1, dtype=torch.float64)
        else:
            edges = torch.as_tensor(bins, dtype=torch.float64)
            if edges.dim() != 1 or len(edges) < 2 or not (edges.diff() > 0).all():
                raise ValueError("histogram: expected bins to be a number or at least 2 edges that increase")
        counts = torch.histogram(values, edges).hist
        return counts.long(), edges

    def quantiles(
        self, layer: str, probabilities: Sequence[float] = QUANTILES, *, include_diagonal: bool = False
    ) -> Tensor:
        """Compute quantiles of :meth:`pairs`, linear between neighbours, in float64."""
        wanted = torch.as_tensor(probabilities, dtype=torch.float64)
        if wanted.dim() != 1 or not ((wanted >= 0) & (wanted <= 1)).all():
            raise ValueError(f"quantiles: expected probabilities from 0 to 1, got {probabilities!r}")
        # Not torch.quantile, which refuses more than 2^24 values.
        values = self.pairs(layer, include_diagonal=include_diagonal).sort().values
        position = wanted * (len(values) - 1)
        below, above = position.floor().long(), position.ceil().long()
        return values[below].double().lerp(values[above].double(), position - below)

    def summary(self, *, eps: float = 1e-3) -> dict[str, LayerSummary]:
        """Return the figures of every layer; values within ``eps`` of zero count as near zero."""
        return {layer: self._summary(layer, eps) for layer in self.layers}

    def _summary(self, layer: str, eps: float) -> LayerSummary:
        covariances = self.covariances[layer]
        units = covariances.shape[-1]
        variances = covariances.diagonal(dim1=1, dim2=2).double()
        pairs = self.pairs(layer).double()
        # The sum of v_i v_j over i != j, without forming the products.
        products = variances.sum(1).square() - variances.square().sum(1)
        mean_product = products.clamp(min=0).mean().item() / (units * (units - 1))
        scale = variances.sqrt()
        correlations = _off_diagonal(covariances / (scale.unsqueeze(2) * scale.unsqueeze(1)))
        both_vary = _off_diagonal((variances.unsqueeze(2) > 0) & (variances.unsqueeze(1) > 0))
        return LayerSummary(
            units=units,
            mean_absolute=pairs.abs().mean().item(),
            root_mean_square=pairs.square().mean().sqrt().item(),
            sampling_error=math.sqrt(mean_product / (self.repeats - 1)),
            quantiles=dict(zip(QUANTILES, self.quantiles(layer).tolist())),
            near_zero=(pairs.abs() < eps).double().mean().item(),
            mean_variance=variances.mean().item(),
            mean_absolute_correlation=correlations[both_vary].abs().mean().item(),
        )


def coadaptation(
    model: torch.nn.Module,
    x: Inputs,
    layers: Sequence[str],
    repeats: int = 10_000,
    *,
    chunk: int = 2500,
    seed: int | None = None,
) -> Coadaptation:
    """Measure covariances between the units of a layer under dropout, for each input on its own.

    For one input after the other the pass is repeated with new masks, and

        covariance_ij = sum over passes of (h_i - mean h_i)(h_j - mean h_j) / (repeats - 1)

    where h is the output of the named module. Name the dropout layer for the inputs of the next layer; name the
    module before it, such as the activation, for the units before their own mask. Between different units both have
    the same expectation (with ``scale="inverted"``), because their masks are independent, but the latter has the
    smaller sampling error. It follows that different units of the first layer with dropout do not covary.

    Dropout layers are in training mode, all others in evaluation mode, as in :func:`contdrop.mc_predict`; modes and
    hooks are restored. Without noise, as in a model without dropout layers, covariances are 0. To measure a model that
    was trained without dropout under some law, load its parameters into one with dropout layers.

    Sums are in float64 around the mean of the first chunk, so a covariance is exact to the rounding of its own type
    (relative 6e-8 in float32). The sampling error, sqrt(v_i v_j / repeats) for independent units, is far larger.

    Args:
        model: Any model.
        x: Inputs [inputs, ...] of any type, such as token ids; a tuple of tensors for a model that takes several.
        layers: Names as in ``model.named_modules()``. Each must be called once in a pass and give [N, ...]; all but
            the first axis are flattened, so every position of a feature map is a unit.
        repeats: Number of passes for each input, at least 2.
        chunk: Copies of one input in a batch. Less takes less memory. Layers that share a mask along the batch
            (``masks="batch"``, or axis 0 in ``shared_axes``) get one copy at a time.
        seed: Makes the result reproducible (for one ``chunk``) and restores torch's generators. With None
            the masks follow from torch.manual_seed, or from a layer's own generator.

    Raises:
        ValueError: Among others, if the covariances would take more than 1 GB (1024 MB).
    """
    modules, inputs = _check(model, x, layers, repeats, chunk, seed)
    dropouts = dropout_layers(model)
    copies = min(chunk, repeats)
    with torch.no_grad(), dropout_on(model, dropouts) as shapes, seeded(dropouts, seed):
        _probe(model, inputs, modules)
        shared = any(0 in mask_axes(dropouts[name], len(shape)) for name in shapes for shape in shapes[name])
        found: dict[str, list[Tensor]] = {name: [] for name in modules}
        for number in range(len(inputs[0])):
            one = tuple(each[number : number + 1] for each in inputs)
            sums = {name: _Sums() for name in modules}
            for done in range(0, repeats, copies):
                # All batches are of one size, the last one too: matrix products of another size are rounded otherwise,
                # which would look like noise.
                for name, values in _chunk(model, one, modules, copies, shared).items():
                    sums[name].add(values[: repeats - done])
            for name in modules:
                found[name].append(sums[name].covariance())
    result = {name: torch.stack(matrices) for name, matrices in found.items()}
    for name, covariances in result.items():
        if not covariances.isfinite().all():
            raise ValueError(f"coadaptation: expected layer {name!r} to give finite values, got infinity or nan")
    return Coadaptation(result, repeats)


class _Sums:
    """Covariance of a stream of rows, shifted by the mean of the first ones so that nothing cancels."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, values: Tensor) -> None:
        """Add values [draws, units]."""
        self._dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        values = values.double()
        units = values.shape[1]
        if not self._count:
            self._shift = values.mean(0)
            self._total = values.new_zeros(units)
            self._squares = values.new_zeros(units, units)
        values = values - self._shift
        self._count += len(values)
        self._total += values.sum(0)
        for start in range(0, units, _BAND):
            band = slice(start, start + _BAND)
            self._squares[band, start:] += values[:, band].T @ values[:, start:]

    def covariance(self) -> Tensor:
        """Return the covariance matrix, exactly symmetric."""
        centred = self._squares - torch.outer(self._total, self._total) / self._count
        upper = centred.triu() / (self._count - 1)
        return (upper + upper.triu(1).T).to("cpu", self._dtype)


class _Done(Exception):  # noqa: N818
    """End of a pass, when all layers have been reached."""


def _run(
    model: torch.nn.Module, batch: Iterable[Tensor], modules: Mapping[str, torch.nn.Module], *, to_the_end: bool = False
) -> dict[str, list[object]]:
    """Return the outputs of the modules in one pass, call by call. The pass ends when each has been called."""
    outputs: dict[str, list[object]] = {name: [] for name in modules}

    def note(name: str, output: object) -> None:
        # Copied, because the next layer may work in place.
        outputs[name].append(output.clone() if isinstance(output, Tensor) else output)
        if not to_the_end and all(outputs.values()):
            raise _Done

    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: note(name, output))
        for name, module in modules.items()
    ]
    try:
        with contextlib.suppress(_Done):
            model(*batch)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def _chunk(
    model: torch.nn.Module, one: Iterable[Tensor], modules: Mapping[str, torch.nn.Module], copies: int, shared: bool
) -> dict[str, Tensor]:
    """Return outputs [copies, units] of every module for one input [1, ...]."""
    size = 1 if shared else copies
    rows: dict[str, list[Tensor]] = {name: [] for name in modules}
    for _ in range(copies // size):
        # Memory of its own, because the first layer may work in place.
        batch = [each.expand(size, *each.shape[1:]).clone(memory_format=torch.contiguous_format) for each in one]
        for name, outputs in _run(model, batch, modules).items():
            rows[name].append(_rows(name, outputs, size))
    return {name: torch.cat(parts) for name, parts in rows.items()}


def _rows(name: str, outputs: list[object], copies: int) -> Tensor:
    if len(outputs) != 1:
        times = f"called {len(outputs)} times" if outputs else "never called"
        raise ValueError(f"coadaptation: expected layer {name!r} to be called once in a pass, but it is {times}")
    (output,) = outputs
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"coadaptation: expected layer {name!r} to give a floating-point tensor, got {kind}")
    if output.dim() < 2 or len(output) != copies or output[0].numel() < 2:
        raise ValueError(
            f"coadaptation: expected layer {name!r} to give [N, ...] with at least 2 units for a batch of N = "
            f"{copies}, got {tuple(output.shape)}"
        )
    return output.flatten(1)


def _probe(model: torch.nn.Module, inputs: Sequence[Tensor], modules: Mapping[str, torch.nn.Module]) -> None:
    """Check the outputs of the layers in one complete pass."""
    twice = [each[:1].repeat(2, *[1] * (each.dim() - 1)) for each in inputs]
    count, size = len(inputs[0]), 0
    for name, outputs in _run(model, twice, modules, to_the_end=True).items():
        rows = _rows(name, outputs, 2)
        size += count * rows.shape[1] ** 2 * (8 if rows.dtype == torch.float64 else 4)
        if size > _LARGEST_RESULT:
            raise ValueError(
                f"coadaptation: expected covariances of at most {_LARGEST_RESULT >> 20} MB in all, but {count} inputs "
                f"and the {rows.shape[1]} units of layer {name!r} make {size >> 20} MB; take fewer inputs or a smaller "
                "layer"
            )


def _check(
    model: torch.nn.Module, x: Inputs, layers: Sequence[str], repeats: int, chunk: int, seed: int | None
) -> tuple[dict[str, torch.nn.Module], tuple[Tensor, ...]]:
    """Check the arguments; return the named modules and the inputs."""
    owner = "coadaptation"
    check_module(owner, model)
    if isinstance(layers, str):
        raise TypeError(f"{owner}: expected layers to be a list of names, got one string; write [{layers!r}]")
    check_counts(owner, repeats=(repeats, 2), chunk=(chunk, 1))
    check_seed(owner, seed)
    if not layers or len(set(layers)) < len(layers):
        raise ValueError(f"{owner}: expected at least one layer, and each once, got {list(layers)}")
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in layers:
        if layer not in modules:
            raise ValueError(f"{owner}: {_unknown(layer, modules)}")
    inputs = as_inputs(owner, x)
    for each in inputs:
        if each.dim() < 1 or not len(each):
            raise ValueError(f"{owner}: expected x to be [inputs, ...] with at least 1 input, got {tuple(each.shape)}")
    if len({len(each) for each in inputs}) > 1:
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        raise ValueError(f"{owner}: expected tensors of as many inputs each, got {shapes}")
    return {layer: modules[layer] for layer in layers}, inputs


def _unknown(layer: str, known: Iterable[str]) -> str:
    return f"expected the name of a layer, got {layer!r}; {suggest(str(layer), filter(None, known))}"


def _off_diagonal(matrices: Tensor) -> Tensor:
    """Return the elements off the diagonal of [N, U, U], as a view [N, U - 1, U]."""
    count, units, _ = matrices.shape
    # Without its first element, row k of U + 1 elements ends in a diagonal element.
    return matrices.reshape(count, -1)[:, 1:].reshape(count, units - 1, units + 1)[:, :, :-1]
