"""All commands together, and what a usage error looks like."""

from __future__ import annotations

import importlib.util
import re
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import contdrop

from ..errors import UserError
from . import spoiled_output, terminal

# typer carries its own copy of click or depends on click, according to its version. In both, this is UsageError.
_UsageError: Any = typer.BadParameter.__bases__[0]

# Module and function (or group) of every command, and its line in the list of commands.
_STUDIES, _DATA = "..replication.study_commands", "..replication.data_commands"
_COMMANDS = {
    "list": (_STUDIES, "list_command", "Show the experiments there are."),
    "run": (_STUDIES, "run", "Run an experiment, or resume it."),
    "compare": (".compare_command", "compare", "Compare methods on your own model and data."),
    "status": (".store_commands", "status", "Show how far the experiments are."),
    "export": (".store_commands", "export", "Print the results as CSV or JSON."),
    "report": (".report_commands", "report", "Write a page with the verdict, tables and figures."),
    "serve": (".report_commands", "serve", "Show experiments live, as they run, in the browser."),
    "check": (".store_commands", "check", "Verify a store."),
    "import": (".store_commands", "import_command", "Add an archive to a store."),
    "merge": (".store_commands", "merge", "Join stores and archives into a new store."),
    "claims": (_STUDIES, "claims", "Print the verdict on every claim of the paper."),
    "certify": (".certify_command", "certify_command", "Bound the error of trained networks."),
    "data": (_DATA, "data", "List, get and check the data sets that experiments use."),
    "weights": (_DATA, "weights", "List and check the published weights that networks can start from."),
    "bench": ("contdrop_bench.command", "bench", "Measure how fast the layers are on this machine."),
    "theory": ("..replication.theory_command", "theory", "Check every equation of the paper against Monte Carlo."),
}


# Modules that the replication's commands need beyond those of the lab, and the packages that have them.
_REPLICATION = {"requests": "requests", "sklearn": "scikit-learn", "PIL": "pillow"}


class _GroupedCommand(typer.core.TyperCommand):
    """Command whose help lists options under the headings of :mod:`.options`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = "Arguments" if parameter.param_type_name == "argument" else "Options"
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or heading, []).append(record)
        for heading, records in panels.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Commands(typer.core.TyperGroup):
    """Imports a command when it is given: most need torch, which takes longer than the others take altogether."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(_COMMANDS)  # for the help against typing errors

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        place, name, _ = _COMMANDS[cmd_name]
        if place in (_STUDIES, _DATA):
            missing = [name for module, name in _REPLICATION.items() if importlib.util.find_spec(module) is None]
            if missing:
                raise UserError(
                    f'{cmd_name}: needs {", ".join(missing)}, not installed; run: pip install "contdrop[replication]"'
                )
        module = importlib.import_module(place, __package__)
        found = getattr(module, name)
        if not isinstance(found, typer.Typer):
            command, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cls=_GroupedCommand)(command)
        made = typer.main.get_command(found)
        for each in (made, *getattr(made, "commands", {}).values()):
            # A docstring is the help text; the mark keeps lines of examples from being joined.
            each.help = re.sub(r"^(Examples|Sections):$", "\b\n\\1:", each.help or "", flags=re.MULTILINE)
        return made

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in _COMMANDS.items()])


app = typer.Typer(
    name="contdrop",
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,  # its boxes leave no room for the explanations
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"contdrop {contdrop.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def contdrop_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run paired experiments on dropout for PyTorch, check the paper's theory, and measure the layers' speed.

    Every command explains itself, with examples: contdrop COMMAND --help.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def run() -> int:
    """Run the command line and return the exit code; a usage error is one line on standard error."""
    try:
        code = app(prog_name="contdrop", standalone_mode=False)
    except UserError as error:
        return _complain(str(error))
    except _UsageError as error:
        return _complain(f"{error.format_message().rstrip('.')}; see contdrop --help")
    except (typer.Abort, KeyboardInterrupt):
        return _complain("interrupted", 130)
    except SystemExit:
        return 0  # typer ends so, and only so, when the reader of a pipe has seen enough
    except OSError as error:
        if error.filename is not None:
            return _complain(f"{error.filename}: {error.strerror}")
        return spoiled_output(error)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int = 2) -> int:
    terminal.say(f"contdrop: {message}")
    return code
