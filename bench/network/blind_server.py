"""Memory of a server without a model (`federation.server_model = false`): 10,000 rounds for 1e5 and 1e8 parameters.

A process for each size plays DeComFL (N 8, m 2, P 10) with a ledger. Its clients are made up: replies of the right
length, with the digest of a model that is nowhere. One float32 vector of 1e8 parameters would be 400 MB; also memory
that was asked for and never touched would show, in the address space. What grows in the first 9,000 rounds is SQLite's
cache of pages of the ledger, which ends at 2 MB.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from bench.table import show

from fedzero.directions import VERSION, Keys
from fedzero.ledger.records import Start
from fedzero.ledger.store import Ledger
from fedzero.methods import DeComFL
from fedzero.methods.contract import Federation, Scale
from fedzero.model.identity import Identity
from fedzero.model.updates import pack
from fedzero.oracles import Metrics
from fedzero.protocol.engine import Arrival
from fedzero.protocol.messages import Reply, encode_reply
from fedzero.recipe.plan import Plan
from fedzero.rounds.server import Server

SIZES, ROUNDS, LOOK_EVERY, LIMIT = (10**5, 10**8), 10_000, 2000, 240
"""d; rounds, and between two looks; seconds that one size may take"""
ALGORITHM = DeComFL(rate=1e-3, directions=10)
FEDERATION = Federation(clients=8, cohort=2, server_model=False)


class MadeUp:
    """Clients that answer at once, as they should."""

    def __init__(self) -> None:
        self._events: list[Arrival] = []

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        values = pack(np.full(ALGORITHM.directions, 1e-3 * (asked % 7), np.float32))
        model, loss = asked.to_bytes(8, "big"), pack(np.ones(1, np.float32))
        reply = encode_reply(
            Reply(asked, exchange, model, values, loss, ALGORITHM.cost(asked, Scale(0, FEDERATION.clients)).queries)
        )
        self._events = [Arrival(client, reply) for client in which]

    def receive(self, seconds: float) -> Sequence[Arrival]:
        events, self._events = self._events, []
        return events

    def settle(self, *_: Any) -> None: ...

    def identity(self, after: int) -> Identity:
        return Identity(after.to_bytes(8, "big"))

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.identity(after), Metrics(0.0)


def megabytes(what: str) -> float:
    """VmRSS: resident now; VmHWM: at most so far; VmPeak: address space at most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(what)


def memory_over_rounds(size: int) -> dict[str, float]:
    signal.alarm(LIMIT)
    clients, found = MadeUp(), {}
    with tempfile.TemporaryDirectory() as folder:
        start = Start(b"{}", bytes(8), size, VERSION, None)
        ledger = Ledger.create(Path(folder) / "ledger.db", start)
        server = Server(Plan(ALGORITHM, FEDERATION, Keys.of_seed(1), size), None, ledger)
        for round in range(ROUNDS):
            if round % LOOK_EVERY == 0:
                found[f"{round:,}"] = megabytes("VmRSS")
            record = server.play(round, clients, 0.0)
            assert not record.refused, record.refused
        found[f"{ROUNDS:,}"] = megabytes("VmRSS")
        ledger.close()
    most = max(megabytes("VmHWM"), *found.values())  # the kernel's own mark lags behind by some pages
    return found | {"most, resident": most, "most, address space": megabytes("VmPeak")}


def main() -> None:
    curves = []
    for size in SIZES:
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            curves.append(pool.submit(memory_over_rounds, size).result())
    rows = [(name, *(f"{curve[name]:.1f}" for curve in curves)) for name in curves[0]]
    title = f"A server without a model: N {FEDERATION.clients}, m {FEDERATION.cohort}, P {ALGORITHM.directions}, MB"
    show(title, rows, ("after rounds", *(f"d = {size:.0e}" for size in SIZES)))


if __name__ == "__main__":
    main()
