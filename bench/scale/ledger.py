"""Reading long ledgers: `verify`, and the server's working set with one client away for ever; seconds of the processor.

python -m bench.scale.ledger [ROUNDS …]     default 25000 100000: four times the rounds should take four times as long
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from bench.table import show

from fedzero.ledger import replay
from fedzero.ledger.records import Evaluation, Round, Start
from fedzero.ledger.store import Ledger
from fedzero.ledger.turns import Turns
from fedzero.methods.contract import Federation
from fedzero.model.identity import Identity
from fedzero.model.updates import Seeded, encode_update, pack
from fedzero.oracles import Metrics
from fedzero.rounds.tracker import ClientTracker

BASE, CLIENTS, EVERY = b"8" * 8, 10, 10
SCALARS = pack(np.zeros(5, np.float32))


class Still:
    """A replica that does not move: what is measured is the reading."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(params=SimpleNamespace(size=1, matches=self.matches))

    def follow(self, updates: Any) -> None: ...

    def matches(self, model: Identity) -> bool:
        return model.digest == BASE


def record(round: int) -> Round:
    return Round(round, (round % (CLIENTS - 1),), encode_update(Seeded(round, SCALARS)), False, 60, 60, 6, 0.5)


def verified(rounds: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        recipe = msgspec.json.encode({"rounds": rounds, "federation": {"clients": CLIENTS, "cohort": 1}})
        ledger = Ledger.create(Path(folder) / "ledger.db", Start(recipe, BASE, 1, 1, None))
        records: list[Any] = []
        for round in range(rounds):
            records.append(record(round))
            if (round + 1) % EVERY == 0:
                records.append(Evaluation(round + 1, BASE, Metrics(0.5)))
        ledger.append(records, 0.0)
        began = time.process_time()
        replay.verify(ledger, Still())  # type: ignore[arg-type]
        took = time.process_time() - began
        ledger.close()
        return took


def tracked(rounds: int) -> float:
    """Client 9 is never in a cohort."""
    tracker = ClientTracker(Federation(clients=CLIENTS, cohort=1), Turns.of(CLIENTS), 0, lambda first, last: ())
    records = [record(round) for round in range(rounds)]
    began = time.process_time()
    for each in records:
        tracker.note(each)
        tracker.prune(each.round + 1, None)
    return time.process_time() - began


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[1:]] or [25_000, 100_000]
    rows = []
    for what, measure in (("verify", verified), ("one client away for ever", tracked)):
        took = [measure(size) for size in sizes]
        rows.append((what, *(f"{seconds:.2f} s" for seconds in took), f"{took[-1] / took[0]:.1f} times"))
    show("Long ledgers", rows, ("", *(f"{size:,} rounds" for size in sizes), "last / first"))
