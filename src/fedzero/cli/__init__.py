"""The command line. Every command says what it does, and bad input gets one sentence and exit status 2."""

from __future__ import annotations

import sys
from functools import cache
from importlib import metadata

from rich.markup import escape

from fedzero.cli.common import app, err, out, say
from fedzero.errors import FedzeroError

# Commands come to be by import, and help shows them in that order.
# isort: off
from fedzero.cli import runs, tuning, patching, federation, listing, new  # noqa: F401

# isort: on

__all__ = ["app", "err", "main", "out"]


def main() -> None:
    """Entry point: errors meant for people are printed as one sentence, everything else is a bug and shows itself."""
    try:
        add_commands()
        app()
    except FedzeroError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))


@cache
def add_commands() -> None:
    """Commands that other distributions bring, each a typer application of one command or of several."""
    for entry in metadata.entry_points(group="fedzero.commands"):
        try:
            app.add_typer(entry.load())
        except Exception as error:  # of somebody else's module: the other commands still work
            say(f"fedzero: command {entry.name!r} cannot be imported: {error!r}")


def _refuse(sentence: str) -> None:
    err.print(f"[bold red]fedzero:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    sys.exit(2)
