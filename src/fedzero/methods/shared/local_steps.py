"""The walk that most methods of the family share: K local steps of stochastic estimates, from the client's model.

    step k:  Ĝ_k = (1/P) Σ_p g[k,p] z[k,p],   z from (round, k, p, client)
             x ← x − η (Ĝ_k + correction)

The scalars g determine the walk: everybody with the scalars and the keys can repeat it. This holds for these plain
steps. With an optimizer (its state starts from zero in every walk) or a box (every coordinate is clipped to it after
every step) a walk is no longer a sum of directions, and only its end can be sent:

             x ← clip(x + step(Ĝ_k + correction))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedzero.directions import Keys, Program, Terms
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import direction_keys, expect_others, expect_rank, queries_of
from fedzero.methods.contract import (
    READS_STATE,
    Contribution,
    Cost,
    Federation,
    Form,
    Method,
    Scale,
    State,
    StepInputs,
    Traits,
    Turn,
    Work,
    advance_round,
)
from fedzero.methods.rules.contract import average, joined
from fedzero.methods.rules.kernels import Moments, Optimizer, Sgd, dense_step
from fedzero.methods.shared.groups import listed
from fedzero.methods.shared.seeded import Samples, Sampling, sample_of
from fedzero.model.params import Params
from fedzero.model.schedules import Schedule, rate_at
from fedzero.model.updates import Dense, Seeded, Stepped, Update, pack, unpack
from fedzero.oracles import Answer, Ask

Correction = Callable[[Params], Tensor]
"""The vector (d,) that is added to the estimate at x."""

Box = tuple[float, float]
"""(low, high), the same for every coordinate, rounded to the type of the parameters."""


LastTurns = Mapping[int, tuple[int, bytes]]
"""By client: the round of its last turn, and the scalars of that turn, packed."""


class OwnDirections(Sampling):
    """The common base of methods whose clients walk along their own directions, with both forms of an update.

    Dense: the difference x_i − x_r, d numbers. Seeded: the K·P scalars of the walk, which determine it only if its
    steps are plain.
    """

    rate: Schedule
    """η"""
    directions: Annotated[int, Meta(ge=1)] = 10
    """P"""
    samples: Samples = "batch"
    form: Form = "auto"

    reads_state: ClassVar[str] = READS_STATE
    """See `Traits`."""

    def sample(self, step: int) -> int:
        return sample_of(self.samples, step)

    def local_rule(self) -> Optimizer:
        """The optimizer of a client's steps; a method that offers a choice has a field `local_optimizer`."""
        return Sgd()

    def limits(self) -> Box | None:
        """The box to which every coordinate is clipped; a method that offers a choice has a field `box`."""
        return None

    def check(self, federation: Federation) -> None:
        Method.check(self, federation)
        refuse_empty(self.limits())
        expect_others(self.difference, self.directions)
        expect_rank(self.distribution, self.rank)
        if self.form == "seeded" and not takes_plain_steps(self):
            raise FedzeroError(
                "algorithm.form = 'seeded' sends scalars of directions, but with a local_optimizer other than sgd, or "
                "with a box, a client's update is no sum of directions: use form = 'dense' (or 'auto')"
            )

    @property
    def scalars(self) -> int:
        return self.local_steps * self.directions

    def seeded(self, scale: Scale) -> bool:
        """Whether updates are scalars. auto: a client sends its scalars and receives, between two of its turns, on
        average one turn of every client: 1 + N times as many numbers as it sends."""
        if not takes_plain_steps(self):
            return False
        few = self.scalars * (1 + scale.clients) < self.dense_numbers(scale)
        return self.form == "seeded" or (self.form == "auto" and few)

    def dense_numbers(self, scale: Scale) -> int:
        """Numbers sent and received in a turn of the dense form: d each way, unless a method overrides it."""
        return 2 * scale.size

    def traits(self, scale: Scale) -> Traits:
        if self.seeded(scale):
            return Traits(comparable=False, reads_state=self.reads_state)
        return Traits(seeded=False, delivery="snapshot")

    def cost(self, round: int, scale: Scale) -> Cost:
        queries = self.local_steps * queries_of(self.directions, self.difference)
        return Cost((self.scalars if self.seeded(scale) else scale.size,), queries)

    def max_update_scale(self, state: State, round: int) -> float:
        return rate_at(self.rate, round) if self.seeded(state.scale) else 1.0

    def aggregate(self, gathered: StepInputs) -> Update:
        if self.seeded(gathered.scale):
            return listed(gathered) if gathered.asked else scalars_of_all(gathered)
        return Dense(gathered.round, pack(gathered.mean()))


class LocalSteps(OwnDirections):
    """Walks whose steps may use an optimizer, or be clipped to a box."""

    local_optimizer: Optimizer = Sgd()
    """of the K steps, from zero in every round"""
    box: Box | None = None
    """[low, high], to which every coordinate is clipped after every step"""

    def local_rule(self) -> Optimizer:
        return self.local_optimizer

    def limits(self) -> Box | None:
        return self.box


def takes_plain_steps(method: OwnDirections) -> bool:
    """True if the end of a walk is x_r − η Σ_k (Ĝ_k + correction)."""
    return isinstance(method.local_rule(), Sgd) and method.limits() is None


def estimate(
    method: OwnDirections, base: Params, turn: Turn, step: int
) -> Generator[Ask, Answer, tuple[tuple[int, ...], F32, float]]:
    """Slopes at `base` along the directions of one step: (keys, g, loss)."""
    keys = direction_keys(turn.keys, turn.round, step, method.directions, turn.client)
    return keys, *(yield from method.slopes_at(base, keys, step))


def walk(
    method: OwnDirections,
    start: Params,
    turn: Turn,
    rate: float,
    to_the_end: bool,
    correction: Correction | None = None,
) -> Generator[Ask, Answer, tuple[Params, F32, float]]:
    """(end of the walk, g (K, P), loss at its start). Without `to_the_end` the last step is estimated, not taken."""
    g, first_loss, x = np.empty((method.local_steps, method.directions), np.float32), 0.0, start
    stream, plain = method.stream, takes_plain_steps(method)
    moments: Moments = ()
    for k in range(method.local_steps):
        keys, g[k], loss = yield from estimate(method, x, turn, k)
        if k == 0:
            first_loss = loss
        if k + 1 == method.local_steps and not to_the_end:
            break
        pull = None if correction is None else correction(x)
        x = start.clone() if k == 0 else x
        if not plain:
            gradient = x.total(average(keys, g[k], 1.0, stream))
            gradient = gradient if pull is None else gradient + pull
            change, moments = dense_step(method.local_rule(), moments, gradient, rate, k)
            turn.observe(k, gradient, change)
            add_within(x, change, turn.keys.rounding(turn.round, k), method.limits())
            continue
        if pull is not None:
            x.add(pull * -rate, turn.keys.rounding(turn.round, method.local_steps + k))
        x.fold(average(keys, g[k], -rate, stream), turn.keys.rounding(turn.round, k))
    return x, g, first_loss


def refuse_empty(box: Box | None) -> None:
    if box is not None and box[0] >= box[1]:
        raise FedzeroError(f"algorithm.box = [{box[0]}, {box[1]}] is empty: give [low, high] with low < high")


def add_within(params: Params, vector: Tensor, rounding: int, box: Box | None) -> None:
    """x ← clip(x + vector), in place.

    For a client's step, and for the server's: the mean of points in the box is in the box, but rounding or a filter may
    have moved it just outside.
    """
    params.add(vector, rounding)
    if box is not None:
        for _, flat in params.flat():
            flat.clamp_(*box)
        params.changed()


def walk_terms(
    method: OwnDirections, keys: Keys, round: int, client: int, g: F32, factors: Sequence[float], first: int = 0
) -> Terms:
    """Σ_k factors[k] (1/P) Σ_p g[k,p] z[k,p] of a client's steps `first`, `first`+1, …; g is (K, P)."""
    stream = method.stream
    steps = [
        average(direction_keys(keys, round, first + k, row.size, client), row, factor, stream)
        for k, (row, factor) in enumerate(zip(g, factors, strict=True))
    ]
    return joined(steps)


def scalars_of_all(gathered: StepInputs) -> Seeded:
    """The update of a cohort whose clients drew their own directions: the scalars of all, one after the other."""
    clients = sorted(gathered.contributions)
    scalars = np.concatenate([gathered.contributions[client] for client in clients])
    return Seeded(gathered.round, pack(scalars), gathered.turns)


def shares_of(update: Seeded, scalars: int) -> list[tuple[int, float, F32]]:
    """By client: (client, its share of the mean, its scalars) from an update by `scalars_of_all`."""
    drawn = Counter(update.clients)
    rows = unpack(update.scalars).reshape(len(drawn), scalars)
    return [(c, drawn[c] / len(update.clients), row) for c, row in zip(sorted(drawn), rows, strict=True)]


def mean_walk(method: OwnDirections, keys: Keys, update: Seeded | Stepped, factors: Sequence[float]) -> Terms:
    """mean over the cohort of Σ_k factors[k] (1/P) Σ_p g_i[k,p] z_i[k,p]"""
    return joined(
        [
            walk_terms(method, keys, asked, client, g.reshape(-1, method.directions), [share * f for f in factors])
            for asked, client, share, g in _walks(update, method.scalars)
        ]
    )


def _walks(update: Seeded | Stepped, scalars: int) -> list[tuple[int, int, float, F32]]:
    """(round of the directions, client, its share, its scalars); in groups the scalars contain the shares already."""
    if isinstance(update, Seeded):
        return [(update.round, *share) for share in shares_of(update, scalars)]
    found: list[tuple[int, int, float, F32]] = []
    for group in update.groups:
        rows = unpack(group.scalars).reshape(len(group.clients), scalars)
        found += [(group.asked, client, 1.0, row) for client, row in zip(group.clients, rows, strict=True)]
    return found


def advanced(
    method: OwnDirections,
    state: State,
    updates: Sequence[Update],
    keys: Keys,
    factors: Callable[[int], Sequence[float]],
) -> State:
    """x ← x + mean over the cohort of the walks, round by round: differences are added; scalars of all rounds are
    folded together.

    factors: by round, the factors of its K estimates.
    """
    steps, rounding = [], []
    for update in updates:
        if isinstance(update, Dense):
            add_within(state.params, vector_of(update, state.params), keys.rounding(update.round), method.limits())
        else:
            steps.append(mean_walk(method, keys, update, factors(update.round)))
            rounding.append(keys.rounding(update.round))
    if steps:
        state.params.advance(Program.of(steps, rounding))
    return advance_round(state, updates)


def run_local_steps(
    method: OwnDirections, state: State, turn: Turn, rate: float, seeded: bool, correction: Correction | None = None
) -> Work:
    """A walk, and the client's contribution from it: the scalars, or the difference."""
    end, g, loss = yield from walk(method, state.params, turn, rate, not seeded, correction)
    return Contribution(g.reshape(-1) if seeded else difference_of(end, state.params), loss)


def difference_of(end: Params, start: Params) -> F32:
    """x_i − x_r, as it is sent."""
    values: F32 = (end.vector() - start.vector()).cpu().numpy()
    return values


def vector_of(update: Dense, like: Params) -> Tensor:
    """The numbers of a dense update, on the model's device."""
    return torch.from_numpy(unpack(update.values).copy()).to(like.device)
