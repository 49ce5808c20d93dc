"""Certificates of stored runs: bounds on the error of their networks, from examples kept aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..._torch.private import has_forward_hooks, is_sequence
from ...certificates import Bound, HoldoutCertificate, holdout_certificate, pac_bayes_certificate
from ...certificates.holdout import check_separate
from ...choices import MixtureMasks
from ...errors import UserError
from ...surgery.dropout_layers import dropout_layers, seeded
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
    """PAC-Bayes certificate as reported, with the error of its network on test examples."""

    bound: float
    empirical: float
    kl: float
    n: int
    scale: float
    test_error: float


@dataclass(frozen=True)
class Certified:
    """Certificates of one network.

    Attributes:
        method: Label of the method.
        strength: Relative variance of its noise, if it has one.
        mean: Bound of the network without noise.
        holdout: Bounds of random members and mixtures, too; None without noise.
        pac_bayes: None if not requested.
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
    """Return certificates of all methods of one run, which hold simultaneously.

    Args:
        result: Result of a study that kept its weights.
        study: The study.
        run: Number of the run.
        part: Part of the data to compute the certificates from.
        delta: Probability that any of them fails.
        members: Masks per mixture.
        masks: "fresh" for new masks per example, or one set of masks for all.
        epochs: Epochs to train a PAC-Bayes posterior on the validation examples; None for no such certificate.
        after_each: Called after each network.
    """
    protocol = result.results.protocol
    study = study.at(protocol.preset)
    used = [part] if epochs is None else [part, "validation"]
    for each in used:
        _check_unseen(study, each)
    jobs = [job for job in result.results.finished if job.run == run]
    if not jobs:
        raise UserError(f"--run: expected a run with a finished network; got {run}; run contdrop status to see all")
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
    """Return the data; refuse data of which bounds from these parts would not hold."""
    if study.data is None:
        raise UserError(
            f"{study.name}: expected a study that the lab trains; got one with its own loop, which keeps no network"
        )
    prepared = prepare(study.data(), task=study.task)
    if prepared.groups is not None and set(used) & set(prepared.drawn):
        raise UserError(
            f"{study.name}: expected independent examples; got groups of dependent ones (groups=), from which a bound "
            "would not hold; let data() keep one example of each group"
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
    except ValueError as error:  # a layer is not supported
        raise UserError(str(error)) from None
    with torch.no_grad():
        wrong = int((model.eval()(x).argmax(1) != y).sum())
    # As with noise, where three bounds share delta.
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
    except (TypeError, ValueError) as refusal:  # a layer is not supported
        raise UserError(f"--pac-bayes: {refusal}") from None
    tested, truth = _examples(parts.test, study)
    with torch.no_grad(), seeded(dropout_layers(made.network), 0):
        error = (made.network(tested).argmax(1) != truth).double().mean().item()
    return PacBayes(made.bound, made.empirical, made.kl, made.n, made.scale, error)


def _sequence(model: nn.Module) -> nn.Sequential:
    """Return the layers of a model that consists of sequences of layers only."""
    if not (isinstance(model, nn.Sequential) and is_sequence(model)) or has_forward_hooks(model):
        own = " with a forward or hooks of its own" if isinstance(model, nn.Sequential) else ""
        raise UserError(f"--pac-bayes: expected a model of torch.nn.Sequential; got {type(model).__name__}{own}")
    flat: list[nn.Module] = []
    for layer in model:
        flat += list(_sequence(layer)) if isinstance(layer, nn.Sequential) else [layer]
    return nn.Sequential(*flat)


def _check_unseen(study: Study, part: str) -> None:
    chooses = bool(study.selection.candidates) or study.training.keep == "best" or study.training.patience is not None
    if part == "train" or (part == "validation" and chooses):
        raise _seen(study, part, "were trained on" if part == "train" else "chose parameters or epochs")


def _check_rate(study: Study, protocol: ProtocolRecord, prepared: PreparedData) -> None:
    """Refuse a scheduler that has seen the validation loss during training."""
    if study.training.scheduler is None or study.model is None:
        return
    configuration = protocol.configuration
    # As in training: a scheduler may depend on the optimizer and on the number of steps.
    job = plan(study, preset=protocol.preset, epochs=configuration["epochs"], seed=configuration["seed"])[-1]
    if isinstance(Trainer(job, Variant.parse(job.method), prepared).scheduler, ReduceLROnPlateau):
        raise _seen(study, "validation", "decided the learning rate")


def _seen(study: Study, part: str, use: str) -> UserError:
    return UserError(
        f"{study.name}: expected examples kept aside; got the {part} examples, which {use}, so that a bound from them "
        "would not hold; use --part test without --pac-bayes"
    )


def _examples(part: Part, study: Study) -> tuple[Tensor, Tensor]:
    (batch,) = part.batches(part.order(None, len(part)))
    if study.task != "classification" or study.forward or not (
        isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)
    ):  # fmt: skip
        raise UserError(
            f"{study.name}: certify: expected a classification of tensors without forward=; got another study"
        )
    x, y = batch
    if y.dim() != 1 or y.is_floating_point():
        raise UserError(
            f"{study.name}: certify: expected one class per example, a whole number; got targets of "
            f"{str(y.dtype).removeprefix('torch.')} {list(y.shape)}"
        )
    return x, y.long()
