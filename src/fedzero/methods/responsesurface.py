"""Response surface: all parties are asked at the same points, so what they send is averaged into values of F itself.

    client i:   f_i at the points of the round
    server:     F = mean of f_i, appended to all values so far; a model of F says where to ask next
    everybody:  the values, the next plan and its points are the update

An exchange a round, and as many numbers up as points are asked. Our own composition of known parts (designed
experiments and quadratic fits of Box and Wilson, trust regions, Gaussian processes over gradients); the search is in
`fedzero.estimators.surface`. It uses linear algebra, whose last bits differ between machines, so only the server
searches: an update names what was decided, and applying it copies numbers. Points of stencils are not sent: they are
sums of two numbers.

Numbers travel as float64, since differences of values are what counts. F is known only where all parties have a value:
the mean over some of them is another function. A party that has none at a point says which it is, with a number beyond
all values: its function is not defined there (+inf or NaN), or did not answer. F is then +inf or NaN in the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedzero.estimators.surface import I64, Plan, Space, Trace, first_points, propose, stencil
from fedzero.methods import (
    ALL_DATA,
    F32,
    F64,
    Basis,
    Box,
    Contribution,
    Cost,
    Counts,
    Domain,
    Doubles,
    Federation,
    FedzeroError,
    Keys,
    Losses,
    Method,
    Params,
    RuleState,
    Samples,
    Scale,
    Seeded,
    State,
    StepInputs,
    Terms,
    Traits,
    Turn,
    Update,
    Work,
    advance_round,
    count_at,
    refuse_empty,
)
from fedzero.model.decoding import decoded

LARGEST = 1e100
"""Values beyond are taken for this: their squares can still be added."""
FAR = 1e-12
"""A part of the largest value of a round: float32 has room for it, and for what is left of it after two refinements."""
NOWHERE = float(np.finfo(np.float64).max)
"""In the place of a value: the function has none at the point."""
UNANSWERED = NOWHERE / 8
"""In the place of a value: it did not answer."""


class Decision(Struct, frozen=True, array_like=True):
    """An update: F at the points of the round (+inf: not defined, NaN: not known), the recommended point, and the next
    round's plan with its explicit points; float64, little-endian."""

    values: bytes
    x: bytes
    plan: Plan
    points: bytes


_decisions = msgspec.msgpack.Decoder(Decision)
_plans = msgspec.msgpack.Decoder(Plan)


@dataclass(frozen=True)
class Surface(RuleState):
    """All points so far, F there, whose neighbours they are; the plan and explicit points of the next round."""

    points: bytes = b""
    values: bytes = b""
    bases: bytes = b""
    plan: bytes = b""
    explicit: bytes = b""

    def estimate(self) -> tuple[float, float] | None:
        return _plans.decode(self.plan).estimate if self.plan else None


class ResponseSurface(Method, tag="response-surface"):
    """All parties are asked at the same points; a quadratic, then a Gaussian process over gradients, says where."""

    points: Counts | None = None
    """asked of every client in a round; default: one, and one for each coordinate"""
    steps: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """how many values each coordinate has, evenly spaced within the box; 0: any"""
    choices: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """coordinates whose values have no order"""
    box: Box = (0.0, 1.0)
    samples: Samples = "batch"

    def check(self, federation: Federation) -> None:
        Method.check(self, federation)
        refuse_empty(self.box)
        federation.expect(
            "response-surface averages values of the same parties", cohort=federation.clients, replacement=False
        )
        federation.expect("response-surface averages values, which may not be shortened", bound=0)
        if any(steps == 1 for steps in self.steps):
            raise FedzeroError("algorithm.steps = 1 leaves a coordinate one value: give 0 or 2 and more")
        if wrong := [i for i in self.choices if i >= len(self.steps) or self.steps[i] < 2]:
            raise FedzeroError(f"algorithm.choices names coordinate {wrong[0]}, which has no algorithm.steps")

    def space(self, dimension: int) -> Space:
        if self.steps and len(self.steps) != dimension:
            raise FedzeroError(f"algorithm.steps has {len(self.steps)} numbers in {dimension} dimensions")
        return Space(dimension, self.steps, self.choices)

    def batch(self, dimension: int, round: int) -> int:
        return 1 + self.space(dimension).neighbours if self.points is None else count_at(self.points, round)

    def traits(self, scale: Scale) -> Traits:
        return Traits(whole=True, unanimous=True, reads_each_reply=True, coder=Doubles())

    def cost(self, round: int, scale: Scale) -> Cost:
        count = self.batch(scale.size, round)
        return Cost((count,), count)

    def init(self, params: Params, clients: int) -> State:
        return State(params, Surface(), clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        _, points, _ = self._asked(state, turn.keys, turn.round)
        origin = state.params.clone()
        for _, flat in origin.flat():
            flat.zero_()  # points are given by their coordinates
        low, high = self.box
        columns = torch.from_numpy(low + points * (high - low)).to(origin.device)
        nowhere = Terms.of([], [], Domain.GAUSSIAN)
        sample = ALL_DATA if self.samples == "all" else 0
        values = yield Losses(origin, (nowhere,) * len(points), sample, Basis(columns), gaps=True)
        sent: NDArray[Any] = _sent(np.asarray(values, np.float64))  # wider than others send
        return Contribution(sent, _loss(values, _numbers(state.carry.values)))

    def _asked(self, state: State, keys: Keys, round: int) -> tuple[Plan, F64, I64]:
        """The plan of a round, its points in the unit box, (batch, d), and whose neighbours they are."""
        carry, d = state.carry, state.params.size
        space, count, batch = self.space(d), len(carry.values) // 8, self.batch(d, round)
        if carry.plan:
            plan, explicit = _plans.decode(carry.plan), _numbers(carry.explicit).reshape(-1, d)
        else:
            plan = Plan(centre=tuple(space.lift(self._start(state)[None])[0].tolist()))
            explicit = first_points(space, self._start(state), batch, keys.generator("design"))
        points, bases = stencil(space, plan, explicit, count)
        if len(points) != batch:  # planned for a round in which nobody answered, and `points` changed since
            plan = msgspec.structs.replace(plan, predicted=(), trials=0, stencils=0)
            points, bases = np.resize(explicit, (batch, d)), np.full(batch, -1)
        return plan, points, bases

    def _start(self, state: State) -> F64:
        (low, high), space = self.box, self.space(state.params.size)
        u = (state.params.vector().double().cpu().numpy() - low) / (high - low)
        start: F64 = space.lower(space.lift(np.clip(u, 0.0, 1.0)[None]))[0]
        return start

    def aggregate(self, gathered: StepInputs) -> Update:
        state = gathered.state
        assert state is not None
        space, (plan, points, bases) = self.space(state.params.size), self._asked(state, gathered.keys, gathered.round)
        values = self._mean(gathered)
        trace = _traced(state, points, values, bases)
        following = gathered.round + 1
        batch, random = self.batch(space.dimension, following), gathered.keys.generator("design", following)
        found = propose(trace, plan, space, batch, len(values), random)
        decision = Decision(_bytes(values), _bytes(found.x), found.plan, _bytes(found.points))
        return Seeded(gathered.round, msgspec.msgpack.encode(decision))

    def _mean(self, gathered: StepInputs) -> F64:
        """Of the values, to sixteen digits: what `combine` rounds to seven is refined by the combined remainder. Points
        that are far below others have a scale of their own: beside 1e100 at another point they would round to 0."""
        sent = {client: np.asarray(each, np.float64) for client, each in gathered.contributions.items()}
        nowhere, unanswered = _gaps(list(sent.values()))
        known = ~(nowhere | unanswered)
        values = {client: np.where(known, np.clip(each, -LARGEST, LARGEST), 0.0) for client, each in sent.items()}
        total = np.zeros(len(next(iter(values.values()))))
        for _ in range(3):
            own = np.max([np.abs(each - total) for each in values.values()], axis=0)
            scale = np.where(own > FAR * own.max(), own.max(), own)
            scale[scale == 0] = 1.0
            rest = {client: (each - total) / scale for client, each in values.items()}
            total = total + scale * gathered.combine(rest, gathered.weights).astype(np.float64)
        missing = len(values) < gathered.scale.clients
        total[unanswered | missing] = np.nan
        total[nowhere] = np.inf
        return total

    def decode_update(self, update: Update) -> F32:
        values = _numbers(_decision(update).values)
        most = np.finfo(np.float32).max
        found: F32 = np.clip(np.where(np.isfinite(values), values, 0.0), -most, most).astype(np.float32)
        return found

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in updates:
            found = _decision(update)
            _, points, bases = self._asked(state, keys, update.round)
            trace = _traced(state, points, _numbers(found.values), bases)
            carry = Surface(
                _bytes(trace.points),
                _bytes(trace.values),
                trace.bases.astype("<i8").tobytes(),
                msgspec.msgpack.encode(found.plan),
                found.points,
            )
            low, high = self.box
            x = torch.from_numpy(low + _numbers(found.x) * (high - low)).float()
            pieces = zip(state.params.tensors.items(), state.params.split(x.to(state.params.device)), strict=True)
            state.params.load({name: piece.view(tensor.shape) for (name, tensor), piece in pieces})
            state = advance_round(replace(state, carry=carry), [update])
        return state


def _sent(values: F64) -> F64:
    """Values as they travel: finite, whatever they are."""
    found = np.clip(values, -LARGEST, LARGEST)
    found[np.isinf(values)], found[np.isnan(values)] = NOWHERE, UNANSWERED
    return found


def _gaps(sent: Sequence[F64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Points at which a function is not defined, and others at which one did not answer, (points,) each.

    Filters may have added such numbers or shortened them to float32: what is left is still beyond all values.
    """
    most = np.max(np.abs(sent), axis=0)
    nowhere = ~(most < NOWHERE / 2)
    return nowhere, (most > np.sqrt(NOWHERE)) & ~nowhere


def _loss(values: F64, before: F64) -> float:
    """At the first point that has a value; where none has, the worst that is known of F, since a loss is a number."""
    for some in (values, np.sort(before)[::-1]):
        if (known := some[np.isfinite(some)]).size:
            return float(known[0])
    return 0.0


def _decision(update: Update) -> Decision:
    assert isinstance(update, Seeded)
    found: Decision = decoded(_decisions.decode, update.scalars, "an update of response-surface")
    return found


def _traced(state: State, points: F64, values: F64, bases: I64) -> Trace:
    """All that was asked, with a further exchange."""
    carry = state.carry
    return Trace(
        np.concatenate([_numbers(carry.points).reshape(-1, state.params.size), points]),
        np.concatenate([_numbers(carry.values), values]),
        np.concatenate([np.frombuffer(carry.bases, "<i8"), bases]),
    )


def _numbers(data: bytes) -> F64:
    return np.frombuffer(data, "<f8").astype(np.float64)


def _bytes(numbers: F64) -> bytes:
    return numbers.astype("<f8", copy=False).tobytes()
