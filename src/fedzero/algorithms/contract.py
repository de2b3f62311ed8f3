"""What a method is: a frozen value with pure functions, both halves of its paper in one file.

    init(params) → State                                  model and whatever the rule carries
    client(state, turn) → yields asks, returns Contribution   one client's part of a round
    aggregate(round, contributions) → Update              what the ledger stores
    apply(state, updates, keys) → State                   server, replay and returning clients run the same line

    replay = apply(init(params), ledger)

`apply` consumes the state it is given: tensors are updated in place, and only the returned value may be used after.
Methods never know the engine, the task or who asked.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch

from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.oracles import Answer, Ask
from fedzero.params import Params, Slots, from_bytes, to_bytes
from fedzero.updates import Update

Delivery = Literal["catch-up", "snapshot"]
"""How a client gets the model: the updates it missed, to fold; or the whole state."""


@dataclass(frozen=True)
class State:
    """A replica: parameters, memory of the rule, and how far it has come."""

    params: Params
    slots: Slots | None = None
    round: int = 0
    steps: int = 0

    def branch(self) -> State:
        """A copy to walk away with; *revert* is dropping it."""
        slots = None if self.slots is None else tuple(tuple(s.clone() for s in group) for group in self.slots)
        return replace(self, params=self.params.clone(), slots=slots)

    def _all_tensors(self) -> list[torch.Tensor]:
        return [*self.params.tensors.values(), *(s for group in self.slots or () for s in group)]

    def to_bytes(self) -> bytes:
        """Parameters and rule memory as raw bytes; round and steps travel beside them."""
        return to_bytes(self._all_tensors())

    def restored(self, data: bytes, round: int, steps: int) -> State:
        """This state with its tensors overwritten from `to_bytes`."""
        other = self.branch()
        from_bytes(data, other._all_tensors())
        self.params.load(other.params.tensors)
        for mine, theirs in zip(self.slots or (), other.slots or (), strict=True):
            for target, source in zip(mine, theirs, strict=True):
                target.copy_(source)
        return replace(self, round=round, steps=steps)


@dataclass(frozen=True)
class Turn:
    """What a client knows when it works."""

    round: int
    client: int
    keys: Keys


@dataclass(frozen=True)
class Contribution:
    """What a client gives: the numbers of the method, and its training loss before local work."""

    values: F32
    loss: float


Work = Generator[Ask, Answer, Contribution]


class Algorithm(Protocol):
    """The contract. `first_order` methods get an oracle that also gives gradients; all others get values only."""

    @property
    def name(self) -> str: ...
    @property
    def first_order(self) -> bool: ...
    @property
    def server_model(self) -> bool:
        """False if the server only averages scalars and never holds the model."""
        ...

    @property
    def sync(self) -> bool:
        """True if clients get the round's outcome at its end instead of at their next turn."""
        ...

    @property
    def pull_after(self) -> int | None:
        """A client that missed more rounds than this gets the whole state instead of the updates."""
        ...

    def check(self, clients: int, cohort: int, private: bool) -> None:
        """Raise `FedzeroError` for a federation the method cannot serve."""
        ...

    def delivery(self, size: int) -> Delivery: ...

    def expects(self, round: int, size: int) -> int:
        """How many numbers a contribution has, for a model of `size` parameters."""
        ...

    def init(self, params: Params) -> State: ...
    def client(self, state: State, turn: Turn) -> Work: ...
    def aggregate(self, round: int, size: int, contributions: Mapping[int, F32]) -> Update: ...
    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State: ...


def rounds_of(state: State, updates: Sequence[Update]) -> State:
    """Check that `updates` carry on where the state stands, in order; the state after them, tensors aside."""
    expected = state.round
    for update in updates:
        if update.round < expected:
            raise FedzeroError(f"update of round {update.round} comes after round {expected - 1} was applied")
        expected = update.round + 1
    return replace(state, round=expected)


def mean(contributions: Mapping[int, F32]) -> F32:
    """The average over clients, the same whatever order they answered in: float64, by client number."""
    ordered = [contributions[client] for client in sorted(contributions)]
    total = ordered[0].astype("f8")
    for values in ordered[1:]:
        total += values
    return (total / len(ordered)).astype("f4")
