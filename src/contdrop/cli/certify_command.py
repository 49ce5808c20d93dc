"""``contdrop certify``: bounds on the error of trained networks."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated, Any

import typer

import contdrop

from ..choices import MIXTURE_MASKS
from ..errors import UserError
from ..lab.api import Result
from ..lab.extensions import find_studies
from ..lab.runner.certify import PARTS, Certified, certify
from ..lab.store.writer import Store
from ..lab.study import source
from ..lab.study.labels import display_name
from ..lab.study.study import Study
from . import options, terminal
from .options import option
from .progress_bars import Stages


def certify_command(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study of contdrop list, or a study file.")],
    store: options.Store = options.STORE,
    run: Annotated[int, option("RUN", "Which run, from 0.")] = 0,
    part: Annotated[str, option("test|validation", "Examples to bound from.")] = "test",
    delta: Annotated[float, option("PROBABILITY", "How often any of the bounds may fail.")] = 0.05,
    members: Annotated[int, option("MASKS", "Masks per mixture.")] = 50,
    masks: Annotated[str, option("fresh|fixed", "Of a mixture: fresh for each example, or fixed for all.")] = "fresh",
    pac_bayes: Annotated[int | None, option("EPOCHS", "Train PAC-Bayes posteriors, that many epochs.")] = None,
    as_json: options.Json = False,
    plot_file: options.Plot = None,
) -> None:
    """Bound the error of trained networks, with a stated confidence.

    For every method of one run: the network without noise, a random member (one mask), and the mixture of many masks.
    The bounds are Clopper and Pearson's, exact for examples that were used neither to train nor to choose, and hold
    all together. The study has to keep its weights (weights="last").

    --pac-bayes EPOCHS also trains a network of Gaussian weights around each one on the study's validation examples,
    by gradients of its own bound; masks cost nothing in it. It certifies a noisy network, and does not explain what
    dropout gains. docs/certificates.md has the derivations.

    Examples:
      contdrop run mnist-certificate --store certificate.db
      contdrop certify mnist-certificate --store certificate.db --pac-bayes 10
      contdrop certify my_study.py --store my-study.db --delta 0.01 --json
    """
    if part not in PARTS:
        raise UserError(f"--part: expected {' or '.join(PARTS[:2])}; got {part!r}")
    if not 0 < delta <= 0.5:
        raise UserError(f"--delta: expected a number above 0 and at most 0.5; got {delta:g}")
    if members < 2 or (pac_bayes is not None and pac_bayes < 0):
        raise UserError("--members, --pac-bayes: expected at least 2 masks and at least 0 epochs")
    if masks not in MIXTURE_MASKS:
        raise UserError(f"--masks: expected {' or '.join(MIXTURE_MASKS)}; got {masks!r}")
    if plot_file:
        options.check_plot(plot_file)
    which = _certified_study(study)
    result = _stored_result(store, which)
    with Stages(1)("networks", len([job for job in result.results.finished if job.run == run])) as after_each:
        found = certify(
            result,
            which,
            run=run,
            part=part,
            delta=delta,
            members=members,
            masks=masks,  # type: ignore[arg-type]  # checked above
            epochs=pac_bayes,
            after_each=after_each,
        )
    if as_json:
        terminal.print_json(
            {"contdrop": contdrop.__version__, "delta": delta, "methods": [_plain_certificate(each) for each in found]}
        )
    else:
        _show_certificates(found, delta)
    if plot_file:
        from ..lab.report import figures  # matplotlib takes a second

        options.save_plot(figures.certificates(found, delta).draw(), plot_file)


def _certified_study(name: str) -> Study:
    if name.endswith(".py"):
        return source.load_file(pathlib.Path(name))
    found: list[Study] = find_studies(name)
    if len(found) != 1:
        raise UserError(f"expected one study; {name} is {len(found)}: {', '.join(each.name for each in found)}")
    return found[0]


def _stored_result(store: pathlib.Path, study: Study) -> Result:
    with Store(store) as opened:
        keys = [record.key for record in opened.protocols() if record.experiment == study.name]
    if len(keys) != 1:
        has = "does not have it" if not keys else f"has it {len(keys)} times, with different settings"
        raise UserError(
            f"--store: expected one {study.name} in {store}, which {has}; contdrop run {study.name} makes one"
        )
    return Result(store, keys[0], study)


def _show_certificates(certified: list[Certified], delta: float) -> None:
    headings = ["method", "strength r", "mean network", "member", "mixture", "diversity"]
    pac_bayes = any(each.pac_bayes for each in certified)
    headings += ["PAC-Bayes: test error", "bound", "KL"] if pac_bayes else []
    title = f"Error, % <= bound; all hold together with a confidence of {1 - delta:.0%}"
    table = terminal.table(title, headings)
    for each in certified:
        strength = "" if each.strength is None else f"{each.strength:.3g}"
        row = [display_name(each.method, longest=40), strength, _bound_cell(each.mean), "", "", ""]
        if found := each.holdout:
            row[3:] = [_bound_cell(found.member), _bound_cell(found.mixture), f"{found.brier.diversity:.4f}"]
        if made := each.pac_bayes:
            row += [f"{100 * made.test_error:.2f}", f"{100 * made.bound:.2f}", f"{made.kl:.0f}"]
        table.add_row(*row)
    terminal.screen().print(table)


def _bound_cell(bound: Any) -> str:
    return f"{100 * bound.error:.2f} <= {100 * bound.bound:.2f}"


def _plain_certificate(each: Certified) -> dict[str, Any]:
    plain = {"method": each.method, "strength": each.strength, "mean": dataclasses.asdict(each.mean)}
    if each.holdout:
        plain |= {name: dataclasses.asdict(getattr(each.holdout, name)) for name in ("member", "mixture")}
        plain["brier"] = {name: value.item() for name, value in each.holdout.brier._asdict().items()}
    if each.pac_bayes:
        plain["pac_bayes"] = dataclasses.asdict(each.pac_bayes)
    return plain
