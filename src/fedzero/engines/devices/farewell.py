"""The end of a gateway: devices hear that the run has ended, or that it was stopped and may go on."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from fedzero.engines.devices.hub import Hub
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import End
from fedzero.ledger.store import Ledger
from fedzero.recipe.view import RunView

LOOK_EVERY = 0.1


def end_of(folder: Path) -> End | None:
    """The end that the run of a folder has on its ledger."""
    if not (folder / LEDGER).exists():
        return None
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        done, found = ledger.done, None
        for entry in ledger.entries(ledger.place_of(done - 1) if done else 0):
            found = entry.record if isinstance(entry.record, End) else None
    return found


def stop(hub: Hub, beat: int) -> None:
    """Devices come back later: the run has not ended."""
    hub.post(hub.stop, beat, "the server was stopped, and may go on later")


def farewell(hub: Hub, run: RunView, beat: int, linger: float, played: int | None = None) -> None:
    """Devices that are away when the run ends hear of it if they come back within `linger` seconds. played: how many
    rounds, if these are all: at a host the ledger is elsewhere."""
    folder = run.environment.folder
    end = None if folder is None else end_of(folder)
    if end is None and played is None:
        stop(hub, beat)
        return
    hub.post(hub.finish, *((end.round, end.reason) if end is not None else (played, "")))
    until, said = time.monotonic() + linger, False
    while (away := hub.untold()) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)  # those who are here hear of it meanwhile
        if not said and (away := hub.untold()):
            who = f"{len(away)} device{'s' if len(away) > 1 else ''}"
            run.warn(f"the run has ended; {who} away can hear of it for {linger:g} s more (engine.linger)")
            said = True
    if away and linger:
        run.warn(
            f"the end was not told to {len(away)} of the devices (places {', '.join(map(str, away[:8]))}"
            f"{' …' if len(away) > 8 else ''}): they wait until somebody stops them, or until the same command "
            "with --exist resume opens the gateway again"
        )
