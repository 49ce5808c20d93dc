"""``contdrop list``: the experiments there are."""

from __future__ import annotations

import json

from .._text import plural
from ..lab.study.study import Size, Study, describe
from ..replication import studies
from . import options, terminal

HELP = """Show the experiments: what each compares, its size in the paper, and its affordable size (--preset quick).

\b
Examples:
  contdrop list
  contdrop list --json
"""


def list_command(as_json: options.Json = False) -> None:
    """The command; ``HELP`` says what it does."""
    experiments = studies.STUDIES.values()
    if as_json:
        print(json.dumps([_plain(experiment) for experiment in experiments], indent=1))
        return
    table = terminal.table(None, ("experiment", "what it compares", "in the paper", "paper's size", "quick"), right=())
    for experiment in experiments:
        paper = experiment.sizes.get("paper")
        table.add_row(
            experiment.name,
            experiment.description.title,
            experiment.description.paper,
            _size(paper) if paper else "",
            _size(experiment.sizes["quick"]),
        )
    screen = terminal.screen()
    screen.print(table)
    for group, members in studies.GROUPS.items():
        screen.print(f"{group} stands for {', '.join(members)}.")
    screen.print("Run one with: contdrop run EXPERIMENT (quick, unless --preset paper is given)", style="dim")


def _size(size: Size) -> str:
    return f"{plural(size.runs, 'run')} x {plural(size.epochs, 'epoch')}"


def _plain(experiment: Study) -> dict[str, object]:
    return {
        "experiment": experiment.name,
        "title": experiment.description.title,
        "paper": experiment.description.paper,
        "data": describe(experiment.data),
        "methods": list(experiment.methods),
        "reference": experiment.reference,
        "sizes": {
            preset: {"runs": size.runs, "epochs": size.epochs, "selection_runs": size.selection_runs}
            for preset, size in experiment.sizes.items()
        },
        "notes": list(experiment.description.notes),
    }
