"""kill -9 of a device and of the server in the middle of a run: the ledger has the same head as if nothing happened."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import tomli_w

from devices.fleet import address_of, device, head_of, recipe_of, ticket_of, without_gateway
from devices.killed_devices import free
from devices.test_private_devices import private
from fedzero.ledger.folder import LEDGER
from fedzero.recipe.recipe import Recipe
from ledgers import rounds_of

ENDLESS = 120.0


def _server(recipe: Path, run: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedzero", "run", str(recipe), "--out", str(run), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _reached(run: Path, rounds: int) -> None:
    """Wait until so many rounds are on the ledger."""
    end = time.monotonic() + ENDLESS
    while time.monotonic() < end:
        if (run / LEDGER).exists() and len(rounds_of(run)) >= rounds:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} did not reach round {rounds}")


ENGINE = {"deadline": ENDLESS, "grace": ENDLESS}


@pytest.mark.slow
def test_a_device_and_the_server_are_killed(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, {"listen": f"127.0.0.1:{free()}", **ENGINE})
    recipe = msgspec.structs.replace(recipe, rounds=150, evaluate_every=50)
    _killed(recipe, tmp_path)
    assert [record.cohort for record in rounds_of(tmp_path / "run")] == [(0, 1, 2)] * 150
    assert [record.refused for record in rounds_of(tmp_path / "run") if record.refused] == []
    without_gateway(recipe, tmp_path / "right")
    assert head_of(tmp_path / "run") == head_of(tmp_path / "right")


@pytest.mark.slow
def test_with_privacy_no_turn_is_computed_twice(tmp_path: Path) -> None:
    """Each device has paid for each round once, whatever was killed."""
    recipe = private(tmp_path, {"listen": f"127.0.0.1:{free()}", **ENGINE})
    _killed(msgspec.structs.replace(recipe, rounds=150, evaluate_every=50), tmp_path)
    assert all(record.update and not record.cohort for record in rounds_of(tmp_path / "run"))
    for place in range(3):
        with closing(sqlite3.connect(tmp_path / f"device-{place}" / "privacy.db")) as journal:
            rounds = journal.execute("SELECT round, attempt FROM turns ORDER BY round").fetchall()
        assert rounds == [(round, 0) for round in range(150)]


def _killed(recipe: Recipe, tmp_path: Path) -> None:
    """Play a run of three devices while one of them and the server are killed, twice each."""
    file, run = tmp_path / "recipe.toml", tmp_path / "run"
    file.write_text(tomli_w.dumps(_plain(msgspec.to_builtins(recipe))))
    registry, ticket = ticket_of(run)
    server = _server(file, run)
    processes: dict[int, subprocess.Popen[bytes]] = {}
    silent: list[threading.Thread] = []

    def begin(place: int) -> None:
        processes[place] = found = device(where, tmp_path, place)
        assert found.stderr is not None
        silent.append(threading.Thread(target=found.stderr.read, daemon=True))
        silent[-1].start()

    try:
        where = address_of(registry, ticket)
        for place in range(3):
            begin(place)
            end = time.monotonic() + ENDLESS
            while len(registry.places()) <= place and time.monotonic() < end:
                time.sleep(0.02)
        for rounds in (10, 40):
            _reached(run, rounds)
            os.kill(processes[1].pid, signal.SIGKILL)
            processes[1].wait()
            begin(1)
        for rounds in (60, 90):
            _reached(run, rounds)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            server = _server(file, run, "--exist", "resume")
        assert server.wait(ENDLESS) == 0
    finally:
        for process in [*processes.values(), server]:
            if process.poll() is None:
                process.kill()
            process.wait()
        registry.close()


def _plain(value: object) -> object:
    """TOML has no null."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    return value
