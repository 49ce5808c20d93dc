"""Calibration and out-of-distribution detection for classifiers.

Predictions are made in three ways: with dropout off (``point``), averaged over passes with dropout on (``mc``,
:func:`contdrop.mc_predict`), and by propagated moments (``moments``, :func:`contdrop.inference.predict`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import inference
from ...errors import UserError
from ..data.batch import leaves, map_leaves, prediction_of, size_of, target_of, to_device
from ..study.study import Configuration, is_integer_at_least
from . import metric_values, random_streams
from .model import default_forward

Array = npt.NDArray[Any]
Forward = Callable[[torch.nn.Module, Any], Any]


# Class probabilities [N, C] of some examples in float64, their ``entropy`` in nats [N], and of predictions with masks
# the ``mutual_information`` [N] between class and mask.
Predicted = dict[str, Array]


@dataclass(frozen=True)
class Uncertainty(Configuration):
    """The ``measure`` of a study that evaluates the uncertainty of its models.

    For each possible way in ``point``, ``mc`` and ``moments`` it keeps, as ``uncertainty_<way>_<name>``:

    - by test example: ``contribution_nll``, ``contribution_brier``, ``confidence``, ``correct``, ``entropy`` and
      ``mutual_information``;
    - over all examples: ``nll``, ``brier`` and ``ece``, as the metrics of these names, and ``reliability``, three rows
      of ``bins`` numbers: the number of examples in the bin, their mean confidence, and the share of correct ones;
    - with ``ood``: ``auroc_entropy`` and ``auroc_mutual_information``, the probability that an out-of-distribution
      input has a larger value than a test example; by input, ``ood_entropy`` and ``ood_mutual_information``.

    Attributes:
        samples: Passes of Monte-Carlo prediction, at least 2.
        ood: Function that returns out-of-distribution inputs in the form that the model takes, without targets.
        forward: The study's own (model, batch) -> output, if it has one. Then there are no moments.
        moments: Whether to propagate moments, where the model's layers allow it.
        examples: Number of first test examples and of out-of-distribution inputs to use; all if None.
        batch_size: Examples per batch.
        bins: Bins of the reliability diagram; the calibration error always has 15.
    """

    kind: ClassVar[str] = "uncertainty"
    samples: int = 50
    _: KW_ONLY
    ood: Callable[[], Any] | None = None
    forward: Forward | None = None
    moments: bool = True
    examples: int | None = None
    batch_size: int = 256
    bins: int = metric_values.BINS

    def __post_init__(self) -> None:
        for name, least in {"samples": 2, "batch_size": 1, "bins": 1, "examples": 1}.items():
            value = getattr(self, name)
            if not is_integer_at_least(value, least) and not (value is None and name == "examples"):
                raise UserError(f"uncertainty: expected {name} to be a whole number of at least {least}; got {value!r}")
        for name, function in {"ood": self.ood, "forward": self.forward}.items():
            if function is not None and not callable(function):
                raise UserError(f"uncertainty: expected {name} to be a function; got {type(function).__name__}")

    def __call__(self, model: torch.nn.Module, parts: Any, seed: int) -> dict[str, Array]:
        """Return the arrays to store for a trained model; see :class:`Uncertainty`."""
        order = torch.cat(parts.test.order(None, self.batch_size))[: self.examples]
        batches = list(parts.test.batches(torch.split(order, self.batch_size)))
        truth = np.concatenate([_classes(batch) for batch in batches])
        known = self._predict(model, batches, seed, "test")
        ood = self._predict(model, self._ood_batches(), seed, "ood") if self.ood is not None else {}
        return {
            f"uncertainty_{way}_{name}": array
            for way, predicted in known.items()
            for name, array in (_kept(predicted, truth, self.bins) | _detection(predicted, ood.get(way, {}))).items()
        }

    def _predict(self, model: torch.nn.Module, batches: Sequence[Any], seed: int, name: str) -> dict[str, Predicted]:
        """Return the predictions of each possible way, and leave the model in evaluation mode.

        Without dropout layers there are no masks to average over; moments are known for some layers only. Data of
        another ``name`` get their own masks.
        """
        model.eval()
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        moved = [to_device(batch, device) for batch in batches]
        calls = [_Logits(model, self.forward or default_forward, batch) for batch in moved]
        seeds = [random_streams.seed(seed, random_streams.MEASURE, 0, name, number) for number in range(len(moved))]
        point = _joined(map(_point, calls))
        monte_carlo = (
            _of(inference.mc_predict(call, call.marker, self.samples, transform="softmax", seed=seed))
            for call, seed in zip(calls, seeds)
        )
        found = {"point": point, "mc": _if_possible(monte_carlo)}
        # Moments follow the model itself, so they need to know what it is called with.
        inputs = [x for batch in moved if (x := _only_input(batch)) is not None]
        is_plain = self.forward is None and len(inputs) == len(moved)
        if self.moments and is_plain and point["probabilities"].shape[1] == calls[0].width:
            moments = (
                _of(inference.predict(model, x, method="moments", transform="softmax", seed=seed))
                for x, seed in zip(inputs, seeds)
            )
            found["moments"] = _if_possible(moments)
        return {way: predicted for way, predicted in found.items() if predicted}

    def _ood_batches(self) -> list[Any]:
        """Return batches of the out-of-distribution inputs, which have no target."""
        assert self.ood is not None
        nest = map_leaves(
            lambda leaf: torch.as_tensor(leaf if isinstance(leaf, Tensor) else np.asarray(leaf)), self.ood()
        )
        lengths = {len(leaf) if leaf.dim() else 0 for _, leaf in leaves(nest)}
        if len(lengths) != 1 or not min(lengths):
            raise UserError(
                "uncertainty: ood: expected a function that returns inputs as the model takes them, a tensor or a "
                f"nesting of equally long ones, at least one; got lengths {sorted(lengths)}"
            )
        number = min(size_of(nest), self.examples or size_of(nest))
        starts = range(0, number, self.batch_size)
        return [(map_leaves(lambda leaf: leaf[a : min(a + self.batch_size, number)], nest), None) for a in starts]  # noqa: B023


uncertainty = Uncertainty  # as studies write it


class _Logits(torch.nn.Module):
    """Model on one batch of any form, as a model of one tensor that returns logits [N, C] in float64."""

    def __init__(self, model: torch.nn.Module, forward: Forward, batch: Any) -> None:
        super().__init__()
        self.model, self._forward, self._batch = model, forward, batch
        self.marker = torch.zeros(size_of(batch))
        self.width = 0  # of the model's own output

    def forward(self, _: Tensor) -> Tensor:
        logits = prediction_of(self._forward(self.model, self._batch)).double()
        if logits.dim() == 1:
            logits = logits.unsqueeze(1)
        if logits.dim() != 2:
            raise UserError(f"uncertainty: expected one class per example, got outputs of shape {list(logits.shape)}")
        self.width = logits.shape[1]
        # One logit z for two classes is (0, z): its softmax is the sigmoid of z.
        return torch.cat([torch.zeros_like(logits), logits], 1) if self.width == 1 else logits


def _only_input(batch: Any) -> Tensor | None:
    """Return x of a batch (x, y) if it is a floating-point tensor."""
    x = batch[0] if isinstance(batch, (tuple, list)) and len(batch) <= 2 else None
    return x if isinstance(x, Tensor) and x.is_floating_point() else None


@torch.no_grad()
def _point(call: _Logits) -> Predicted:
    probabilities = call(call.marker).softmax(1).cpu()
    return {"probabilities": probabilities.numpy(), "entropy": torch.special.entr(probabilities).sum(1).numpy()}


def _of(prediction: inference.Prediction) -> Predicted:
    entropy, information = prediction.entropy, prediction.mutual_information
    assert entropy is not None
    assert information is not None
    found = {"probabilities": prediction.mean, "entropy": entropy, "mutual_information": information}
    arrays = {name: tensor.cpu().numpy() for name, tensor in found.items()}
    # Without noise it is zero up to rounding errors, by which examples must not be ranked.
    return arrays | {"mutual_information": arrays["mutual_information"].round(9)}


def _if_possible(batches: Iterator[Predicted]) -> Predicted:
    """Return the predictions of all batches; none if the first is refused, although the model itself works."""
    try:
        first = next(batches)
    except (ValueError, NotImplementedError):
        return {}
    return _joined([first, *batches])


def _joined(batches: Iterable[Predicted]) -> Predicted:
    every = list(batches)
    return {name: np.concatenate([batch[name] for batch in every]) for name in every[0]}


def _classes(batch: Any) -> npt.NDArray[np.int64]:
    target = target_of(batch).cpu()
    if target.dim() == 2 and target.shape[1] == 1:
        target = target.squeeze(1)
    if target.dim() != 1 or bool((target != target.long()).any()):
        raise UserError(f"uncertainty: expected one class per example, got targets of shape {list(target.shape)}")
    return target.long().numpy()


def _kept(predicted: Predicted, truth: npt.NDArray[np.int64], bins: int) -> dict[str, Array]:
    p, rows = predicted["probabilities"], np.arange(len(truth))
    right = np.zeros_like(p)
    right[rows, truth] = 1
    squares = np.square(p - right).sum(axis=1) / (2 if p.shape[1] == 2 else 1)  # as the metric brier
    losses = -np.log(np.maximum(p[rows, truth], np.finfo(np.float64).tiny))
    # A sum of probabilities in another order may be above 1 by a rounding error.
    confidence, correct = np.minimum(p.max(axis=1), 1), p.argmax(axis=1) == truth
    by_example = {"contribution_nll": losses, "contribution_brier": squares, "confidence": confidence, **predicted}
    ece = metric_values.calibration_error(np.stack([confidence, correct], axis=1))
    values = {"nll": losses.mean(), "brier": squares.mean(), "ece": ece}
    return {
        **{name: np.asarray(value, np.float64) for name, value in values.items()},
        **{name: array.astype(np.float32) for name, array in by_example.items() if name != "probabilities"},
        "correct": correct.astype(np.uint8),
        "reliability": np.stack(metric_values.reliability(confidence, correct, bins)).astype(np.float64),
    }


def _detection(known: Predicted, ood: Predicted) -> dict[str, Array]:
    """Return how well uncertainty separates out-of-distribution inputs from test data."""
    names = [name for name in ("entropy", "mutual_information") if name in known and name in ood]
    aurocs = {f"auroc_{name}": metric_values.ranked_auroc(ood[name], known[name]) for name in names}
    kept = {f"ood_{name}": ood[name].astype(np.float32) for name in names}
    return kept | {name: np.asarray(value, np.float64) for name, value in aurocs.items()}
