"""DeComFL (Li et al., "Achieving dimension-free communication in federated learning via zeroth-order optimization")
and its first version FedDisco: seeds and scalars replace models on the wire.

    client i, step k:  g_i[k,p] = (f_i(x + μ z[k,p]; ξ) − f_i(x; ξ)) / μ          p = 1 … P, directions shared by all
                       x ← x − η (1/P) Σ_p g_i[k,p] z[k,p]                        local, forgotten at the end
    server:            g[k,p] = mean over the cohort of g_i[k,p]
    everybody:         x_{r+1} = x_r − (η/P) Σ_k Σ_p g[k,p] z[k,p]                when it next needs the model

The paper's eq. (7) prints a sum over p; its proof and its experiments average, and so do we. Both ways of getting back
to the server's model are here. *Revert* forgets the local steps; the client learns the outcome at its next turn.
*Sync* (eq. 10) adds −η Σ (g − g_i) z to the local model: on expressions that is replacing the coefficients g_i by g,
so it is done there, exactly, and the client stands at round r+1 at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from fedzero.algorithms.contract import Contribution, Defaults, Gathered, Scale, State, Turn, Work, rounds_of
from fedzero.algorithms.optimizers import Optimizer, Sgd
from fedzero.algorithms.walk import average, joined
from fedzero.directions import Distribution, Keys, Program, Rule, Terms, stream_of
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import Difference, direction_keys, expect_others, points_of, queries_of, slopes
from fedzero.oracles import Losses
from fedzero.params import Params
from fedzero.schedules import Counts, Schedule, count_at, fewest, rate_at
from fedzero.updates import Dense, Seeded, Update, pack, unpack


class DeComFL(Defaults, Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="decomfl"):
    """Shared directions, scalars up, scalars down; cost independent of the model's size."""

    rate: Schedule
    """η"""
    directions: Counts = 10
    """P, or a schedule `{start = 25, then = [[500, 50], [1000, 100]]}`"""
    local_steps: Annotated[int, Meta(ge=1)] = 1
    """K"""
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    """μ"""
    difference: Difference = "forward"
    distribution: Distribution = "gaussian"
    optimizer: Optimizer = Sgd()
    """Of the server's step; everybody repeats it, so its state never travels."""
    after: Literal["revert", "sync"] = "revert"
    """How a client gets back to the server's model: it forgets its steps, or corrects them (plain SGD only)."""
    pull_after: Annotated[int, Meta(ge=1)] | None = None
    """A client that missed more rounds than this pulls the full model."""
    server_model: bool = True
    """False: the server only averages scalars; the model lives on the clients."""

    name = "decomfl"

    @property
    def sync(self) -> bool:  # type: ignore[override]
        return self.after == "sync"

    def check(self, clients: int, cohort: int, private: bool, replacement: bool = False) -> None:
        expect_others(self.difference, fewest(self.directions))
        if self.sync and self.optimizer.rule is not Rule.SGD:
            raise FedzeroError(
                "algorithm.after = 'sync' works with plain SGD only (a stateful optimizer cannot be corrected "
                "linearly): use after = 'revert'"
            )
        if self.pull_after is not None and not self.server_model:
            raise FedzeroError(
                "algorithm.pull_after needs a server that holds the model: drop it or set server_model = true"
            )
        if private and self.server_model:
            raise FedzeroError(
                "federation.private = true hides the directions from the server, so it cannot hold the model: "
                "set algorithm.server_model = false"
            )

    def expects(self, round: int, scale: Scale, exchange: int) -> int:
        return self.local_steps * count_at(self.directions, round)

    def queries(self, round: int) -> int:
        return self.local_steps * queries_of(count_at(self.directions, round), self.difference)

    def init(self, params: Params, clients: int) -> State:
        count = self.optimizer.rule.slots
        return State(params, params.slots(count) if count else None, clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        P, local = count_at(self.directions, turn.round), state
        scalars, first_loss = np.empty((self.local_steps, P), np.float32), 0.0
        for k in range(self.local_steps):
            keys = direction_keys(turn.keys, turn.round, k, P)
            points, scales = points_of(state.params, keys, self.radius, self.difference, self.distribution)
            values = yield Losses(local.params, points, k)
            scalars[k], loss = slopes(values, scales, self.radius, self.difference)
            if k == 0:
                first_loss = loss
            if k + 1 < self.local_steps:
                local = state.branch() if k == 0 else local
                local = self._advance(local, [self._steps(turn.round, k, scalars[k : k + 1], turn.keys)])
        return Contribution(scalars.reshape(-1), first_loss)

    def aggregate(self, gathered: Gathered) -> Seeded:
        return Seeded(gathered.round, pack(gathered.mean()))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        rounds = []
        for update in updates:
            if isinstance(update, Dense):
                raise FedzeroError("DeComFL has no dense updates: this ledger belongs to another method")
            scalars = unpack(update.scalars)
            if scalars.size != self.expects(update.round, state.scale, 0):
                raise FedzeroError(f"round {update.round} has {scalars.size} scalars; the recipe says otherwise")
            rounds.append(self._steps(update.round, 0, scalars.reshape(self.local_steps, -1), keys))
        return rounds_of(self._advance(state, rounds), updates)

    def _steps(self, round: int, first: int, scalars: F32, keys: Keys) -> tuple[list[Terms], list[int], float]:
        """Local steps `first`, `first`+1, … of a round as terms, their rounding keys, and the rate."""
        rate, stream, plain = rate_at(self.rate, round), stream_of(self.distribution), self.optimizer.rule is Rule.SGD
        steps = [  # rules with a memory take the gradient and multiply by −η themselves
            average(direction_keys(keys, round, first + k, row.size), row, -rate if plain else 1.0, stream)
            for k, row in enumerate(scalars)
        ]
        if plain:  # one sum, hence one rounding of 16-bit parameters, a round
            return [joined(steps)], [keys.rounding(round, first)], rate
        return steps, [keys.rounding(round, first + k) for k in range(len(steps))], rate

    def _advance(self, state: State, rounds: list[tuple[list[Terms], list[int], float]]) -> State:
        if not rounds:
            return state
        rates = [rate for steps, _, rate in rounds for _ in steps]
        program = Program.of(
            [terms for steps, _, _ in rounds for terms in steps],
            [key for _, rounding, _ in rounds for key in rounding],
            self.optimizer.rule,
            [self.optimizer.hypers(rate, state.steps + s) for s, rate in enumerate(rates)],
        )
        state.params.advance(program, state.slots)
        return replace(state, steps=state.steps + len(program))
