"""MeZO (Malladi et al., "Fine-tuning language models with just forward passes"): zeroth-order SGD in one place.

    g = (f(x + μz) − f(x − μz)) / 2μ;   x ← x − η g z          (averaged over P directions where P > 1)

The original perturbs weights in place by +μz, −2μz, +μz, which leaves rounding drift; a view leaves none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from fedzero.algorithms.contract import Contribution, Defaults, Gathered, Scale, State, Turn, Work, rounds_of
from fedzero.algorithms.walk import average
from fedzero.directions import Distribution, Keys, Program, stream_of
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import direction_keys, points_of, queries_of, slopes
from fedzero.oracles import Losses
from fedzero.schedules import Schedule, rate_at
from fedzero.updates import Seeded, Update, pack, unpack


class MeZO(Defaults, Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="mezo"):
    """One party, central difference, one direction a step: the single-machine reference."""

    rate: Schedule
    directions: Annotated[int, Meta(ge=1)] = 1
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    distribution: Distribution = "gaussian"

    name = "mezo"

    def check(self, clients: int, cohort: int, private: bool, replacement: bool = False) -> None:
        if clients != 1 or private:
            raise FedzeroError(
                f"MeZO trains in one place: set federation.clients = 1 and cohort = 1 (not {clients} clients)"
            )

    def expects(self, round: int, scale: Scale, exchange: int) -> int:
        return self.directions

    def queries(self, round: int) -> int:
        return queries_of(self.directions, "central")

    def client(self, state: State, turn: Turn) -> Work:
        keys = direction_keys(turn.keys, turn.round, 0, self.directions)
        points, scales = points_of(state.params, keys, self.radius, "central", self.distribution)
        values = yield Losses(state.params, points, 0)
        g, loss = slopes(values, scales, self.radius, "central")
        return Contribution(g, loss)

    def aggregate(self, gathered: Gathered) -> Seeded:
        return Seeded(gathered.round, pack(gathered.mean()))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        steps, rounding = [], []
        for update in updates:
            assert isinstance(update, Seeded)
            directions = direction_keys(keys, update.round, 0, self.directions)
            rate, stream = rate_at(self.rate, update.round), stream_of(self.distribution)
            steps.append(average(directions, unpack(update.scalars), -rate, stream))
            rounding.append(keys.rounding(update.round))
        if steps:
            state.params.advance(Program.of(steps, rounding))
        return rounds_of(state, updates)
