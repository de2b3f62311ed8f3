"""FedZO (Fang et al., "Communication-efficient stochastic zeroth-order optimization for federated learning").

    client i: K steps  x ← x − η (1/P) Σ_p g_i[k,p] z_i[k,p], each client along directions of its own
    server:   x_{r+1} = x_r + mean over the cohort of (x_i − x_r)

*Dense*: the difference travels, d numbers each way. *Seeded*: the K·P scalars travel, and everybody makes the others'
directions from (round, step, direction, client): the same update, up to float rounding, without a word about d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta, Struct

from fedzero.algorithms.contract import Contribution, Delivery, State, Turn, Work, mean, rounds_of
from fedzero.algorithms.optimizers import Sgd, step_terms
from fedzero.directions import Distribution, Keys, Program, Terms, stream_of
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import Difference, direction_keys, points_of, slopes
from fedzero.oracles import Losses
from fedzero.params import Params
from fedzero.schedules import Schedule, rate_at
from fedzero.updates import Dense, Seeded, Update, pack, unpack


class FedZO(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="fedzo"):
    """Own directions on every client; the dense-communication twin of DeComFL, or seeded."""

    rate: Schedule
    directions: Annotated[int, Meta(ge=1)] = 10
    local_steps: Annotated[int, Meta(ge=1)] = 1
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    difference: Difference = "forward"
    distribution: Distribution = "gaussian"
    form: Literal["dense", "seeded", "auto"] = "auto"
    """auto: seeded where a contribution's scalars are fewer than the parameters"""

    name = "fedzo"
    first_order = False
    server_model = True
    sync = False
    pull_after = None

    def check(self, clients: int, cohort: int, private: bool) -> None:
        if private:
            raise FedzeroError("federation.private = true needs a method whose server holds no model (decomfl)")

    @property
    def scalars(self) -> int:
        return self.local_steps * self.directions

    def _seeded(self, size: int) -> bool:
        return self.form == "seeded" or (self.form == "auto" and self.scalars < size)

    def delivery(self, size: int) -> Delivery:
        return "catch-up" if self._seeded(size) else "snapshot"

    def expects(self, round: int, size: int) -> int:
        return self.scalars if self._seeded(size) else size

    def init(self, params: Params) -> State:
        return State(params)

    def client(self, state: State, turn: Turn) -> Work:
        seeded = self._seeded(state.params.size)
        rate, stream = rate_at(self.rate, turn.round), stream_of(self.distribution)
        g, first_loss, local = np.empty((self.local_steps, self.directions), np.float32), 0.0, state.params
        for k in range(self.local_steps):
            keys = direction_keys(turn.keys, turn.round, k, self.directions, turn.client)
            points, scales = points_of(local, keys, self.radius, self.difference, self.distribution)
            values = yield Losses(local, points, k)
            g[k], loss = slopes(values, scales, self.radius, self.difference)
            if k == 0:
                first_loss, local = loss, state.params.clone()
            local.fold(step_terms(Sgd(), keys, g[k], rate, stream), turn.keys.rounding(turn.round, k))
        if seeded:
            return Contribution(g.reshape(-1), first_loss)
        return Contribution((local.vector() - state.params.vector()).cpu().numpy(), first_loss)

    def aggregate(self, round: int, size: int, contributions: Mapping[int, F32]) -> Update:
        if not self._seeded(size):
            return Dense(round, pack(mean(contributions)))
        clients = sorted(contributions)
        return Seeded(round, pack(np.concatenate([contributions[c] for c in clients])), tuple(clients))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        steps, rounding = [], []
        for update in updates:
            if isinstance(update, Dense):
                state.params.add(torch.from_numpy(unpack(update.values).copy()), keys.rounding(update.round))
            else:
                steps.append(self._terms(update, keys))
                rounding.append(keys.rounding(update.round))
        if steps:
            state.params.advance(Program.of(steps, rounding))
        return rounds_of(state, updates)

    def _terms(self, update: Seeded, keys: Keys) -> Terms:
        """mean over clients of −(η/P) Σ_k Σ_p g_i[k,p] z_i[k,p]"""
        g = unpack(update.scalars).reshape(len(update.clients), self.local_steps, self.directions)
        factor = -rate_at(self.rate, update.round) / (self.directions * len(update.clients))
        directions = [
            key
            for client in update.clients
            for k in range(self.local_steps)
            for key in direction_keys(keys, update.round, k, self.directions, client)
        ]
        coefficients = (factor * g.reshape(-1).astype(np.float64)).astype(np.float32)
        return Terms.of(directions, coefficients, stream_of(self.distribution))
