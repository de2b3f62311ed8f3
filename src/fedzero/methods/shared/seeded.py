"""What most methods of the family share: how an estimate is made, and updates that are sums of shared directions.

    client i, step k:  g_i[k,p] = slope of f_i along z[k,p] at x,   p = 1 … P, directions shared by all
                       x ← x − η (1/P) Σ_p g_i[k,p] z[k,p]          local, forgotten at the end
    server:            g[k,p] = mean over the cohort of g_i[k,p]
    everybody:         x_{r+1} = x_r − (η/P) Σ_k Σ_p g[k,p] z[k,p]  when it next needs the model

A method overrides the member in which its paper differs: `direction_keys` (where directions come from), `check`, or one
of the four of the contract. `rate = "auto"` is in pacing.py: what it knows is carried in the state; what `step` and
`average` do is in stepping.py.

`hold = ν` is LOZO (Chen et al., "Enhancing zeroth-order fine-tuning for language models with low-rank structures"):
with z = a bᵀ for every matrix, a is fresh in every step and b is kept for ν rounds. A rank-one stream makes b from the
low 32 bits of a direction's key and a from all 64, so that holding b is holding the low half of the key.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from fedzero.directions import Distribution, Keys, Program, Rule, Stream, Terms, stream_of
from fedzero.directions.terms import F32, U64
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import (
    Difference,
    direction_keys,
    expect_others,
    expect_rank,
    points_of,
    queries_of,
    slopes,
)
from fedzero.methods.contract import (
    FARTHEST,
    NOTHING,
    Carry,
    Contribution,
    Federation,
    Gathered,
    Method,
    Scale,
    State,
    Turn,
    Vectors,
    Wire,
    Work,
    rounds_of,
)
from fedzero.methods.rules.optimizers import Optimizer, Sgd
from fedzero.methods.rules.pacing import Pace, Rate, measures
from fedzero.methods.rules.stepping import Step, Window, factors, longest
from fedzero.methods.shared.groups import summed
from fedzero.model.numbers import Natural
from fedzero.model.params import Params
from fedzero.model.schedules import Counts, count_at, fewest, rate_at
from fedzero.model.updates import Seeded, Stepped, Update, pack
from fedzero.oracles import ALL_DATA, Answer, Ask, Losses

Part = tuple[int, F32]
"""A round whose question was answered, and scalars (steps, P) of its directions."""
LOW = (1 << 32) - 1
"""The low half of a key."""
Samples = Literal["batch", "all"]
"""What an evaluation looks at: a mini-batch of the task's size, or all of the client's data."""


class Sampling(Method):
    """How slopes are sampled: the fields that all finite-difference methods have."""

    rate: Rate
    """η, step size: a number, a schedule over rounds, or "auto": found from the scalars of the run"""
    directions: Counts = 10
    """P"""
    local_steps: Annotated[int, Meta(ge=1)] = 1
    """K"""
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    """μ"""
    difference: Difference = "forward"
    distribution: Distribution = "gaussian"
    rank: Annotated[int, Meta(ge=1, le=1024)] = 1
    """r: with distribution = "rank1", a direction is the sum of r products a bᵀ, divided by √r"""

    samples: ClassVar[Samples] = "batch"

    @property
    def stream(self) -> Stream:
        return stream_of(self.distribution, self.rank)

    def slopes_at(self, base: Params, keys: tuple[int, ...], step: int) -> Generator[Ask, Answer, tuple[F32, float]]:
        """(g_1 … g_P) at `base` along directions, on the data of a local step; and the loss there."""
        points, scales = points_of(base, keys, self.radius, self.difference, self.distribution, self.rank)
        values = yield Losses(base, points, ALL_DATA if self.samples == "all" else step)
        return slopes(values, scales, self.radius, self.difference)


@dataclass(frozen=True)
class Moments(Carry):
    """What an optimizer remembers: momentum or moments, and how many steps it has taken."""

    vectors: Vectors
    steps: int = 0

    @staticmethod
    def of(optimizer: Optimizer, params: Params) -> Moments:
        return Moments(Vectors.zeros(params, optimizer.rule.slots))


class Steps(NamedTuple):
    """Steps of a round: their terms, the keys of their roundings, and η."""

    terms: list[Terms]
    rounding: list[int]
    rate: float


class SeededMethod(Sampling):
    """Shared directions, scalars up, scalars down: all that a method of this kind answers."""

    step: Step = "plain"
    """what a step's scalars weigh: as they are; divided by their deviation (normalised); or so that η is how far a step
    moves a weight, root mean square (rms)"""
    average: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    """n: after every n rounds the model becomes the mean of its last n iterates; 0: never"""
    average_from: Natural = 0
    """the first round that is averaged; windows of n rounds are counted from it"""
    hold: Annotated[int, Meta(ge=1)] = 1
    """ν, rounds for which the right factor of a rank-one direction is kept"""

    optimizer: ClassVar[Optimizer] = Sgd()
    """Of everybody's step. A method that offers a choice makes it a field, and begins with `Moments`."""

    def check(self, federation: Federation) -> None:
        expect_others(self.difference, fewest(self.directions))
        expect_rank(self.distribution, self.rank)
        self._check_steps()
        if self.rate == "auto" and self.optimizer.rule is not Rule.SGD:
            raise FedzeroError(
                "algorithm.rate = 'auto' measures plain steps: leave out algorithm.optimizer, or give a number "
                "(`fedzero tune` finds one)"
            )
        if federation.sync and self.optimizer.rule is not Rule.SGD:
            raise FedzeroError(
                "federation.sync = true works with plain SGD only (a stateful optimizer cannot be corrected linearly): "
                "leave it out"
            )
        if federation.pull_after is not None and not federation.server_model:
            raise FedzeroError(
                "federation.pull_after needs a server that holds the model: leave it out or set server_model = true"
            )
        if federation.private and federation.server_model:
            raise FedzeroError(
                "federation.private = true hides the directions from the server, so it cannot hold the model: "
                "set federation.server_model = false"
            )

    def _check_steps(self) -> None:
        if self.step == "normalised" and fewest(self.directions) < 2:
            raise FedzeroError(
                "algorithm.step = 'normalised' divides by the deviation over directions: set algorithm.directions to 2 "
                "or more (or step = 'rms')"
            )
        if self.rate == "auto" and (self.step != "plain" or self.average):
            raise FedzeroError(
                "algorithm.rate = 'auto' measures plain steps one by one: leave out algorithm.step and "
                "algorithm.average, or give a number"
            )
        if self.average and self.optimizer.rule is not Rule.SGD:
            raise FedzeroError(
                "algorithm.average needs plain steps, whose mean is a sum of the same directions: leave out "
                "algorithm.optimizer"
            )
        if self.average_from and not self.average:
            raise FedzeroError(
                "algorithm.average_from says where averages begin: set algorithm.average to the rounds of one"
            )
        if self.hold > 1 and self.distribution != "rank1":
            raise FedzeroError(
                f"algorithm.hold = {self.hold} keeps one factor of rank-one directions: set algorithm.distribution = "
                f"'rank1' (not '{self.distribution}'), or leave it out"
            )

    def wire(self, round: int, scale: Scale) -> Wire:
        K, P = self.local_steps, count_at(self.directions, round)
        compares = "algorithm.rate = 'auto' compares the scalars of a round with those of the round before"
        return Wire((K * P,), K * queries_of(P, self.difference), reads_state=compares if self.rate == "auto" else "")

    def direction_keys(self, keys: Keys, round: int, step: int, count: int) -> tuple[int, ...]:
        """Where the P directions of a step come from."""
        return direction_keys(keys, round, step, count)

    def init(self, params: Params, clients: int) -> State:
        carry = Pace() if self.rate == "auto" else Window() if self.average else NOTHING
        return State(params, carry, clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        K, P, local = self.local_steps, count_at(self.directions, turn.round), state
        g, loss = np.empty((K, P), np.float32), 0.0
        for k in range(K):
            keys = self.directions_of(state, turn.keys, turn.round, k, P)
            g[k], here = yield from self.slopes_at(local.params, keys, k)
            loss = here if k == 0 else loss
            if k + 1 < K:
                local = state.branch() if k == 0 else local
                rate = self._local_rate(state, turn.round, g[:1])
                local = self._advance(
                    local, [self._steps(local, turn.round, k, [(turn.round, g[k : k + 1])], turn.keys, rate)]
                )
        return Contribution(g.reshape(-1), loss)

    def aggregate(self, gathered: Gathered) -> Update:
        return summed(gathered) if gathered.asked else Seeded(gathered.round, pack(gathered.mean()))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        rounds = []
        for update in updates:
            parts = self.parts_of(update)
            if self.rate == "auto":
                carry, rate = self._pace(state).after(update.round, parts[-1][1], self._reach(state))
                state = replace(state, carry=carry)
            else:
                rate = rate_at(self.rate, update.round)
            steps = self._steps(state, update.round, 0, parts, keys, rate)
            rounds.append(steps)
            if self.average:
                state, correction = self._averaged(state, update.round, steps, [asked for asked, _ in parts], keys)
                rounds += correction
        return rounds_of(self._advance(state, rounds), updates)

    def gain(self, state: State | None, round: int) -> float:
        if self.rate != "auto":
            rate = rate_at(self.rate, round)
            if self.step == "plain":
                return rate
            return FARTHEST * rate * self.local_steps * longest(self.step, count_at(self.directions, round))
        # Before the first scalars nothing is known of it; after them it doubles in a round at most.
        return math.inf if state is None else 2 * self._pace(state).measured or math.inf

    def parts_of(self, update: Update) -> list[Part]:
        """What an update is the sum of: directions and their number follow from the rounds in which they were asked
        for, all else from the round of the step."""
        parts = [Seeded(g.asked, g.scalars) for g in update.groups] if isinstance(update, Stepped) else [update]
        return [(each.round, self.scalars_of(each).reshape(self.local_steps, -1)) for each in parts]

    def scalars_of(self, update: Update) -> F32:
        """The scalars of an update, as many as the recipe says."""
        expected = self.local_steps * count_at(self.directions, update.round)
        scalars = self.numbers_of(update) if isinstance(update, Seeded) else None
        if scalars is None or scalars.size != expected:
            found = "none" if scalars is None else scalars.size
            raise FedzeroError(f"round {update.round} has {found} scalars where {self.name} has {expected}")
        return scalars

    def directions_of(self, state: State, keys: Keys, round: int, step: int, count: int) -> tuple[int, ...]:
        """Keys of a step's directions as they are used: where the rate is being measured, those of the round before;
        with `hold`, the low halves are those of the first of ν rounds."""
        again = self.rate == "auto" and measures(round)
        own = round - 1 if again else round
        fresh = self.direction_keys(keys, own, step, count)
        if self.hold == 1:
            return fresh
        held = self.direction_keys(keys, own - own % self.hold, step, count)
        return tuple((new & ~LOW) | (old & LOW) for new, old in zip(fresh, held, strict=True))

    def _pace(self, state: State) -> Pace:
        if not isinstance(state.carry, Pace):
            raise FedzeroError(f"{self.name} has a state of its own and cannot use algorithm.rate = 'auto'")
        return state.carry

    def _reach(self, state: State) -> float:
        """How far a probe moves a coordinate, root mean square."""
        return self.radius / math.sqrt(state.params.size) if self.distribution == "unit-sphere" else self.radius

    def _local_rate(self, state: State, round: int, g: F32) -> float:
        """η of a client's own steps, which come before anybody knows the round's scalars; g is its first (1, P)."""
        if self.rate == "auto":
            return self._pace(state).begun(g, self._reach(state)).rate(round)
        return rate_at(self.rate, round)

    def _averaged(
        self, state: State, round: int, steps: Steps, asked: Sequence[int], keys: Keys
    ) -> tuple[State, list[Steps]]:
        """The state with a round's coefficients noted, and what takes the model to its mean, if a window ends."""
        if not isinstance(state.carry, Window):
            raise FedzeroError(f"{self.name} has a state of its own and cannot use algorithm.average")
        if round < self.average_from:
            return state, []
        window = state.carry.after(round, steps.terms[0].coefficients, self.average, self.average_from, asked)
        if (round + 1 - self.average_from) % self.average:
            return replace(state, carry=window), []
        parts = [
            Terms(self._all_directions(state, keys, window.asked(r)), coefficients, steps.terms[0].stream)
            for r, coefficients in window.correction(self.average, self.average_from).items()
        ]
        correction = Steps([joined(parts)], [keys.rounding(round, self.local_steps)], 0.0) if parts else None
        return replace(state, carry=Window()), [] if correction is None else [correction]

    def _all_directions(self, state: State, keys: Keys, asked: Sequence[int]) -> U64:
        """Keys of the terms of all local steps of a round, whose replies were asked for in some rounds."""
        parts = [(k, a, count_at(self.directions, a)) for k in range(self.local_steps) for a in asked]
        found = [key for k, a, P in parts for key in self.directions_of(state, keys, a, k, P)]
        return Terms.of(found, [0.0] * len(found), self.stream).keys

    def _steps(self, state: State, round: int, first: int, parts: Sequence[Part], keys: Keys, rate: float) -> Steps:
        """Local steps `first`, `first`+1, … of a round."""
        stream, plain = self.stream, self.optimizer.rule is Rule.SGD
        eta = -rate if plain else 1.0  # rules with a memory take the gradient and multiply by −η themselves
        terms = []
        for k, rows in enumerate(zip(*(g for _, g in parts), strict=True), first):
            weights = [eta * each for each in factors(self.step, rows)]
            given = zip((asked for asked, _ in parts), rows, weights, strict=True)
            terms.append(
                joined([average(self.directions_of(state, keys, a, k, g.size), g, w, stream) for a, g, w in given])
            )
        if plain:  # one sum, hence one rounding of 16-bit parameters, a round
            return Steps([joined(terms)], [keys.rounding(round, first)], rate)
        return Steps(terms, [keys.rounding(round, first + k) for k in range(len(terms))], rate)

    def _advance(self, state: State, rounds: Sequence[Steps]) -> State:
        """All steps of all rounds in one pass over memory."""
        if not rounds:
            return state
        carry = state.carry if isinstance(state.carry, Moments) else None
        taken = 0 if carry is None else carry.steps
        rates = [each.rate for each in rounds for _ in each.terms]
        program = Program.of(
            [terms for each in rounds for terms in each.terms],
            [key for each in rounds for key in each.rounding],
            self.optimizer.rule,
            [self.optimizer.hypers(rate, taken + s) for s, rate in enumerate(rates)],
        )
        state.params.advance(program, carry.vectors.slots if carry is not None and len(carry.vectors) else None)
        return state if carry is None else replace(state, carry=replace(carry, steps=taken + len(program)))


def average(keys: Sequence[int], g: F32, factor: float, stream: Stream) -> Terms:
    """factor · (1/P) Σ_p g_p z_p"""
    return Terms.of(keys, (factor / len(keys) * g.astype(np.float64)).astype(np.float32), stream)


def joined(parts: Sequence[Terms]) -> Terms:
    """Sums of terms as one sum."""
    if len(parts) == 1:
        return parts[0]
    return Terms(
        np.concatenate([t.keys for t in parts]), np.concatenate([t.coefficients for t in parts]), parts[0].stream
    )
