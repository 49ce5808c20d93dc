"""Values of metrics from the stored contributions of test examples, by NumPy only, so that a check needs no model.

All functions take and return float64. An example whose contribution is NaN makes the value NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BINS = 15  # of the calibration error


def perplexity(mean: Array) -> float:
    """Return exp of the loss per position, from the means of (sum of losses, number of positions) over examples."""
    return float(np.exp(mean[0] / mean[1]))


def reliability(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, bins: int = BINS
) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """Return the reliability diagram, in bins (k / bins, (k + 1) / bins]; a confidence of 0 is in the first.

    Args:
        confidence: Probability of the predicted class, [examples].
        correct: 1 where that class is right, else 0, [examples].
        bins: Number of bins of equal width.

    Returns:
        By bin: number of examples, mean confidence, share of correct examples. The last two are 0 in empty bins.
    """
    confidence, correct = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")
    counts = np.bincount(place, minlength=bins).astype(np.int64)
    sums = [np.bincount(place, weights=values, minlength=bins) for values in (confidence, correct)]
    mean, share = (total.astype(np.float64) / np.maximum(counts, 1) for total in sums)
    return counts, mean, share


def calibration_error(stored: Array) -> float:
    """Return the expected calibration error (Guo et al., 2017): sum_k n_k / n |accuracy_k - confidence_k|, 15 bins.

    Args:
        stored: (confidence, 1 if correct else 0) of each example.
    """
    if np.isnan(stored).any():
        return float("nan")
    counts, confidence, accuracy = reliability(stored[:, 0], stored[:, 1])
    return float(counts @ np.abs(accuracy - confidence) / counts.sum())


def ranked_auroc(positive: npt.ArrayLike, negative: npt.ArrayLike) -> float:
    """Return P(s+ > s-) + P(s+ = s-) / 2 for the scores of a positive and a negative example (Mann-Whitney).

    With ranks R, averaged over ties, it is (sum of R over positives - n+ (n+ + 1) / 2) / (n+ n-); NaN if either is
    empty.
    """
    above, below = np.asarray(positive, np.float64), np.asarray(negative, np.float64)
    scores = np.concatenate([above, below])
    if not len(above) or not len(below) or np.isnan(scores).any():
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[: len(above)].sum() - len(above) * (len(above) + 1) / 2) / (len(above) * len(below)))


def auroc(stored: Array) -> float:
    """Return the area under the ROC curve; for more than two classes, the mean over classes, each against the rest.

    Classes of no example or of all are left out; NaN if none remains.

    Args:
        stored: (logit of each class..., true class) of each example.
    """
    logits, truth = stored[:, :-1], stored[:, -1]
    if np.isnan(stored).any():
        return float("nan")
    if logits.shape[1] == 2:  # orders as the probability does, without saturation
        scores = logits[:, 1] - logits[:, 0]
        return ranked_auroc(scores[truth == 1], scores[truth == 0])
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    split = ((scores[truth == number, number], scores[truth != number, number]) for number in range(logits.shape[1]))
    found = [ranked_auroc(own, others) for own, others in split if len(own) and len(others)]
    return float(np.mean(found)) if found else float("nan")


def f1(stored: Array) -> float:
    """Return the mean of 2 TP / (2 TP + FP + FN) over the classes that occur as truth or as prediction.

    Args:
        stored: (predicted class, true class) of each example.
    """
    if np.isnan(stored).any():
        return float("nan")
    predicted, truth = stored.astype(np.int64).T
    number = int(stored.max()) + 1
    right = np.bincount(truth[predicted == truth], minlength=number)
    either = np.bincount(predicted, minlength=number) + np.bincount(truth, minlength=number)  # 2 TP + FP + FN
    seen = either > 0
    return float(np.mean(2 * right[seen] / either[seen]))


def r2(stored: Array) -> float:
    """Return 1 - sum (y - f)^2 / sum (y - mean y)^2, averaged over outputs; NaN if a target never varies.

    Args:
        stored: (prediction of each output..., target of each output...) of each example.
    """
    predictions, targets = np.split(stored, 2, axis=1)
    spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
    if not np.ptp(targets, axis=0).all():  # the mean is rounded, so the spread is not exactly 0
        return float("nan")
    return float(np.mean(1 - np.square(targets - predictions).sum(axis=0) / spread))


# Ways of prediction, and the quantities of each (:mod:`.uncertainty`), by their names in the store.
WAYS = {"point": "dropout off", "mc": "Monte Carlo", "moments": "moments"}
UNCERTAINTY = {
    "nll": "Test NLL",
    "brier": "Brier score",
    "ece": "Calibration error",
    "auroc_entropy": "AUROC of entropy",
    "auroc_mutual_information": "AUROC of mutual information",
}

_HIGHER = {"accuracy", "auroc", "f1", "r2"}
_LOWER = {"error", "nll", "perplexity", "brier", "ece", "rmse", "mse", "mae", "loss"}


def better_of(name: str) -> str | None:
    """Return the direction in which a metric of this name is better, "lower" or "higher"; None if unknown."""
    known = name.strip().lower()
    return "higher" if known in _HIGHER else "lower" if known in _LOWER else None


# Functions of the mean contribution, and of all contributions, by built-in metric. Others are plain means.
COMBINE: dict[str, Callable[[Any], float]] = {"rmse": math.sqrt, "perplexity": perplexity}
WHOLE: dict[str, Callable[[Array], float]] = {"ece": calibration_error, "auroc": auroc, "f1": f1, "r2": r2}


def value(stored: npt.ArrayLike, combine: Callable[[Any], Any] | None, whole: Callable[[Any], Any] | None) -> Any:
    """Return a metric's value in float64.

    Args:
        stored: Contributions, [examples] or [examples, k].
        combine: Function of their mean over examples, a number or a vector; None for the mean itself.
        whole: Function of all contributions, instead.
    """
    contributions = np.asarray(stored, np.float64)
    if contributions.ndim not in (1, 2):
        raise ValueError(f"expected contributions [examples] or [examples, k], got shape {list(contributions.shape)}")
    if not len(contributions):
        return float("nan")
    if whole is not None:
        return whole(contributions)
    mean = contributions.mean(axis=0)
    return mean if combine is None else combine(mean)
