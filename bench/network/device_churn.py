"""Devices that come and go by the second while rounds go on: python bench/network/device_churn.py --seconds 600

Half of N places is there at any time. So many a second leave, every second one without a word, and as many come back.
After the run the ledger is compared with what devices sent: how many rounds were asked twice, which answers were lost.
The figures of docs/results/devices.md, on a machine that does nothing else:

    PYTHONPATH=src:clients/python python bench/network/device_churn.py --seconds 600 --rate 20 --devices 1000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fedzero_client import plan as device_plan
from fedzero_client.model import Model
from fedzero_client.packing import pack, unpack
from fedzero_client.session import (
    ANSWER,
    CHALLENGE,
    CHECKPOINT,
    ERROR,
    FINISH,
    HELLO,
    LEAVE,
    ORDER,
    PROOF,
    READY,
    UPDATES,
    WELCOME,
)
from fedzero_client.statements import answer, numbers, statement
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from fedzero.callbacks import Pause, Verdict
from fedzero.engines.devices.registry import Registry
from fedzero.ledger.folder import DEVICES
from fedzero.ledger.records import Evaluation, Round
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

sys.path.insert(0, str(Path(__file__).parent))
from device_load import Crowd, _files

LONGEST = 1_000_000


class Coming(Crowd):
    """A crowd of which some are there. sent: (round, place) of each answer; the model is everybody's."""

    def __init__(self, run: bytes, url: str, keys: list[Ed25519PrivateKey]):
        super().__init__(run)
        self.url, self.keys = url, keys
        self.here = dict[int, ClientConnection]()
        self.sent, self.errors = set[tuple[int, int]](), list[str]()
        self.joins = self.departures = 0

    async def take_part(self, place: int) -> None:
        with suppress(ConnectionClosed, OSError):
            async with connect(self.url, compression=None, ping_interval=None, open_timeout=60) as socket:
                self.here[place] = socket
                self.joins += 1
                await self._talk(socket, place, self.keys[place])
        self.here.pop(place, None)

    async def _talk(self, socket: ClientConnection, place: int, key: Ed25519PrivateKey) -> None:
        ready = self.model.round if self.plan is not None else None

        def signed(kind: str, payload: bytes) -> bytes:
            return key.sign(statement(kind, self.run, place, payload))

        await socket.send(pack([HELLO, 1, self.run, place, bytes(16), b"", ready]))
        while True:
            tag, *fields = unpack(await socket.recv())  # type: ignore[arg-type]
            if tag == CHALLENGE:
                said = (1 << 64) - 1 if ready is None else ready
                await socket.send(pack([PROOF, signed("proof", fields[1] + bytes(16) + said.to_bytes(8, "little"))]))
            elif tag == WELCOME and self.plan is None:
                self.plan = device_plan.read(fields[0])
                self.model = Model(self.plan)
            elif tag in (UPDATES, CHECKPOINT):
                await socket.send(pack([READY, self.model.round, self.model.digest()]))
            elif tag == ORDER:
                round, exchange, attempt, body, _ = fields
                numbered, said_now = numbers(round, exchange, attempt), self.reply(round, body)
                signature = key.sign(answer(self.run, place, numbered, body, said_now))
                await socket.send(pack([ANSWER, round, exchange, attempt, said_now, signature]))
                self.sent.add((round, place))
            elif tag == ERROR:
                self.errors.append(f"{place}: {fields}")
            elif tag == FINISH:
                return

    async def leave(self, place: int, word: bool) -> None:
        socket = self.here.pop(place)
        self.departures += 1
        with suppress(ConnectionClosed, OSError):
            if word:
                await socket.send(pack([LEAVE]))
            await socket.close()

    async def come_and_go(self, rate: float, seconds: float) -> None:
        draw, tasks = random.Random(1), set[asyncio.Task[None]]()

        def come(places: list[int]) -> None:
            for place in places:
                task = asyncio.create_task(self.take_part(place))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        come(list(range(len(self.keys) // 2)))
        while self.plan is None or len(self.here) < len(self.keys) // 2:
            await asyncio.sleep(0.1)
        began, done = time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            if now * rate < done:
                await asyncio.sleep(0.005)
                continue
            away = [place for place in range(len(self.keys)) if place not in self.here]
            come([draw.choice(away)])
            await self.leave(draw.choice(sorted(self.here)), bool(done % 2))
            done += 1
        print(f"{self.joins} joins, {self.departures} departures in {seconds:g} s", flush=True)
        await asyncio.sleep(3600)


def generate(run: Path, count: int, rate: float, seconds: float) -> None:
    registry = Registry(run)
    keys = [Ed25519PrivateKey.generate() for _ in range(count)]
    ticket = registry.ticket(count)
    for key in keys:
        registry.enrol(ticket, 1, key.public_key().public_bytes_raw(), count)
    while not registry.url:
        time.sleep(0.1)
    crowd = Coming(registry.run, registry.url.replace("http", "ws", 1) + "/fedzero/1/socket", keys)

    async def until_told() -> None:
        task = asyncio.create_task(crowd.come_and_go(rate, seconds))
        await asyncio.to_thread(sys.stdin.readline)
        task.cancel()

    _files()
    asyncio.run(until_told())
    (run / "sent.json").write_text(json.dumps([sorted(crowd.sent), crowd.errors]))


class Clock(Silent):
    """Pauses the run after so many seconds of rounds."""

    def __init__(self, seconds: float):
        self.until, self.seconds = 0.0, seconds

    def decide(self, record: Round | Evaluation) -> Verdict:
        if isinstance(record, Round):
            self.until = self.until or time.monotonic() + self.seconds
            return Pause() if time.monotonic() > self.until else None
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--rate", type=float, default=20.0, help="joins a second, and departures a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--generate", type=Path)
    given = parser.parse_args()
    n = given.devices
    if given.generate is not None:
        generate(given.generate, n, given.rate, given.seconds)
        return
    _files()
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), Path(name) / "run"
        np.savez(folder / "rows.npz", x=np.zeros((3, 64), np.float32), y=np.arange(3))
        table = {
            "name": "churn",
            "rounds": LONGEST,
            "evaluate_every": LONGEST,
            "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 10, "distribution": "rademacher"},
            "task": {"kind": "devices", "widths": [64, 10], "test": str(folder / "rows.npz")},
            "federation": {"clients": n, "cohort": given.cohort},
            "engine": {"kind": "devices", "listen": "127.0.0.1:0", "least": n // 4, "grace": 2.0, "linger": 0.0},
        }
        Registry(run).close()
        command = [sys.executable, __file__, "--generate", str(run), "--devices", str(n)]
        command += ["--rate", str(given.rate), "--seconds", str(given.seconds)]
        crowd = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            session.start(recipes.decode(table), run, Environment(), Clock(given.seconds + 2))
            crowd.communicate(b"\n", timeout=60)
        finally:
            crowd.kill()
        _report(run, given.seconds)


def _report(run: Path, seconds: float) -> None:
    import sqlite3

    sent, errors = json.loads((run / "sent.json").read_text())
    counted, asked, numbers_, empty = set[tuple[int, int]](), 0, list[int](), 0
    with closing(Ledger.open(run / "ledger.db")) as ledger:
        for record in ledger.rounds():
            out = {client for client, _ in record.refused}
            counted |= {(record.round, client) for client in record.cohort if client not in out}
            asked += len(record.cohort)
            numbers_.append(record.round)
            empty += record.update is None
    with closing(sqlite3.connect(run / DEVICES)) as db:
        attempt = db.execute("SELECT attempt FROM orders").fetchone()[0]
    lost = {tuple(each) for each in sent if each[0] < len(numbers_)} - counted
    print(f"{len(numbers_)} rounds in {seconds:g} s, {len(numbers_) - len(set(numbers_)) + attempt} repeated,", end=" ")
    print(f"{empty} without an update; {asked} orders, {len(counted)} answers counted of {len(sent)} sent,", end=" ")
    print(f"{len(lost)} lost; errors {len(errors)} {errors[:3]}")


if __name__ == "__main__":
    main()
