"""Commands about the devices of a run: tickets, places, and whether a gateway can be reached."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedzero.cli import options
from fedzero.cli.common import FEDERATIONS, app, out, say, tell
from fedzero.errors import FedzeroError
from fedzero.lines import printable

if TYPE_CHECKING:
    from fedzero.engines.devices.registry import Registry

devices = typer.Typer(help="Phones, browsers and boards that take part in a run.", no_args_is_help=True)
app.add_typer(devices, name="devices", rich_help_panel=FEDERATIONS)

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
    """Show the tickets of a run and who has its places.

    Example: fedzero devices list runs/class
    """
    from rich.table import Table

    registry, now = _registry(folder, new=False), time.time()
    tickets, places = Table("ticket", "used", "state"), Table("place", "ticket", "key", "since", "state")
    for each in registry.tickets():
        state = "withdrawn" if each.revoked else "expired" if each.expires < now else _left(each.expires - now)
        tickets.add_row(each.name, f"{each.used} of {each.uses}", state)
    for holder in registry.places():
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(holder.at))
        state = "withdrawn" if holder.revoked else "holds it"
        places.add_row(str(holder.place), holder.ticket, holder.key.hex()[:16], since, state)
    out.print(tickets)
    out.print(places)


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
    tell(f"{printable(str(about.get('protocol')), 40)}, run {str(about.get('run'))[:16]}, {about.get('places')} places")
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


def _left(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h left" if seconds >= 3600 else f"{seconds / 60:.0f} min left"


def _draw(text: str) -> None:
    try:
        import segno
    except ImportError:
        return
    segno.make(text, error="l").terminal(compact=True)
