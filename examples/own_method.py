"""A method of your own, from scratch: one file, four functions, and the federation runs it.

Sign voting: every client says of each direction only whether the loss rises or falls along it, and the majority wins.

    client i:   b_i[p] = sign(f_i(x + μ z_p; ξ) − f_i(x − μ z_p; ξ))
    server:     b[p] = sign(Σ_i b_i[p])
    everybody:  x ← x − (η/P) Σ_p b[p] z_p

Run it: python examples/own_method.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from fedzero.algorithms.contract import Contribution, Defaults, Gathered, Scale, State, Turn, Work, rounds_of
from fedzero.directions import Domain, Keys, Program, Terms
from fedzero.estimators.spsa import direction_keys, points_of
from fedzero.ledger.records import Start
from fedzero.ledger.store import Ledger
from fedzero.model.schedules import Schedule, rate_at
from fedzero.model.updates import Seeded, Update, pack, unpack
from fedzero.oracles import Losses
from fedzero.protocol.local import LocalEngine
from fedzero.protocol.replica import Replica
from fedzero.run.server import ClientTracker, Federation, Server
from fedzero.tasks import BuildContext, Quadratic


class SignVote(Defaults, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="sign-vote"):
    """Majority vote over the signs of the slopes."""

    rate: Schedule
    directions: int = 10
    radius: float = 1e-3

    name = "sign-vote"

    def expects(self, round: int, scale: Scale, exchange: int) -> int:
        return self.directions

    def queries(self, round: int) -> int:
        return 2 * self.directions

    def client(self, state: State, turn: Turn) -> Work:
        keys = direction_keys(turn.keys, turn.round, 0, self.directions)
        points, _ = points_of(state.params, keys, self.radius, "central", "rademacher")
        values = yield Losses(state.params, points, 0)
        return Contribution(np.sign(values[0::2] - values[1::2]).astype(np.float32), float(values.mean()))

    def aggregate(self, gathered: Gathered) -> Seeded:
        return Seeded(gathered.round, pack(np.sign(gathered.mean())))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        steps = []
        for update in updates:
            votes = unpack(update.scalars) * np.float32(-rate_at(self.rate, update.round) / self.directions)
            steps.append(Terms.of(direction_keys(keys, update.round, 0, self.directions), votes, Domain.RADEMACHER))
        state.params.advance(Program.of(steps, [keys.rounding(update.round) for update in updates]))
        return rounds_of(state, updates)


def main(rounds: int = 300) -> tuple[float, float]:
    """Sign voting on a quadratic in 50 dimensions, 20 clients; the optimality gap before and after."""
    method, keys = SignVote(rate=0.05), Keys.of_seed(1)
    problem = Quadratic(dimension=50, spread=0.2).build(20, BuildContext(keys, torch.device("cpu"), None))
    replica = Replica(method, problem.params, keys, clients=20)
    engine = LocalEngine(replica, problem.objective, problem.shards)
    before = engine.evaluate()[1].loss
    with tempfile.TemporaryDirectory() as folder:
        start = Start(b'{"rounds": 0}', replica.digest(), problem.params.size, 1, None)
        ledger = Ledger.create(Path(folder) / "ledger.db", start)
        federation = Federation(clients=20, cohort=5)
        server = Server(method, federation, keys, problem.params.size, replica, ledger, ClientTracker.empty(20))
        sent = sum(server.play(round, engine, 0.0).bytes_up for round in range(rounds))
        ledger.close()
    after = engine.evaluate()[1].loss
    print(f"gap {before:.2f} → {after:.3f} after {rounds} rounds; {sent / 20:,.0f} bytes sent by each client")
    return before, after


if __name__ == "__main__":
    main()
