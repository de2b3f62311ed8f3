"""A run of three devices whose processes are killed at given points; used by a slow test and tools/device_kills.py."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import tomli_w

from devices.fleet import address_of, device, head_of, recipe_of, ticket_of, without_gateway
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from ledgers import rounds_of

ENDLESS = 120.0
SERVER = 3
"""In the place of a device's number: the server with its gateway."""


class Kill(NamedTuple):
    """after: rounds on the ledger, counted from the kill before; wait: seconds from there on."""

    after: int
    victim: int
    wait: float = 0.0


def free() -> int:
    """A port that the system gives to no connection of a client: while the server is away another process could get
    it, or a device that tries to connect could reach itself."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def _server(recipe: Path, run: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedzero", "run", str(recipe), "--out", str(run), *options]
    found = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _noted(found, recipe.parent / "server.txt")
    return found


def _noted(process: subprocess.Popen[bytes], path: Path) -> None:
    """Keep what a process says, line by line, with the time."""
    said = process.stderr
    assert said is not None

    def note() -> None:
        with path.open("a") as file, said:
            for line in said:
                print(f"{time.time():.2f} {process.pid} {line.decode(errors='replace')}", end="", file=file, flush=True)

    threading.Thread(target=note, daemon=True).start()


def _done(run: Path) -> int:
    if not (run / LEDGER).exists():
        return 0
    with closing(Ledger.open(run / LEDGER)) as ledger:
        return ledger.done


def _reached(run: Path, rounds: int, server: subprocess.Popen[bytes]) -> bool:
    """Wait until so many rounds are on the ledger; whether the run goes on."""
    end = time.monotonic() + 3 * ENDLESS
    while time.monotonic() < end:
        if _done(run) >= rounds:
            return server.poll() is None
        if server.poll() is not None:
            return False
        time.sleep(0.03)
    said = "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(run.parent.glob("*.txt")))
    raise AssertionError(f"{run} did not reach round {rounds}, but {_done(run)}: {said}")


def wrong(
    folder: Path, rounds: int, kills: Sequence[Kill], tell: Callable[[int], None] = lambda done: None
) -> tuple[list[str], list[float]]:
    """(what is wrong with the ledger of such a run, for each kill the seconds until the next round was on it)."""
    recipe = recipe_of(folder, {"listen": f"127.0.0.1:{free()}", "deadline": ENDLESS, "grace": ENDLESS})
    recipe = msgspec.structs.replace(recipe, rounds=rounds, evaluate_every=50)
    file, run, took, killed = folder / "recipe.toml", folder / "run", list[float](), 0.0
    file.write_text(tomli_w.dumps(_plain(msgspec.to_builtins(recipe))))
    registry, ticket = ticket_of(run)
    server, where = _server(file, run), ""
    processes: dict[int, subprocess.Popen[bytes]] = {}

    def begin(place: int) -> None:
        processes[place] = device(where, folder, place)
        _noted(processes[place], folder / f"device-{place}.txt")

    try:
        where = address_of(registry, ticket)
        for place in range(3):
            begin(place)
            end = time.monotonic() + ENDLESS
            while len(registry.places()) <= place and time.monotonic() < end:
                time.sleep(0.02)
        for kill in kills:
            before = _done(run)
            if not _reached(run, before + 1, server):
                break
            if killed:
                took[-1] = time.monotonic() - killed
            if not _reached(run, before + kill.after, server):
                break
            time.sleep(kill.wait)
            victim = server if kill.victim == SERVER else processes[kill.victim]
            killed = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            if kill.victim == SERVER:
                server = _server(file, run, "--exist", "resume")
            else:
                begin(kill.victim)
            took.append(0.0)
            tell(len(took))
        if _reached(run, _done(run) + 1, server):
            took[-1] = time.monotonic() - killed
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
