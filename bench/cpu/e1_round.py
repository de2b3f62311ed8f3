"""A simulated round of E1 (N 100, m 10, K 1, P 10, batch 32, forward difference) beside the straightforward way.

The straightforward way: every client has a model copy, replays what it missed with torch's generator, and runs one
forward pass per direction on its own batch. It is measured with the plain CNN one would write, and again with ours, so
that the model's share of the gain shows. Lags settle after some rounds, so all are measured from
round 30 on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from bench.table import show
from torch import Tensor, nn

from fedzero.engines.local import LocalClients
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.plan import cohort_of
from fedzero.recipe.setup import Setup, prepare
from fedzero.rounds.server import Server
from fedzero.tasks.models import SmallCnn

N, M, P, MU, ETA = 100, 10, 10, 1e-3, 1e-3
WARM, ROUNDS = 30, 15


class PlainCnn(SmallCnn):
    """The same network in the usual order: convolution, ReLU, pool."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        result: Tensor = self.linear(h.flatten(1))
        return result


@torch.no_grad()
def step(model: nn.Module, seed: int, scale: float) -> None:
    """Move all parameters by scale·z(seed), as the public codes do."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)


def straightforward(setup: Setup, model: type[nn.Module]) -> Iterator[float]:
    """Seconds of each round from WARM on."""
    shards, keys = setup.problem.shards, setup.keys
    clients = [model() for _ in range(N)]
    known, scalars = [0] * N, []
    for round in range(WARM + ROUNDS):
        began, gathered = time.perf_counter(), []
        for client in cohort_of(keys, round, setup.recipe.federation):
            net = clients[client]
            for missed in range(known[client], round):
                for p, g in enumerate(scalars[missed]):
                    step(net, missed * P + p, -ETA / P * g)
            known[client] = round
            x, y = shards.batch(keys, round, 0, client)
            gathered.append(slopes_of(net, x, y, round) if round >= WARM else [0.0] * P)  # before: only lags matter
        scalars.append([sum(column) / M for column in zip(*gathered, strict=True)])
        if round >= WARM:
            yield time.perf_counter() - began


@torch.no_grad()
def slopes_of(net: nn.Module, x: Tensor, y: Tensor, round: int) -> list[float]:
    base, slopes = F.cross_entropy(net(x), y).item(), []
    for p in range(P):
        step(net, round * P + p, MU)
        slopes.append((F.cross_entropy(net(x), y).item() - base) / MU)
        step(net, round * P + p, -MU)
    return slopes


def ours(setup: Setup, folder: str) -> Iterator[float]:
    """Seconds of each round from WARM on."""
    problem, replica = setup.problem, setup.replica()
    engine = LocalClients(replica, problem.objective, problem.shards, merge=True)
    ledger = Ledger.create(Path(folder) / "ledger.db", setup.start)
    server = Server(setup.plan, replica, ledger)
    for round in range(WARM + ROUNDS):
        began = time.perf_counter()
        server.play(round, engine, 0.0)
        if round >= WARM:
            yield time.perf_counter() - began


def main() -> None:
    table = {
        "name": "e1-round",
        "rounds": WARM + ROUNDS,
        "algorithm": {"kind": "decomfl", "rate": ETA, "directions": P, "radius": MU},
        "task": {"kind": "mnist"},
        "federation": {"clients": N, "cohort": M},
        "engine": {"kind": "local", "device": "cpu"},
    }
    setup = prepare(recipes.decode(table), Environment())
    with tempfile.TemporaryDirectory() as folder:
        # Rounds take turns, so that a noisy neighbour disturbs all ways alike; medians forget the worst of it.
        ways = (ours(setup, folder), straightforward(setup, PlainCnn), straightforward(setup, SmallCnn))
        times = list(zip(*ways, strict=True))
    quick, plain, same = (median(column) for column in zip(*times, strict=True))
    names = ("fedzero", "straightforward, plain CNN", "straightforward, our CNN")
    rows = [(n, f"{t:.3f}", f"{t / quick:.1f}") for n, t in zip(names, (quick, plain, same), strict=True)]
    show(f"One round of E1: N {N}, m {M}, K 1, P {P}, batch 32 (median)", rows, ("", "s/round", "× fedzero"))


if __name__ == "__main__":
    main()
