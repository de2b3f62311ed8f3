"""A simulated round of E1 (N 100, m 10, K 1, P 10, batch 32, forward difference) beside the straightforward way.

The straightforward way: every client has a model copy, replays what it missed with torch's generator, and runs one
forward pass per direction on its own batch. It is measured with the plain CNN one would write, and again with ours, so
that the model's share of the gain shows. Lags settle after some rounds, so both ways are measured from round 30 on.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from table import show
from torch import Tensor, nn

from fedzero import recipe as recipes
from fedzero.engines.local import LocalEngine
from fedzero.federation import Books, Server, cohort_of
from fedzero.ledger.store import Ledger
from fedzero.replica import Replica
from fedzero.session import Surroundings, prepare
from fedzero.tasks.models import SmallCnn

N, M, P, MU, ETA = 100, 10, 10, 1e-3, 1e-3
WARM, ROUNDS = 30, 10


class PlainCnn(SmallCnn):
    """The same network in the usual order: convolution, ReLU, pool."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        result: Tensor = self.linear(h.flatten(1))
        return result


def step(model: nn.Module, seed: int, scale: float) -> None:
    """Move all parameters by scale·z(seed), as the public codes do."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)


def straightforward(setup, model: type[nn.Module]) -> float:
    shards, keys = setup.problem.shards, setup.keys
    clients = [model() for _ in range(N)]
    known, scalars = [0] * N, []
    began = 0.0
    with torch.no_grad():
        for round in range(WARM + ROUNDS):
            if round == WARM:
                began = time.perf_counter()
            gathered = []
            for client in cohort_of(keys, round, N, M):
                net = clients[client]
                for missed in range(known[client], round):
                    for p, g in enumerate(scalars[missed]):
                        step(net, missed * P + p, -ETA / P * g)
                known[client] = round
                x, y = shards.batch(keys, round, 0, client)
                if round < WARM:  # only the lags matter until the clock runs
                    gathered.append([0.0] * P)
                    continue
                base = F.cross_entropy(net(x), y).item()
                slopes = []
                for p in range(P):
                    step(net, round * P + p, MU)
                    slopes.append((F.cross_entropy(net(x), y).item() - base) / MU)
                    step(net, round * P + p, -MU)
                gathered.append(slopes)
            scalars.append([sum(column) / M for column in zip(*gathered, strict=True)])
    return (time.perf_counter() - began) / ROUNDS


def ours(setup, folder: str) -> float:
    problem, algorithm = setup.problem, setup.algorithm
    replica = Replica(algorithm, problem.params, setup.keys)
    engine = LocalEngine(replica, problem.objective, problem.shards, merge=True)
    ledger = Ledger.create(Path(folder) / "ledger.db", setup.start)
    federation = setup.recipe.federation
    server = Server(algorithm, federation, setup.keys, problem.params.size, replica, ledger, Books.empty(N))
    for round in range(WARM):
        server.play(round, engine, 0.0)
    began = time.perf_counter()
    for round in range(WARM, WARM + ROUNDS):
        server.play(round, engine, 0.0)
    return (time.perf_counter() - began) / ROUNDS


def main() -> None:
    table = {
        "name": "e1-round",
        "rounds": WARM + ROUNDS,
        "algorithm": {"kind": "decomfl", "rate": ETA, "directions": P, "radius": MU},
        "task": {"kind": "mnist"},
        "federation": {"clients": N, "cohort": M},
        "engine": {"kind": "local", "device": "cpu"},
    }
    setup = prepare(recipes.decode(table), Surroundings())
    with tempfile.TemporaryDirectory() as folder:
        quick = ours(setup, folder)
    rows = [("fedzero", f"{quick:.3f}", "1.0")]
    for name, model in (("straightforward, plain CNN", PlainCnn), ("straightforward, our CNN", SmallCnn)):
        seconds = straightforward(setup, model)
        rows.append((name, f"{seconds:.3f}", f"{seconds / quick:.1f}"))
    show(f"One round of E1: N {N}, m {M}, K 1, P {P}, batch 32", rows, ("", "s/round", "× fedzero"))


if __name__ == "__main__":
    main()
