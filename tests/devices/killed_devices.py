"""A run of three devices whose processes are killed at given points; used by a slow test and tools/device_kills.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import tomli_w

from devices.fleet import address_of, device, head_of, recipe_of, ticket_of, without_gateway
from fedzero.ledger.folder import LEDGER
from ledgers import rounds_of

ENDLESS = 120.0
SERVER = 3
"""In the place of a device's number: the server with its gateway."""


class Kill(NamedTuple):
    """after: rounds on the ledger, counted from the kill before; wait: seconds from there on."""

    after: int
    victim: int
    wait: float = 0.0


def _free() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _server(recipe: Path, run: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedzero", "run", str(recipe), "--out", str(run), *options]
    with (recipe.parent / "server.txt").open("ab") as said:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)


def _done(run: Path) -> int:
    return len(rounds_of(run)) if (run / LEDGER).exists() else 0


def _reached(run: Path, rounds: int, server: subprocess.Popen[bytes]) -> bool:
    """Wait until so many rounds are on the ledger; whether the run goes on."""
    end = time.monotonic() + 3 * ENDLESS
    while time.monotonic() < end:
        if _done(run) >= rounds:
            return server.poll() is None
        if server.poll() is not None:
            return False
        time.sleep(0.03)
    said = (run.parent / "server.txt").read_text()[-2000:]
    raise AssertionError(f"{run} did not reach round {rounds}: {said}")


def wrong(
    folder: Path, rounds: int, kills: Sequence[Kill], tell: Callable[[int], None] = lambda done: None
) -> tuple[list[str], int]:
    """(what is wrong with the ledger of such a run, how many kills it took)."""
    recipe = recipe_of(folder, {"listen": f"127.0.0.1:{_free()}", "deadline": ENDLESS, "grace": ENDLESS})
    recipe = msgspec.structs.replace(recipe, rounds=rounds, evaluate_every=50)
    file, run, took = folder / "recipe.toml", folder / "run", 0
    file.write_text(tomli_w.dumps(_plain(msgspec.to_builtins(recipe))))
    registry, ticket = ticket_of(run)
    server, where = _server(file, run), ""
    processes: dict[int, subprocess.Popen[bytes]] = {}

    def begin(place: int) -> None:
        processes[place] = found = device(where, folder, place)
        assert found.stderr is not None
        threading.Thread(target=found.stderr.read, daemon=True).start()

    try:
        where = address_of(registry, ticket)
        for place in range(3):
            begin(place)
            end = time.monotonic() + ENDLESS
            while len(registry.places()) <= place and time.monotonic() < end:
                time.sleep(0.02)
        for kill in kills:
            if not _reached(run, _done(run) + kill.after, server):
                break
            time.sleep(kill.wait)
            victim = server if kill.victim == SERVER else processes[kill.victim]
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            if kill.victim == SERVER:
                server = _server(file, run, "--exist", "resume")
            else:
                begin(kill.victim)
            took += 1
            tell(took)
        ended = server.wait(30 * ENDLESS)
    finally:
        for process in [*processes.values(), server]:
            if process.poll() is None:
                process.kill()
            process.wait()
        registry.close()
    found = [] if ended == 0 else [f"the server ended with {ended}: {(folder / 'server.txt').read_text()[-2000:]}"]
    if [record.cohort for record in rounds_of(run)] != [(0, 1, 2)] * rounds:
        found.append("a round had not all devices")
    if any(record.refused for record in rounds_of(run)):
        found.append("an answer was refused")
    without_gateway(recipe, folder / "right")
    if head_of(run) != head_of(folder / "right"):
        found.append("the head is another one")
    return found, took


def _plain(value: object) -> object:
    """TOML has no null."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    return value
