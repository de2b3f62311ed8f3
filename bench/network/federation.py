"""What a round costs when the objective costs nothing: sampling, messages, checks, aggregation, ledger, fold."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.table import show

from fedzero.directions import Keys
from fedzero.engines.local import LocalClients
from fedzero.ledger.records import Start
from fedzero.ledger.store import Ledger
from fedzero.methods import DeComFL
from fedzero.methods.contract import Federation
from fedzero.model.params import Params
from fedzero.oracles import Metrics
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan
from fedzero.rounds.server import Server

CLIENTS, COHORT, ROUNDS = 1000, 100, 200


class Free:
    """An objective and data that cost nothing."""

    clients = CLIENTS

    def batch(self, *_: Any) -> None: ...

    def losses(self, base: Params, points: Sequence[Any], batches: Sequence[Any], basis: Any = None) -> Any:
        return np.zeros((len(batches), len(points)))

    def gradient(self, base: Params, batch: Any) -> tuple[float, torch.Tensor]:
        return 0.0, torch.zeros(base.size)

    def evaluate(self, params: Params) -> Metrics:
        return Metrics(0.0)


def replies_per_second(merge: bool, replicas: bool) -> float:
    algorithm, keys, free = DeComFL(rate=1e-3, directions=10), Keys.of_seed(1), Free()
    params = Params.of_vector(torch.zeros(1000))
    replica = Replica(algorithm, params, keys, CLIENTS)
    engine = LocalClients(replica, free, free, merge, replicas)
    with tempfile.TemporaryDirectory() as folder:
        start = Start(b"{}", params.digest(), params.size, 1, None)
        ledger = Ledger.create(Path(folder) / "ledger.db", start)
        plan = Plan(algorithm, Federation(clients=CLIENTS, cohort=COHORT), keys, params.size)
        server = Server(plan, replica, ledger)
        server.play(0, engine, 0.0)
        began = time.perf_counter()
        for round in range(1, ROUNDS + 1):
            server.play(round, engine, 0.0)
        seconds = time.perf_counter() - began
        ledger.close()
    return ROUNDS * COHORT / seconds


def main() -> None:
    rows = [
        ("one model serves all", f"{replies_per_second(merge=True, replicas=False):,.0f}"),
        ("one model, not merged", f"{replies_per_second(merge=False, replicas=False):,.0f}"),
        ("a real replica each", f"{replies_per_second(merge=False, replicas=True):,.0f}"),
    ]
    show(f"Federation overhead: N {CLIENTS}, m {COHORT}, P 10, free objective", rows, ("", "client replies/s"))


if __name__ == "__main__":
    main()
