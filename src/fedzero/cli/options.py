"""Options and arguments that several commands have: the type of each says how the command line reads it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

optional, argument = partial(typer.Option, show_default=False), partial(typer.Argument, show_default=False)
"""Without a default to show."""


def repeated(flag: str, help: str, metavar: str | None = None) -> Any:
    """An option that may be given several times."""
    return typer.Option(flag, metavar=metavar, help=f"{help}; may be repeated.")


Folder = Annotated[Path, argument(help="Folder of a run (it holds ledger.db).")]
Data = Annotated[Path | None, optional("--data", envvar="FEDZERO_DATA", help="Folder with the datasets.")]
Secret = Annotated[Path | None, optional("--secret", help="File with the clients' secret; or set FEDZERO_SECRET.")]
Journal = Annotated[
    Path | None,
    optional(
        "--journal",
        help="Folder with the journal of privacy budgets, of all runs on the same data; or set FEDZERO_JOURNAL.",
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import, run and fetch what a ledger that you did not start here names.")
]
RecipeName = Annotated[str, typer.Argument(help="A recipe file, or the name of one from `fedzero list`.")]
Overrides = Annotated[list[str] | None, repeated("--set", "Change a value of the recipe", "A.B=C")]
Engine = Annotated[str | None, optional("--engine", metavar="ENGINE", help="local, ray, or ray:N with N workers.")]
Rounds = Annotated[int | None, optional(help="Number of rounds.")]
EvaluateEvery = Annotated[int | None, optional(help="Rounds between two evaluations.")]
StopAt = Annotated[
    list[str] | None, repeated("--stop", "When to end early, as [stop] of a recipe, or none", "KEY=VALUE")
]
Exist = Annotated[
    str, typer.Option("--exist", metavar="WHAT", help="If the folder holds a run: resume, overwrite or error.")
]
Seed = Annotated[int | None, optional(help="Seed of all random numbers.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.")]
ProjectFolder = Annotated[Path, argument(help="Folder that `fedzero provision` made.")]
Web = Annotated[bool, typer.Option("--web", help="Serve the run's report as a page that follows it.")]
WebAt = Annotated[
    str | None,
    optional(
        "--web-at",
        metavar="HOST:PORT",
        help="Where to serve it; default 127.0.0.1:8747. Not on loopback the address has a token.",
    ),
]
OwnTask = Annotated[
    list[str] | None,
    repeated("--task", "A task of your own package, by the name that recipes have for it", "[NAME=]MODULE:ATTRIBUTE"),
]
ReportTo = Annotated[
    list[str] | None, repeated("--report-to", "Tell a logger of the run: tensorboard, mlflow or wandb", "LOGGER")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object on the last line.")]
