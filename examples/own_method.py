"""A method of your own, from scratch: one file, four functions, and a recipe can name it.

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

import numpy as np

import fedzero
from fedzero.methods import (
    Contribution,
    Cost,
    Domain,
    Keys,
    Losses,
    Program,
    Scale,
    Schedule,
    Seeded,
    State,
    StepInputs,
    Terms,
    Turn,
    Update,
    Work,
    advance_round,
    direction_keys,
    pack,
    points_of,
    rate_at,
    unpack,
)
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent


@fedzero.register
class SignVote(fedzero.Method, tag="sign-vote"):
    """Majority vote over the signs of the slopes."""

    rate: Schedule
    directions: int = 10
    radius: float = 1e-3

    def cost(self, round: int, scale: Scale) -> Cost:
        return Cost(replies=(self.directions,), queries=2 * self.directions)

    def client(self, state: State, turn: Turn) -> Work:
        keys = direction_keys(turn.keys, turn.round, 0, self.directions)
        points, _ = points_of(state.params, keys, self.radius, "central", "rademacher")
        values = yield Losses(state.params, points, 0)
        return Contribution(np.sign(values[0::2] - values[1::2]).astype(np.float32), float(values.mean()))

    def aggregate(self, gathered: StepInputs) -> Seeded:
        return Seeded(gathered.round, pack(np.sign(gathered.mean())))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        steps = []
        for update in updates:
            votes = unpack(update.scalars) * np.float32(-rate_at(self.rate, update.round) / self.directions)
            steps.append(Terms.of(direction_keys(keys, update.round, 0, self.directions), votes, Domain.RADEMACHER))
        state.params.advance(Program.of(steps, [keys.rounding(update.round) for update in updates]))
        return advance_round(state, updates)


def main(rounds: int = 300) -> tuple[float, float]:
    """Sign voting on a quadratic in 50 dimensions, 20 clients; the optimality gap before and after."""
    recipe = recipes.decode(
        {
            "name": "sign-vote",
            "rounds": rounds,
            "evaluate_every": rounds,
            "seed": 1,
            "algorithm": {"kind": "sign-vote", "rate": 0.05},
            "task": {"kind": "quadratic", "dimension": 50, "spread": 0.2},
            "federation": {"clients": 20, "cohort": 5},
        }
    )
    environment = Environment()
    with tempfile.TemporaryDirectory() as folder:
        sent = session.start(recipe, Path(folder), environment, Silent()).bytes_up_per_client
        before, after = (found.metrics.loss for found in recorded.verified(Path(folder), environment).evaluations)
    print(f"gap {before:.2f} → {after:.3f} after {rounds} rounds; {sent:,.0f} bytes sent by each client")
    return before, after


if __name__ == "__main__":
    main()
