"""The command line. Every command says what it does, and bad input gets one sentence and exit status 2."""

from __future__ import annotations

import sys

from rich.markup import escape

from fedzero.cli.common import app, err, out
from fedzero.errors import FedzeroError

# Commands come to be by import, and help shows them in that order.
# isort: off
from fedzero.cli import runs, patching, federation, reproduction, looking  # noqa: F401

# isort: on

__all__ = ["app", "err", "main", "out"]


def main() -> None:
    """Entry point: errors meant for people are printed as one sentence, everything else is a bug and shows itself."""
    try:
        app()
    except FedzeroError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _refuse(sentence: str) -> None:
    err.print(f"[bold red]fedzero:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    sys.exit(2)
