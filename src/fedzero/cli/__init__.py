"""The command line. Every command says what it does, and bad input gets one sentence and exit status 2."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Annotated, Any

import typer

from fedzero import __version__
from fedzero.cli.common import app, err, out, say
from fedzero.errors import FedzeroError
from fedzero.lines import print_line

# Commands come to be by import, and help shows them in that order.
# isort: off
from fedzero.cli import runs, privacy, tuning, patching, federation, site  # noqa: F401
from fedzero.cli import devices, conformance, exporting, listing, doctor, new  # noqa: F401

# isort: on

_OURS = [[info.name or getattr(info.callback, "__name__", "")] for info in app.registered_commands]

__all__ = ["app", "err", "main", "out"]


def main() -> None:
    """Entry point: errors meant for people are printed as one sentence, everything else is a bug and shows itself."""
    # Threads that wait for each other shall sleep: where they spin, another busy process makes a run several times as
    # slow. OpenMP reads this when torch is imported, and processes that are started inherit it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        if sys.argv[1:2] not in _OURS:  # other distributions are imported only where they may be meant
            add_commands()
        command = typer.main.get_command(app)
        _plain_flags(command)
        command(prog_name="fedzero")  # also as python -m fedzero: completion looks for this name
    except FedzeroError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _refuse(f"not enough memory ({str(error).splitlines()[0] if str(error) else 'an allocation failed'})")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of no command in particular; what the program is for stands where `app` is made."""


def _plain_flags(command: Any) -> None:
    """A flag takes no value: its help must not name one."""
    for param in command.get_params(typer.Context(command)):
        if getattr(param, "is_flag", False):
            param.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _plain_flags(inner)


@cache
def add_commands() -> None:
    """Commands that other distributions bring, each a typer application of one command or of several."""
    from importlib import metadata

    for entry in metadata.entry_points(group="fedzero.commands"):
        try:
            app.add_typer(entry.load())
        except Exception as error:  # of somebody else's module: the other commands still work
            say(f"fedzero: command {entry.name!r} cannot be imported: {error!r}")


def _out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """torch has a type of its own for a GPU, and a plain RuntimeError for a CPU."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or "can't allocate memory" in str(error)


def _refuse(sentence: str) -> None:
    print_line(err, sentence, head="fedzero: ")
    sys.exit(2)
