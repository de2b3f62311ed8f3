"""BAFFLE (Feng et al., "Does federated learning really need backpropagation?"): scalars up, the model down.

    client i:  g_i[p] = (f_i(x + μ z_p; ξ) − f_i(x − μ z_p; ξ)) / 2μ,   p = 1 … P, directions shared by all (or forward)
    server:    x ← x − η (1/P) Σ_p mean_i g_i[p] z_p

The paper sends the model down (`form = "dense"`). `form = "seeded"` sends the scalars down as well and is then DeComFL
with one local step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from fedzero.algorithms.contract import (
    Contribution,
    Defaults,
    Delivery,
    Form,
    Gathered,
    Scale,
    State,
    Turn,
    Work,
    rounds_of,
)
from fedzero.algorithms.walk import Samples, average
from fedzero.directions import Distribution, Keys, Program, stream_of
from fedzero.estimators.spsa import Difference, direction_keys, expect_others, points_of, queries_of, slopes
from fedzero.oracles import ALL_DATA, Losses
from fedzero.schedules import Schedule, rate_at
from fedzero.updates import Seeded, Update, pack, unpack


class Baffle(Defaults, Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="baffle"):
    """Shared directions, scalars up, the model down."""

    rate: Schedule
    """η"""
    directions: Annotated[int, Meta(ge=1)] = 20
    """P"""
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    """μ"""
    difference: Difference = "central"
    distribution: Distribution = "gaussian"
    samples: Samples = "batch"
    form: Form = "dense"

    name = "baffle"

    def check(self, clients: int, cohort: int, private: bool, replacement: bool = False) -> None:
        Defaults.check(self, clients, cohort, private, replacement)
        expect_others(self.difference, self.directions)

    def delivery(self, scale: Scale) -> Delivery:
        few = self.form == "auto" and self.directions * scale.clients < scale.size
        return "catch-up" if few or self.form == "seeded" else "snapshot"

    def expects(self, round: int, scale: Scale, exchange: int) -> int:
        return self.directions

    def queries(self, round: int) -> int:
        return queries_of(self.directions, self.difference)

    def client(self, state: State, turn: Turn) -> Work:
        keys = direction_keys(turn.keys, turn.round, 0, self.directions)
        points, scales = points_of(state.params, keys, self.radius, self.difference, self.distribution)
        values = yield Losses(state.params, points, ALL_DATA if self.samples == "all" else 0)
        return Contribution(*slopes(values, scales, self.radius, self.difference))

    def aggregate(self, gathered: Gathered) -> Seeded:
        return Seeded(gathered.round, pack(gathered.mean()))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        steps = []
        for update in updates:
            assert isinstance(update, Seeded)
            own = direction_keys(keys, update.round, 0, self.directions)
            rate, stream = rate_at(self.rate, update.round), stream_of(self.distribution)
            steps.append(average(own, unpack(update.scalars), -rate, stream))
        state.params.advance(Program.of(steps, [keys.rounding(update.round) for update in updates]))
        return rounds_of(state, updates)
