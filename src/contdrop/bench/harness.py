"""Runs the sections that are asked for, one after the other."""

from __future__ import annotations

from . import contestants, environment, sections
from .results import Report
from .sections import Settings, Stage


def measure(settings: Settings, stage: Stage, command: str) -> Report:
    """Measures the chosen sections; the report says by which ``command``, so that anyone can repeat it."""
    asked = {
        "command": command,
        "sections": list(settings.sections),
        "sizes": [list(shape) for shape in settings.sizes],
        "rounds": settings.rounds,
        "steps": settings.steps,
        "compiled": settings.compiled,
        "freed_memory_kept": environment.keep_freed_memory(),
    }
    report = Report(environment.describe(), asked, left_out={})
    who: list[contestants.Contestant] = []
    if {"elementwise", "memory"} & set(settings.sections):
        who, report.left_out = contestants.elementwise(settings.compiled)
    others = environment.Others()
    for section in settings.sections:
        if section == "elementwise":
            report.elementwise = sections.elementwise(settings, who, stage)
        elif section == "types":
            report.types = sections.types(settings, stage)
        elif section == "memory":
            report.memory = sections.memory(who, stage)
        elif section == "step":
            report.step = sections.step(settings, stage)
        else:
            report.dropconnect = sections.dropconnect(settings, stage)
    report.environment["others"] = others.share()
    return report
