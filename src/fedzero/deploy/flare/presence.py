"""What a site is doing, for whoever sits in front of it.

The job's process, which works, leaves its `SiteState` in a file of the kit. The process of `fedzero join` reads it, and
looks whether FLARE's process is connected at all.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event
from typing import Literal

import msgspec
import psutil
from msgspec import Struct

from fedzero.deploy.site.site import Site, SiteState
from fedzero.model import files
from fedzero.model.decoding import MALFORMED

STATE = "state.json"
"""In the folder of a kit, while a job has been there since the site joined."""
PUBLISH_EVERY, QUIET = 0.5, 10.0
"""Seconds between two looks at the state of a site, and without work after which it counts as idle."""
Kind = Literal["searching", "connected", "preparing", "unable", "working", "idle", "finished"]


class Published(Struct, frozen=True):
    """The state of a site, and the process that said so."""

    pid: int
    state: SiteState


def publish(site: Site, kit: Path, over: Event) -> None:
    """Keep the file up to date until it is `over`; orders come too often to write it at each."""
    last: SiteState | None = None
    while True:
        ended = over.wait(PUBLISH_EVERY)
        if site.state is not None and site.state != last:
            last = site.state
            files.write(kit / STATE, msgspec.json.encode(Published(os.getpid(), last)))
        if ended:
            return


def clear(kit: Path) -> None:
    (kit / STATE).unlink(missing_ok=True)


def presence(kit: Path, pid: int, host: str, port: int) -> tuple[Kind, str]:
    """What the site of a kit is doing, FLARE's process `pid` being its own: the kind, and a sentence."""
    name, server = kit.name, f"{host}:{port}"
    if not _connected(pid, port):
        return "searching", f"{name} is looking for the server at {server}"
    try:
        path = kit / STATE
        found = msgspec.json.decode(files.read(path, files.SMALL), type=Published)
        quiet = time.time() - path.stat().st_mtime
    except (OSError, *MALFORMED):
        return "connected", f"{name} is connected to {server}, idle until a run begins; Ctrl-C leaves"
    state, alive = found.state, psutil.pid_exists(found.pid)
    if state.problem:
        return "unable", f"{name} cannot take part in {state.run}: {state.problem}"
    if state.finished:
        return "finished", f"{name} has finished {state.run}, {state.round} rounds; idle until the next run begins"
    if not alive or (quiet > QUIET and not state.busy):
        return "idle", f"{name} is idle; {state.run} was at round {state.round} of {state.rounds}"
    if not state.round:
        return "preparing", f"{name} gets ready for {state.run}"
    return "working", f"{name} works on round {state.round} of {state.rounds} of {state.run}"


def _connected(pid: int, port: int) -> bool:
    """Whether a process has a connection to the server's port."""
    try:
        process = psutil.Process(pid)
        # psutil 6 renamed it
        connections = getattr(process, "net_connections", None) or process.connections
        return any(c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in connections("tcp"))
    except psutil.Error:
        return False
