"""All commands together, and what a usage error looks like."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import contdrop

from ..errors import UserError
from . import spoiled_output, terminal

# typer carries its own copy of click or depends on click, according to its version. In both, this is UsageError.
_UsageError: Any = typer.BadParameter.__bases__[0]

# Of every command its module, the function or group there, and a line for --help.
_COMMANDS = {
    "list": ("list_command", "list_command", "Show the experiments there are."),
    "run": ("run_command", "run", "Run an experiment, or resume it."),
    "compare": ("compare_command", "compare", "Compare methods on your own model and data."),
    "status": ("status_command", "status", "Show how far the experiments are."),
    "export": ("export_command", "export", "Print the results as CSV or JSON."),
    "report": ("report_command", "report", "Write a page with the verdict, tables and figures."),
    "serve": ("serve_command", "serve", "Show experiments live, as they run, in the browser."),
    "check": ("check_command", "check", "Verify that a store is whole."),
    "import": ("archive_commands", "import_command", "Add an archive to a store."),
    "merge": ("archive_commands", "merge", "Join stores and archives into a new store."),
    "claims": ("claims_command", "claims", "Print the verdict on every claim of the paper."),
    "certify": ("certify_command", "certify_command", "Bound the error of trained networks."),
    "data": ("data_commands", "app", "List, get and check the data sets that experiments use."),
    "weights": ("weights_commands", "app", "List and check the published weights that networks can start from."),
    "bench": ("bench_command", "bench", "Measure how fast the layers are on this machine."),
    "theory": ("theory_command", "theory", "Check every equation of the paper against Monte Carlo."),
}


class _Commands(typer.core.TyperGroup):
    """Imports a command when it is given: most need torch, which takes longer than the others take altogether."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(_COMMANDS)  # for the help against typing errors

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        place, name, _ = _COMMANDS[cmd_name]
        module = importlib.import_module(f".{place}", __package__)
        found = getattr(module, name)
        if not isinstance(found, typer.Typer):
            command, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(help=getattr(module, f"{cmd_name.upper()}_HELP", None) or module.HELP)(command)
        return typer.main.get_command(found)

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
    """Continuous dropout for PyTorch: paired experiments, the paper's theory, and the layers' speed.

    Every command explains itself, with examples: contdrop COMMAND --help.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def run() -> int:
    """Runs the command line and returns the exit code; a usage error is one line on standard error."""
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
