"""Certificates of stored runs: bounds on the error of their networks, from examples that they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..certificates import Bound, HoldoutCertificate, holdout_certificate, pac_bayes_certificate
from ..choices import MixtureMasks
from ..errors import UserError
from ..inference import dropout_layers
from ..theory import bounds
from .batches import Part, Parts, prepare
from .records import FINAL
from .result import Result
from .study import Study

PARTS = ("test", "validation", "train")


@dataclass(frozen=True)
class PacBayes:
    """The part of a PAC-Bayes certificate that is reported, and how its network does on test examples."""

    bound: float
    empirical: float
    kl: float
    n: int
    scale: float
    test_error: float


@dataclass(frozen=True)
class Certified:
    """One network.

    Attributes:
        method: Its label.
        strength: Relative variance of its noise, if it has one.
        mean: Of the network without noise.
        holdout: Of random members and mixtures too; None without noise.
        pac_bayes: If it was asked for.
    """

    method: str
    strength: float | None
    mean: Bound
    holdout: HoldoutCertificate | None
    pac_bayes: PacBayes | None = None


def certify(
    result: Result,
    study: Study,
    *,
    run: int = 0,
    part: str = "test",
    delta: float = 0.05,
    members: int = 50,
    masks: MixtureMasks = "fresh",
    epochs: int | None = None,
    after_each: Callable[[], None] = lambda: None,
) -> list[Certified]:
    """Certificates of all methods of one run, which hold together.

    Args:
        result: With weights that were kept.
        study: That they are of.
        run: Which run.
        part: The examples that the certificates are made of.
        delta: How often any of them may fail.
        members: Masks per mixture.
        masks: Whether they are drawn anew for each example or the same for all.
        epochs: To train a PAC-Bayes posterior on the validation examples; None for no such certificate.
        after_each: Called when a network is done.
    """
    _check_unseen(study, part)
    if epochs is not None:
        _check_unseen(study, "validation")
    jobs = [job for job in result.results.finished if job.run == run]
    if not jobs:
        raise UserError(f"--run: no network of run {run} is finished; contdrop status shows what is")
    if study.data is None:
        raise UserError(
            f"{study.name}: expected a study that trains by itself; one with a loop of its own keeps no network"
        )
    seed = int(result.results.protocol.configuration["seed"])
    parts = prepare(study.data(), task=study.task).parts(seed, FINAL, run)
    x, y = _examples(getattr(parts, part), study)
    found = []
    for job in jobs:
        model = result.model(job.method, run)
        share = delta / len(jobs) if epochs is None else delta / (2 * len(jobs))
        strength = job.results.get("relative_variance")
        holdout, mean = _holdout(model, x, y, share, members, masks, noisy=strength != 0)
        made = None if epochs is None else _pac_bayes(model, parts, study, share, epochs)
        found.append(Certified(job.method, strength, mean, holdout, made))
        after_each()
    return found


def _holdout(
    model: nn.Module, x: Tensor, y: Tensor, delta: float, members: int, masks: MixtureMasks, *, noisy: bool
) -> tuple[HoldoutCertificate | None, Bound]:
    if noisy and dropout_layers(model):
        try:
            found = holdout_certificate(model, x, y, delta, members=members, masks=masks)
        except ValueError as error:  # what its layers cannot do
            raise UserError(str(error)) from None
        return found, found.mean
    with torch.no_grad():
        wrong = int((model.eval()(x).argmax(1) != y).sum())
    # As in the others, where three bounds share delta.
    return None, Bound(wrong, len(y), bounds.clopper_pearson(wrong, len(y), delta / 3).item())


def _pac_bayes(model: nn.Module, parts: Parts, study: Study, delta: float, epochs: int) -> PacBayes:
    x, y = _examples(parts.validation, study)
    made = pac_bayes_certificate(_sequence(model), x, y, delta, epochs=epochs)
    tested, truth = _examples(parts.test, study)
    with torch.no_grad():
        error = (made.network(tested).argmax(1) != truth).double().mean().item()
    return PacBayes(made.bound, made.empirical, made.kl, made.n, made.scale, error)


def _sequence(model: nn.Module) -> nn.Sequential:
    """The layers one after the other, if the model is nothing but sequences of layers."""
    if not isinstance(model, nn.Sequential):
        raise UserError(f"--pac-bayes: expected a model of torch.nn.Sequential; got {type(model).__name__}")
    flat: list[nn.Module] = []
    for layer in model:
        flat += list(_sequence(layer)) if isinstance(layer, nn.Sequential) else [layer]
    return nn.Sequential(*flat)


def _check_unseen(study: Study, part: str) -> None:
    chooses = bool(study.candidates) or study.keep == "best" or study.patience is not None
    if part == "train" or (part == "validation" and chooses):
        use = "were trained on" if part == "train" else "chose parameters or epochs"
        raise UserError(
            f"{study.name}: expected examples that were kept aside; the {part} examples {use}, so a bound from them "
            "would not hold; use --part test"
        )


def _examples(part: Part, study: Study) -> tuple[Tensor, Tensor]:
    (batch,) = part.batches(part.order(None, len(part)))
    if study.task != "classification" or study.forward or not (
        isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)
    ):  # fmt: skip
        raise UserError(f"{study.name}: expected a classification of tensors without forward=; certificates need that")
    x, y = batch
    return x, y.long()
