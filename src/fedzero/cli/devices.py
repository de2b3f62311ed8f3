"""Commands about the devices of a run: tickets, places, pauses, and whether a gateway can be reached."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedzero.cli import options
from fedzero.cli.common import FEDERATIONS, app, out, say, tell
from fedzero.errors import FedzeroError
from fedzero.lines import printable

if TYPE_CHECKING:
    from fedzero.engines.devices.controls import Controls
    from fedzero.engines.devices.registry import Registry

devices = typer.Typer(help="Phones, browsers and boards that take part in a run.", no_args_is_help=True)
app.add_typer(devices, name="devices", rich_help_panel=FEDERATIONS)

FACTS = (("protocol", 40), ("run", 16), ("places", 20))
RunFolder = Annotated[Path, options.argument(help="Folder of the run; it may be one that has not begun.")]


@devices.command()
def ticket(
    folder: RunFolder,
    uses: Annotated[int, typer.Option(min=1, help="Devices that it admits.")] = 30,
    hours: Annotated[float, typer.Option(min=0.01, help="Hours after which it expires.")] = 24.0,
    url: Annotated[
        str | None, options.optional(help="Address of the gateway; default: the one that it listens at.")
    ] = None,
    qr: Annotated[bool, typer.Option("--qr/--no-qr", help="Draw it, too, to be opened by a camera.")] = True,
) -> None:
    """Print an address that admits devices to a run: give it to those who may take part.

    Each device gets a place for itself, durably. Whoever has the address can take a place until it is used up, expires
    or is withdrawn; it is not kept here, so this is the only time that it is shown.

    Example: fedzero devices ticket runs/class --uses 30 --hours 2
    """
    from fedzero.engines.devices.signing import Signer
    from fedzero.engines.devices.ticket import address
    from fedzero.ledger.folder import DEVICES

    if url is None and not (folder / DEVICES).exists():  # a wrong name must not become a folder with keys
        raise FedzeroError(f"nobody knows yet where the gateway of {folder} listens: start the run, or give --url")
    registry = _registry(folder)
    place = url or registry.url
    if not place:
        raise FedzeroError(f"nobody knows yet where the gateway of {folder} listens: start the run, or give --url")
    found = address(place, registry.run, registry.ticket(uses, hours), Signer(registry.keys).fingerprint)
    print(found)
    if qr:
        _draw(found)
    say(f"it admits {uses} device{'' if uses == 1 else 's'} within {hours:g} hour{'' if hours == 1 else 's'}")


@devices.command("list")
def list_(folder: options.Folder) -> None:
    """Show the tickets of a run, who has its places, their bytes, and what the operator has said.

    Bytes are those of frames, without web sockets, TLS and TCP. A gateway that runs writes them every five seconds.

    Example: fedzero devices list runs/class
    """
    from rich.table import Table

    from fedzero.engines.devices.controls import day_of

    registry, now = _registry(folder, new=False), time.time()
    with closing(_controls(folder)) as controls:
        traffic, paused, blocked = controls.traffic(), controls.paused, controls.blocked
    tickets = Table("ticket", "used", "state")
    places = Table("place", "ticket", "key", "since", "state", "seen", "up", "down", "today", "build")
    for each in registry.tickets():
        state = "withdrawn" if each.revoked else "expired" if each.expires < now else _left(each.expires - now)
        tickets.add_row(each.name, f"{each.used} of {each.uses}", state)
    for holder in registry.places():
        found = traffic.get(holder.place)
        state = "withdrawn" if holder.revoked else "here" if found and found.here else "away"
        row = [str(holder.place), holder.ticket, holder.key.hex()[:16], _clock(holder.at), state]
        if found is not None:
            today = found.today if found.day == day_of(now) else 0
            row += [_clock(found.seen), *(f"{count:,}" for count in (found.up, found.down, today))]
            row.append(escape(printable(found.build, 32)))
        places.add_row(*row)
    out.print(tickets)
    out.print(places)
    if traffic:
        up, down = sum(t.up for t in traffic.values()), sum(t.down for t in traffic.values())
        tell(f"{sum(t.here for t in traffic.values())} here; {up:,} bytes up, {down:,} down in all")
    if paused:
        tell(f"paused: {printable(paused, 200)}")
    if blocked:
        tell(f"blocked builds: {printable(', '.join(blocked), 400)}")


@devices.command()
def pause(
    folder: options.Folder, why: Annotated[str, typer.Option(help="What devices are told.")] = "back soon"
) -> None:
    """Pause a run: the round that is open is finished, then devices are sent away, and nobody is asked.

    Example: fedzero devices pause runs/class --why 'lunch'
    """
    with closing(_controls(folder)) as controls:
        controls.pause(printable(why, 200) or "back soon")
    tell(f"paused once the round that is open is over: `fedzero devices resume {folder}` goes on")


@devices.command()
def resume(folder: options.Folder) -> None:
    """Go on after a pause. Devices come back within half a minute.

    Example: fedzero devices resume runs/class
    """
    with closing(_controls(folder)) as controls:
        controls.go_on()
    tell("devices are let in again")


@devices.command()
def block(
    folder: options.Folder,
    build: Annotated[str, typer.Argument(help="A build as `fedzero devices list` shows it; * stands for anything.")],
    lift: Annotated[bool, typer.Option("--lift", help="Let it in again.")] = False,
) -> None:
    """Let no device of a build in: one with a mistake, for instance. Builds are what devices say of themselves.

    Example: fedzero devices block runs/class 'fedzero-client/0.1.*'
    """
    with closing(_controls(folder)) as controls:
        if not lift:
            controls.block(build)
        elif not controls.unblock(build):
            raise FedzeroError(f"{build!r} is not blocked: `fedzero devices list {folder}` shows what is")
    tell(f"{printable(build, 100)} is {'let in again' if lift else 'blocked'}")


@devices.command()
def revoke(
    folder: options.Folder,
    what: Annotated[
        str, typer.Argument(help="A ticket, as `fedzero devices list` names it, or the number of a place.")
    ],
) -> None:
    """Withdraw a place, or a ticket with all places that it admitted. They stay empty: no place is given twice.

    A gateway that runs shuts the devices out within a second.

    Example: fedzero devices revoke runs/class 1f0c22ab
    """
    registry = _registry(folder, new=False)
    if what.isdecimal() and len(what) < 8:
        registry.revoke_place(int(what))
        tell(f"place {what} is withdrawn")
        return
    gone = registry.revoke_ticket(what)
    tell(f"ticket {what} is withdrawn, and the places {', '.join(map(str, gone)) or 'that it admitted: none'}")


@devices.command()
def check(url: Annotated[str, typer.Argument(help="Address of a gateway, or a ticket.")]) -> None:
    """Say what a device will find at the address of a gateway. Nobody is enrolled.

    Run it on another machine than the gateway's: what can be reached from there is what counts.

    Example: fedzero devices check https://training.example.org
    """
    about = _about(url)
    protocol, run, places = (printable(str(about.get(name)), most) for name, most in FACTS)
    tell(f"{protocol}, run {run}, {places} places")
    if url.startswith("http://"):
        tell("plain http: for devices on that machine only; browsers elsewhere refuse to make keys for it")
    else:
        tell("https, with a certificate that this machine trusts; phones trust it if its authority is a public one")


def _about(url: str) -> dict[str, Any]:
    import json
    import ssl
    import urllib.error
    import urllib.request
    from urllib.parse import urlsplit

    split = urlsplit(url)
    if split.scheme not in ("http", "https"):
        raise FedzeroError(f"{url} is no address: it begins with https://")
    try:
        with urllib.request.urlopen(f"{split.scheme}://{split.netloc}/fedzero/1/about", timeout=10) as answer:
            found = json.loads(answer.read(1 << 16))
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise FedzeroError(f"a device will refuse the certificate: {error.reason.verify_message}") from error
        raise FedzeroError(f"{split.netloc} cannot be reached from this machine: {error.reason}") from error
    except (OSError, ValueError) as error:
        raise FedzeroError(f"{split.netloc} is no gateway of devices: {printable(str(error), 200)}") from error
    if not isinstance(found, dict):
        raise FedzeroError(f"{split.netloc} is no gateway of devices")
    return found


def _registry(folder: Path, new: bool = True) -> Registry:
    from fedzero.engines.devices.registry import Registry
    from fedzero.ledger.folder import DEVICES

    if not new and not (folder / DEVICES).exists():
        raise FedzeroError(f"{folder} has no devices: `fedzero devices ticket {folder}` makes the first ticket")
    return Registry(folder)


def _controls(folder: Path) -> Controls:
    from fedzero.engines.devices.controls import Controls

    _registry(folder, new=False).close()
    return Controls(folder)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _left(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h left" if seconds >= 3600 else f"{seconds / 60:.0f} min left"


def _draw(text: str) -> None:
    try:
        import segno
    except ImportError:
        return
    segno.make(text, error="l").terminal(compact=True)
