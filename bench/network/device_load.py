"""How many devices a gateway serves: python bench/network/device_load.py --devices 1000 --rounds 10

A second process plays all devices over web sockets: one replica for all of them, random scalars, real signatures. A
round asks every device, so its time is that of a burst of as many answers: signed, verified, admitted, recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fedzero_client import plan as device_plan
from fedzero_client.model import Model
from fedzero_client.packing import pack, unpack
from fedzero_client.session import ANSWER, CHALLENGE, FINISH, HELLO, ORDER, PROOF, READY, UPDATES, WELCOME
from fedzero_client.statements import answer, numbers, statement
from websockets.asyncio.client import connect

from fedzero.engines.devices.registry import Registry
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent


class Crowd:
    """All devices; `model` is everybody's."""

    def __init__(self, run: bytes):
        self.run, self.model = run, Model.__new__(Model)
        self.plan: device_plan.Plan | None = None
        self.bodies: dict[int, bytes] = {}

    def reply(self, round: int, body: bytes) -> bytes:
        """Of a round: the same for all, computed once."""
        if round not in self.bodies:
            assert self.plan is not None
            for update in unpack(unpack(body)[0])[3]:
                self.model.apply(update[1], update[2], self.plan.method.rate)
            scalars = np.random.default_rng(round).normal(size=self.plan.method.directions).astype("<f4").tobytes()
            loss, queries = np.float32(1).tobytes(), self.plan.method.directions + 1
            self.bodies = {round: pack([round, 0, self.model.digest(), scalars, loss, queries])}
        return self.bodies[round]

    async def device(self, url: str, place: int, key: Ed25519PrivateKey) -> None:
        def signed(kind: str, payload: bytes) -> bytes:
            return key.sign(statement(kind, self.run, place, payload))

        async with connect(url, compression=None, ping_interval=None, open_timeout=120) as socket:
            await socket.send(pack([HELLO, 1, self.run, place, bytes(16), b"", None]))
            while True:
                tag, *fields = unpack(await socket.recv())
                if tag == CHALLENGE:
                    await socket.send(pack([PROOF, signed("proof", fields[1] + bytes(16) + b"\xff" * 8)]))
                elif tag == WELCOME and self.plan is None:
                    self.plan = device_plan.read(fields[0])
                    self.model = Model(self.plan)
                elif tag == UPDATES:
                    await socket.send(pack([READY, 0, self.model.digest()]))
                elif tag == ORDER:
                    round, exchange, attempt, body, _ = fields
                    numbered, said = numbers(round, exchange, attempt), self.reply(round, body)
                    signature = key.sign(answer(self.run, place, numbered, body, said))
                    await socket.send(pack([ANSWER, round, exchange, attempt, said, signature]))
                elif tag == FINISH:
                    return


def generate(run: Path, count: int) -> None:
    registry = Registry(run)
    keys = [Ed25519PrivateKey.generate() for _ in range(count)]
    ticket = registry.ticket(count)
    for key in keys:
        registry.enrol(ticket, 1, key.public_key().public_bytes_raw(), range(count))
    while not registry.url:
        time.sleep(0.1)
    url = registry.url.replace("http", "ws", 1) + "/fedzero/1/socket"
    crowd = Crowd(registry.run)

    async def all_of_them() -> None:
        await asyncio.gather(*(crowd.device(url, place, key) for place, key in enumerate(keys)))

    _files()
    asyncio.run(all_of_them())


def _files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--generate", type=Path)
    given = parser.parse_args()
    if given.generate is not None:
        generate(given.generate, given.devices)
        return
    _files()
    with tempfile.TemporaryDirectory() as name:
        folder, n = Path(name), given.devices
        np.savez(folder / "rows.npz", x=np.zeros((3, 64), np.float32), y=np.arange(3))
        table = {
            "name": "load",
            "rounds": given.rounds,
            "evaluate_every": given.rounds,
            "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 10, "distribution": "rademacher"},
            "task": {"kind": "devices", "widths": [64, 10], "test": str(folder / "rows.npz")},
            "federation": {"clients": n, "cohort": n},
            "engine": {"kind": "devices", "listen": "127.0.0.1:0", "least": n, "deadline": 300.0},
        }
        Registry(folder / "run").close()
        command = [sys.executable, __file__, "--generate", str(folder / "run"), "--devices", str(n)]
        crowd = subprocess.Popen(command)
        try:
            session.start(recipes.decode(table), folder / "run", Environment(), Silent())
        finally:
            crowd.kill()
        ledger = Ledger.open(folder / "run" / "ledger.db")
        refused = sum(len(record.refused) for record in ledger.rounds())
        times = np.diff([row[0] for row in ledger._db.execute("SELECT seconds FROM clock ORDER BY seq")][2:-2])
        ledger.close()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        joining, times = float(times[0]), times[1:]  # the first round begins when all have come
        middle, worst = float(np.median(times)), float(times.max())
        print(f"{n} devices, {len(times)} rounds: {middle:.2f} s a round (at most {worst:.2f}),", end=" ")
        print(f"{n / middle:.0f} answers a second; all there in {joining:.0f} s; {refused} refused;", end=" ")
        print(f"{most:.0f} MB with torch")


if __name__ == "__main__":
    main()
