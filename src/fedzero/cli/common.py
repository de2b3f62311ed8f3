"""What the commands share: the application, its consoles, and how they end.

torch, numba and matplotlib are slow to import, so commands import what they use when they run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from fedzero.errors import FedzeroError
from fedzero.lines import print_line

if TYPE_CHECKING:
    from fedzero.runs.growing import Growth
    from fedzero.runs.summary import Summary

app = typer.Typer(
    help="Federated optimization with zero gradients and near-zero communication.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
FEDERATIONS = "Federations of several machines"
"""The heading of commands about them in `fedzero --help`."""
err = Console(stderr=True)
out = Console()


def environment_of(
    data: Path | None,
    secret: Path | None,
    functions: Mapping[str, Any] | None = None,
    trust: bool = False,
    journal: Path | None = None,
) -> Any:
    from fedzero.model import files
    from fedzero.recipe.environment import Environment, data_folder
    from fedzero.recipe.secret import secret_of
    from fedzero.runs.progress import Replaying

    key = os.fsencode(os.environ.get("FEDZERO_SECRET", "")) or None
    if secret is not None:
        try:
            key = files.read(secret, files.SMALL).strip()
        except OSError as error:
            raise FedzeroError(f"--secret {secret}: no such file, or not readable ({error.strerror})") from error
    if journal is not None:
        files.expect_folder(journal, f"--journal {journal}")
    place, watching = data_folder(data, "--data"), Replaying(err)
    return Environment(place, secret_of(key), functions or {}, watching, vouched=trust, journal=journal)


def growth_of(rounds: int | None, evaluate_every: int | None = None, stop: list[str] | None = None) -> Growth:
    """What the options say of the run in a folder."""
    from fedzero.errors import Invalid
    from fedzero.model.value import checked
    from fedzero.recipe import recipe as recipes
    from fedzero.recipe.stopping import Stop
    from fedzero.runs.growing import Growth

    table: dict[str, Any] = {}
    for each in stop or ():
        if each != "none":
            recipes.override(table, each, "--stop")
    try:
        return Growth(rounds, evaluate_every, checked(table, Stop, "--stop") if stop else None)
    except Invalid as error:
        raise FedzeroError(str(error)) from error


def watch_of(folder: Path, report_to: list[str] | None, report: Any = None, serving: bool = False) -> Any:
    """What shows a run on the console and tells loggers of it: those of `--report-to`, or else `report`."""
    from fedzero.api.options import reported
    from fedzero.api.watching import Watching
    from fedzero.runs.progress import watch_on

    return Watching(watch_on(err, serving), folder, report=reported(report_to) if report_to else report or None)


def expect_file(path: Path) -> None:
    if path.is_dir():
        raise FedzeroError(f"--out {path} is a folder: name a file to write")


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends what goes on as Ctrl-C does, so that all is cleaned up; one is enough. (Ctrl-C does not reach what
    a shell starts with &.)"""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible(folder: Path, command: str = "resume") -> Iterator[None]:
    """Ctrl-C and SIGTERM lose nothing: say how to resume."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt:
        say(f"stopped; `fedzero {command} {folder}` resumes from the last completed round")
        raise typer.Exit(130) from None


@contextmanager
def repeatable() -> Iterator[None]:
    """Ctrl-C and SIGTERM lose nothing: the same command goes on."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise typer.Exit(130) from None


def print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.encode(value).decode())


def finish(summary: Summary, folder: Path, as_json: bool) -> None:
    console = err if as_json else out
    show(folder, console)
    if summary.reason:
        tell(f"ended early: {summary.reason}", console)
    tell(f"in {folder}; `fedzero report {folder}` draws it, `fedzero verify {folder}` checks it", console)
    if as_json:
        print_json(summary)


def show(folder: Path, console: Console = out) -> None:
    from fedzero.report.tables import terminal_table
    from fedzero.results.history import history

    console.print(terminal_table([history(folder)]))


def tell(text: str, console: Console = out) -> None:
    print_line(console, text)


def say(text: str) -> None:
    print_line(err, text, "yellow")
