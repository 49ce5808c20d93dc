"""All commands together, and what a usage error looks like."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import contdrop

from ..errors import UserError
from . import (
    bench,
    certify,
    check,
    claims,
    compare,
    data,
    export,
    listing,
    report,
    screens,
    serve,
    spoiled_output,
    status,
    theory,
    travel,
    weights,
)
from . import run as running

# typer carries its own copy of click or depends on click, according to its version. In both, this is UsageError.
_UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="contdrop",
    add_completion=False,
    rich_markup_mode=None,  # its boxes leave no room for the explanations
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("list", help=listing.HELP, short_help="Show the experiments there are.")(listing.list_command)
app.command("run", help=running.HELP, short_help="Run an experiment, or resume it.")(running.run)
app.command("compare", help=compare.HELP, short_help="Compare methods on your own model and data.")(compare.compare)
app.command("status", help=status.HELP, short_help="Show how far the experiments are.")(status.status)
app.command("export", help=export.HELP, short_help="Print the results as CSV or JSON.")(export.export)
app.command("report", help=report.HELP, short_help="Write a page with the verdict, tables and figures.")(report.report)
app.command("serve", help=serve.HELP, short_help="Show that page live on this machine.")(serve.serve)
app.command("check", help=check.HELP, short_help="Verify that a store is whole.")(check.check)
app.command("import", help=travel.IMPORT_HELP, short_help="Add an archive to a store.")(travel.import_command)
app.command("merge", help=travel.MERGE_HELP, short_help="Join stores and archives into a new store.")(travel.merge)
app.command("claims", help=claims.HELP, short_help="Print the verdict on every claim of the paper.")(claims.claims)
app.command("certify", help=certify.HELP, short_help="Bound the error of trained networks.")(certify.certify_command)
app.add_typer(data.app, name="data")
app.add_typer(weights.app, name="weights")
app.command(help=bench.HELP, short_help="Measure how fast the layers are on this machine.")(bench.bench)
app.command(help=theory.HELP, short_help="Check every equation of the paper against Monte Carlo.")(theory.theory)


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
    screens.say(f"contdrop: {message}")
    return code
