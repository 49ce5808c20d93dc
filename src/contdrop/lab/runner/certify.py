"""Certificates of stored runs: bounds on the error of their networks, from examples that they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..._torch.private import has_forward_hooks, is_sequence
from ...certificates import Bound, HoldoutCertificate, holdout_certificate, pac_bayes_certificate
from ...certificates.independence import check_separate
from ...choices import MixtureMasks
from ...errors import UserError
from ...inference import dropout_layers, seeded
from ...theory import bounds
from ..api import Result
from ..data.data import Part, Parts, PreparedData, prepare
from ..store.schema import FINAL, ProtocolRecord
from ..study.plan import Variant, plan
from ..study.study import Study
from ..training.trainer import Trainer

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
    protocol = result.results.protocol
    study = study.at(protocol.preset)  # a size may have other settings
    used = [part] if epochs is None else [part, "validation"]
    for each in used:
        _check_unseen(study, each)
    jobs = [job for job in result.results.finished if job.run == run]
    if not jobs:
        raise UserError(f"--run: no network of run {run} is finished; contdrop status shows what is")
    parts = _divided(study, protocol, used).parts(int(protocol.configuration["seed"]), FINAL, run)
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


def _divided(study: Study, protocol: ProtocolRecord, used: list[str]) -> PreparedData:
    """The data, if bounds from these parts hold."""
    if study.data is None:
        raise UserError(
            f"{study.name}: expected a study that trains by itself; one with a loop of its own keeps no network"
        )
    prepared = prepare(study.data(), task=study.task)
    if prepared.groups is not None and set(used) & set(prepared.drawn):
        raise UserError(
            f"{study.name}: expected independent examples; those of one group (groups=) are not, so a bound from them "
            "would not hold; let data() keep one of each group"
        )
    if "validation" in used:
        _check_rate(study, protocol, prepared)
    return prepared


def _holdout(
    model: nn.Module, x: Tensor, y: Tensor, delta: float, members: int, masks: MixtureMasks, *, noisy: bool
) -> tuple[HoldoutCertificate | None, Bound]:
    _check_logits(model, x)
    try:
        if noisy and dropout_layers(model):
            found = holdout_certificate(model, x, y, delta, members=members, masks=masks)
            return found, found.mean
        check_separate("certify", model, x)
    except ValueError as error:  # what its layers cannot do
        raise UserError(str(error)) from None
    with torch.no_grad():
        wrong = int((model.eval()(x).argmax(1) != y).sum())
    # As in the others, where three bounds share delta.
    return None, Bound(wrong, len(y), bounds.clopper_pearson(wrong, len(y), delta / 3).item())


def _check_logits(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        found = model.eval()(x[:2])
    if not isinstance(found, Tensor) or found.dim() != 2 or found.shape[1] < 2:
        got = f"output {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"certify: expected a model with one logit per class, [N, classes]; got {got} for 2 examples")


def _pac_bayes(model: nn.Module, parts: Parts, study: Study, delta: float, epochs: int) -> PacBayes:
    x, y = _examples(parts.validation, study)
    try:
        made = pac_bayes_certificate(_sequence(model), x, y, delta, epochs=epochs)
    except (TypeError, ValueError) as refusal:  # what its layers are
        raise UserError(f"--pac-bayes: {refusal}") from None
    tested, truth = _examples(parts.test, study)
    with torch.no_grad(), seeded(dropout_layers(made.network), 0):
        error = (made.network(tested).argmax(1) != truth).double().mean().item()
    return PacBayes(made.bound, made.empirical, made.kl, made.n, made.scale, error)


def _sequence(model: nn.Module) -> nn.Sequential:
    """The layers one after the other, if the model is nothing but sequences of layers."""
    if not (isinstance(model, nn.Sequential) and is_sequence(model)) or has_forward_hooks(model):
        own = " with a forward or hooks of its own" if isinstance(model, nn.Sequential) else ""
        raise UserError(f"--pac-bayes: expected a model of torch.nn.Sequential; got {type(model).__name__}{own}")
    flat: list[nn.Module] = []
    for layer in model:
        flat += list(_sequence(layer)) if isinstance(layer, nn.Sequential) else [layer]
    return nn.Sequential(*flat)


def _check_unseen(study: Study, part: str) -> None:
    chooses = bool(study.candidates) or study.keep == "best" or study.patience is not None
    if part == "train" or (part == "validation" and chooses):
        raise _seen(study, part, "were trained on" if part == "train" else "chose parameters or epochs")


def _check_rate(study: Study, protocol: ProtocolRecord, prepared: PreparedData) -> None:
    """Refuses a scheduler that waits for a plateau of the validation loss, which training gives it."""
    if study.scheduler is None or study.model is None:
        return
    configuration = protocol.configuration
    # As the training itself makes it: a scheduler may ask for this optimiser, and for this number of steps.
    job = plan(study, preset=protocol.preset, epochs=configuration["epochs"], seed=configuration["seed"])[-1]
    if isinstance(Trainer(job, Variant.parse(job.method), prepared).scheduler, ReduceLROnPlateau):
        raise _seen(study, "validation", "decided the learning rate")


def _seen(study: Study, part: str, use: str) -> UserError:
    return UserError(
        f"{study.name}: expected examples that were kept aside; the {part} examples {use}, so a bound from them would "
        "not hold; use --part test without --pac-bayes"
    )


def _examples(part: Part, study: Study) -> tuple[Tensor, Tensor]:
    (batch,) = part.batches(part.order(None, len(part)))
    if study.task != "classification" or study.forward or not (
        isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)
    ):  # fmt: skip
        raise UserError(f"{study.name}: expected a classification of tensors without forward=; certificates need that")
    x, y = batch
    if y.dim() != 1 or y.is_floating_point():
        raise UserError(
            f"{study.name}: expected one class per example, a whole number; certificates need that; got targets of "
            f"{str(y.dtype).removeprefix('torch.')} {list(y.shape)}"
        )
    return x, y.long()
