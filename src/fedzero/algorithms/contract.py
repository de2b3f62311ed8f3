"""What a method is: a frozen value with pure functions, both halves of its paper in one file.

    init(params, clients) → State                         model and whatever the rule carries
    client(state, turn) → yields asks, returns Contribution   one client's part of a round
    aggregate(gathered) → Update                          what the ledger stores
    apply(state, updates, keys) → State                   server, replay and returning clients run the same line

    replay = apply(init(params, clients), ledger)

A round is one or more exchanges. In the middle of its part a client may yield `Share(values)`: the values go up, the
server makes one answer of everybody's (`share`), and the client is sent it as `Shared`. What a client wants to keep
until its next turn it returns with its contribution and finds in `turn.memory`.

`apply` consumes the state it is given: tensors are updated in place, and only the returned value may be used after.
Methods never know the engine, the task or who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from numpy.typing import NDArray

from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.filters import Combine
from fedzero.oracles import Answer, Ask
from fedzero.params import Params, Slots, from_bytes, to_bytes
from fedzero.updates import Update

Delivery = Literal["catch-up", "snapshot"]
"""How a client gets the model: the updates it missed, to fold; or the state (or the part of it that it needs)."""

Form = Literal["dense", "seeded", "auto"]
"""What travels: the numbers of the update, or the scalars of its directions. auto: whichever is fewer bytes."""

Memory = tuple[NDArray[Any], ...]
"""What a client keeps between its turns: arrays of any type."""


@dataclass(frozen=True)
class Scale:
    """How large a federation is: d and N."""

    size: int
    clients: int


@dataclass(frozen=True)
class Part:
    """What of a state a client needs when it is sent one: the parameters or not, and which slots (None: all)."""

    params: bool = True
    slots: tuple[int, ...] | None = None


EVERYTHING = Part()


@dataclass(frozen=True)
class State:
    """A replica: parameters, memory of the rule, and how far it has come.

    last: for methods that refer back to a client's previous turn, its round and scalars, by client.
    """

    params: Params
    slots: Slots | None = None
    round: int = 0
    steps: int = 0
    clients: int = 1
    last: Mapping[int, tuple[int, F32]] = field(default_factory=dict)

    @property
    def scale(self) -> Scale:
        return Scale(self.params.size, self.clients)

    def branch(self) -> State:
        """A copy to walk away with; *revert* is dropping it."""
        slots = None if self.slots is None else tuple(tuple(s.clone() for s in group) for group in self.slots)
        return replace(self, params=self.params.clone(), slots=slots)

    def slot(self, index: int) -> torch.Tensor:
        """Slot `index` of all tensors as one vector of d numbers, a copy."""
        assert self.slots is not None
        return torch.cat([group[index] for group in self.slots])

    def set_slot(self, index: int, vector: torch.Tensor) -> None:
        """Overwrite slot `index` of all tensors from a vector of d numbers."""
        assert self.slots is not None
        for group, piece in zip(self.slots, self.params.split(vector), strict=True):
            group[index].copy_(piece)

    def _tensors(self, part: Part) -> list[torch.Tensor]:
        groups = self.slots or ()
        kept = [s for group in groups for i, s in enumerate(group) if part.slots is None or i in part.slots]
        return [*(self.params.tensors.values() if part.params else ()), *kept]

    def to_bytes(self, part: Part = EVERYTHING) -> bytes:
        """Parameters and rule memory as raw bytes; round and steps travel beside them."""
        return to_bytes(self._tensors(part))

    def restored(self, data: bytes, round: int, steps: int, part: Part = EVERYTHING) -> State:
        """This state with its tensors overwritten from `to_bytes`."""
        from_bytes(data, self._tensors(part))
        self.params.changed()
        return replace(self, round=round, steps=steps)


@dataclass(frozen=True)
class Turn:
    """What a client knows when it works; `memory` is what it returned at its last turn that counted, or None."""

    round: int
    client: int
    keys: Keys
    memory: Memory | None = None


@dataclass(frozen=True, eq=False)
class Share:
    """Values a client sends in the middle of a round; it is sent what the server makes of everybody's."""

    values: F32
    loss: float


@dataclass(frozen=True, eq=False)
class Shared:
    """What came of a `Share`: one vector for all, and whose values are in it.

    own: what this client shared, *as the server read it*, for both sides to agree where a filter changed it.
    """

    values: F32
    clients: tuple[int, ...] = ()
    own: F32 | None = None


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a client gives: the numbers of the method, and its training loss before local work.

    remember: makes the client's memory from the values *as the server will read them*, so that both sides agree even
    where a filter changed the values on their way.
    """

    values: F32
    loss: float
    remember: Callable[[F32], Memory] | None = None


Work = Generator[Ask | Share, Answer, Contribution]


@dataclass(frozen=True)
class Gathered:
    """What an exchange brought.

    contributions: by client; weights: how often each was drawn (1 unless clients are sampled with replacement);
    shared: contributions of the round's earlier exchanges; combine: the average, or what a filter puts in its place;
    state: the server's, before the round; None on a server without a model.
    """

    round: int
    scale: Scale
    keys: Keys
    contributions: Mapping[int, F32]
    weights: Mapping[int, int]
    combine: Combine
    state: State | None = None
    shared: tuple[Mapping[int, F32], ...] = ()

    def mean(self) -> F32:
        """The contributions as one, the same whatever order they came in."""
        return self.combine(self.contributions, self.weights)

    @property
    def turns(self) -> tuple[int, ...]:
        """The clients, sorted, each as often as it was drawn."""
        return tuple(c for c in sorted(self.contributions) for _ in range(self.weights[c]))


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

    @property
    def exchanges(self) -> int:
        """How many replies a client gives in a round: one more than it yields `Share`."""
        ...

    def check(self, clients: int, cohort: int, private: bool, replacement: bool = False) -> None:
        """Raise `FedzeroError` for a federation the method cannot serve."""
        ...

    def seeded(self, scale: Scale) -> bool:
        """True if updates are scalars of directions; then the ledger keeps them all and any round can be replayed."""
        ...

    def delivery(self, scale: Scale) -> Delivery: ...

    def addable(self, scale: Scale) -> bool:
        """True if number j of two contributions means the same, so that a mean (or a median) of them has a meaning."""
        ...

    def remembers(self, scale: Scale) -> bool:
        """True if clients keep something between their turns."""
        ...

    def makes_up(self, scale: Scale) -> bool:
        """True if a client sends next time, by the method itself, what a filter left out this time."""
        ...

    def part(self, client: int, scale: Scale) -> Part:
        """What a client needs of a state that is sent to it."""
        ...

    def digest(self, state: State, client: int) -> bytes:
        """Of the model that a client's values are computed on."""
        ...

    def expects(self, round: int, scale: Scale, exchange: int) -> int:
        """How many numbers a reply has."""
        ...

    def queries(self, round: int) -> int:
        """How often a client asks its function in a round, by the paper's formula."""
        ...

    @property
    def first_queries(self) -> int:
        """How often beside that in its first turn (until one has counted)."""
        ...

    def init(self, params: Params, clients: int) -> State: ...
    def client(self, state: State, turn: Turn) -> Work: ...
    def share(self, gathered: Gathered) -> Shared: ...
    def aggregate(self, gathered: Gathered) -> Update: ...
    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State: ...


class Defaults:
    """What most methods answer: values only, a server that holds the model, one exchange, nothing to remember."""

    __slots__ = ()

    first_order = False
    server_model = True
    sync = False
    pull_after: int | None = None
    exchanges = 1
    first_queries = 0

    def check(self, clients: int, cohort: int, private: bool, replacement: bool = False) -> None:
        if private:
            raise FedzeroError("federation.private = true needs a method whose server holds no model (decomfl)")

    def seeded(self, scale: Scale) -> bool:
        return True

    def delivery(self, scale: Scale) -> Delivery:
        return "catch-up" if self.seeded(scale) else "snapshot"

    def addable(self, scale: Scale) -> bool:
        return True

    def remembers(self, scale: Scale) -> bool:
        return False

    def makes_up(self, scale: Scale) -> bool:
        return False

    def part(self, client: int, scale: Scale) -> Part:
        return EVERYTHING

    def digest(self, state: State, client: int) -> bytes:
        return state.params.digest()

    def share(self, gathered: Gathered) -> Shared:
        raise NotImplementedError("a method whose clients share says what becomes of it")

    def init(self, params: Params, clients: int) -> State:
        return State(params, clients=clients)


def rounds_of(state: State, updates: Sequence[Update]) -> State:
    """Check that `updates` carry on where the state stands, in order; the state after them, tensors aside."""
    expected = state.round
    for update in updates:
        if update.round < expected:
            raise FedzeroError(f"update of round {update.round} comes after round {expected - 1} was applied")
        expected = update.round + 1
    return replace(state, round=expected)
