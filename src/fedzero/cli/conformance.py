"""`fedzero conformance`: plays the gateway of fedzero-device/1 against a client of anybody's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedzero.cli import options
from fedzero.cli.common import FEDERATIONS, app, err, out, print_json, say, tell, terminable
from fedzero.errors import FedzeroError

if TYPE_CHECKING:
    from fedzero.testing.devices.running import Found
    from fedzero.testing.devices.scenarios import Scenario
    from fedzero.testing.devices.subject import Subject

MARKS = {"passed": "[green]✓", "wrong": "[red]✗"}


@app.command(
    "conformance",
    rich_help_panel=FEDERATIONS,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def conformance(
    client: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL|COMMAND…]", help="The client: a command, or an address that clients reach."),
    ] = None,
    only: Annotated[list[str] | None, options.repeated("--only", "A scenario to play, others not", "NAME")] = None,
    patience: Annotated[float, typer.Option(min=0.1, help="Seconds that a client may take for its next frame.")] = 20.0,
    listen: Annotated[str, typer.Option(help="Address and port of the gateway; port 0: a free one.")] = "127.0.0.1:0",
    keep: Annotated[Path | None, options.optional(help="Folder for the files and the words of the client.")] = None,
    names: Annotated[bool, typer.Option("--list", help="Print the scenarios and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON array.")] = False,
) -> None:
    """Play the server against a client of fedzero-device/1, and say in words what is wrong with the client.

    With a COMMAND each scenario opens a gateway on this machine, starts the command, and stops it at the end; some kill
    it and start it again. In the command, {url} is replaced by the address of a ticket (without {url} it is the last
    word), {data} by a file with rows (.npz with x and y), {csv} by the same rows as text, the label last, and {folder}
    by an empty folder for what the client keeps. Without {folder} the command runs in that folder.

    Without a command it prints a ticket for each scenario and waits for a client that somebody starts: a tab, a board.
    A URL is the address at which such a client reaches this gateway, through a tunnel or a proxy to --listen.

    Answers are judged to the bit where the protocol determines every bit (digests, encodings, rows on which each
    operation is exact), and within a bound of float32 arithmetic otherwise. Exit status: 0 if nothing is wrong, else 1.

    Example: fedzero conformance fedzero-client join {url} --data {data}
    """
    from fedzero.testing.devices.running import played
    from fedzero.testing.devices.scenarios import SCENARIOS

    if names:
        for scenario in SCENARIOS:
            tell(f"{scenario.name:22} {scenario.about}")
        return
    subject, address = _subject(client or [], listen)
    found: list[Found] = []
    try:
        with terminable():
            for each in played(subject, only or (), patience, address, keep, _begin(as_json)):
                found.append(each)
                if not as_json:
                    _show(each)
    except KeyboardInterrupt:
        say("stopped")
        raise typer.Exit(130) from None
    wrong = sum(each.state == "wrong" for each in found)
    if as_json:
        print_json(found)
    else:
        _sum_up(found)
    raise typer.Exit(int(wrong > 0))


def _subject(words: list[str], listen: str) -> tuple[Subject, tuple[str, int, str]]:
    """The client and the address of the gateway: (host, port, url)."""
    from urllib.parse import urlsplit

    from fedzero.testing.devices.subject import ByHand, Command

    split = urlsplit(f"//{listen}")
    try:
        host, port = split.hostname or "", split.port
    except ValueError:
        host, port = "", None
    if not host or port is None:
        raise FedzeroError(f"--listen {listen} is no address: write it as 127.0.0.1:8470")
    if not words:
        return ByHand(tell), (host, port, "")
    if len(words) == 1 and words[0].startswith(("http://", "https://")):
        if not port:
            raise FedzeroError("with a URL the gateway needs a port that it forwards to: give --listen 127.0.0.1:8470")
        return ByHand(tell), (host, port, words[0].rstrip("/"))
    return Command(words), (host, port, "")


def _begin(quiet: bool) -> Callable[[Scenario], None]:
    """What is told before a scenario: on a terminal its name, which the finding then takes the place of."""

    def begin(scenario: Scenario) -> None:
        if not quiet and err.is_terminal:
            err.print(f"  {scenario.name} …", end="\r", highlight=False)

    return begin


def _show(found: Found) -> None:
    from rich.markup import escape

    out.print(
        f"{MARKS[found.state]}[/] [bold]{found.scenario:22}[/] {escape(found.about)}", highlight=False, soft_wrap=True
    )
    if found.said:
        where = f" [{found.section}]" if found.section else ""
        tell(f"    {found.said}{where}")
    for remark in found.remarks:
        tell(f"    remark: {remark}")


def _sum_up(found: list[Found]) -> None:
    wrong, seconds = sum(each.state == "wrong" for each in found), sum(each.seconds for each in found)
    tell(f"{len(found) - wrong} of {len(found)} scenarios passed, {wrong} wrong, in {seconds:.0f} s")
