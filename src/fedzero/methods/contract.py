"""What a method is: a frozen value with pure functions, both halves of its paper in one file.

    traits(scale) → Traits                                what the method is
    cost(round, scale) → Cost                             numbers up and queries of a round
    client(state, turn) → yields asks, returns Contribution   one client's part of a round
    aggregate(gathered) → Update                          what the ledger stores
    apply(state, updates, keys) → State                   server, replay and returning clients run the same line

    replay = apply(init(params, clients), ledger)

These five make a method; `init`, `share` and `check` have defaults. Where the update is a sum of directions that all
clients share, `SeededMethod` (seeded.py) has all four, and a method says only where its paper differs.

A round is one or more exchanges. In the middle of its part a client may yield `Intermediate(values)`: the values go up,
the server makes one answer of everybody's (`share`), and the client is sent it as `IntermediateResult`. What a client
wants to keep until its next turn it returns with its contribution and finds in `turn.memory`.

`apply` consumes the state it is given: tensors are updated in place, and only the returned value may be used after.
Methods never know the engine, the task or who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor

from fedzero.callbacks import ignore
from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.links import Coder, Combine
from fedzero.links.coders import Plain
from fedzero.links.contract import Contribution as Contribution
from fedzero.links.gathering import Total
from fedzero.model.decoding import decoded
from fedzero.model.numbers import NonNegative
from fedzero.model.params import Params, Slots, from_bytes, to_bytes
from fedzero.model.updates import Dense, Update, parts_of, unpack
from fedzero.model.value import Checked, TaggedConfig
from fedzero.oracles import Answer, Ask

Delivery = Literal["catch-up", "snapshot", "fewer"]
"""How a client gets the model: the updates it missed, to fold; the state (or the part of it that it needs); or
whichever of the two is fewer bytes, where the server has a state."""

Form = Literal["dense", "seeded", "auto"]
"""What travels: the numbers of the update, or the scalars of its directions. auto: whichever is fewer bytes."""

Memory = tuple[NDArray[Any], ...]
"""What a client keeps between its turns: arrays of any type."""

Numbers = int | bytes
"""What a state holds beside its tensors, as it travels: one count, or msgpack of several values."""


PLAIN = Plain()
READS_STATE = "its replies are read beside the state that they were computed at"
"""What holds of a method that does not say otherwise, see `Traits.reads_state`."""
MAX_ABS_COORDINATE = 7.0
"""No coordinate of a direction is larger: Box–Muller of 32 bits reaches √(2 ln 2³³) = 6.8."""
MOST_CLIENTS = 10_000_000
"""The server keeps two numbers for each, from the first round on."""


class Federation(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who takes part, and who holds the model."""

    clients: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    """N"""
    cohort: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    """m, sampled uniformly each round"""
    replacement: bool = False
    """Sample with replacement: a client drawn twice takes part once and weighs twice."""
    private: bool = False
    """Derive directions from a secret that the clients share and the server does not know."""
    server_model: bool = True
    """False: the server averages scalars and holds no model; only the clients do."""
    sync: bool = False
    """Send the update of a round to its cohort at once, not only before a client's next turn."""
    pull_after: Annotated[int, Meta(ge=1)] | None = None
    """A client that missed more rounds than this is sent the whole model instead of the updates."""
    bound: NonNegative = 0.0
    """Numbers of a client are scaled down to a norm of at most so many times the median of its round (of 3 clients or
    more); 0: never. A recipe that says nothing of it has 1.5."""

    def expect(self, why: str, **wanted: Any) -> None:
        """Refuse a federation whose fields have other values; `why` begins the sentence."""
        for name, value in wanted.items():
            found = getattr(self, name)
            if found != value:
                remedy = f"leave out federation.{name}" if value is None else f"set federation.{name} = {_toml(value)}"
                raise FedzeroError(f"{why}: {remedy} (not {_toml(found)})")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Scale:
    """How large a federation is: d and N."""

    size: int
    clients: int


@dataclass(frozen=True)
class Traits:
    """What a method is, in a federation of a scale; what may stand beside it follows from these.

    seeded: updates are scalars of directions; then the ledger keeps them all, and any round can be replayed.
    comparable: number j of two contributions means the same, so that a mean (or a median) of them has a meaning.
    remembers: clients keep something between their turns. self_correcting: a client sends next time, by the method
    itself, what a filter left out this time. first_order: clients are given gradients; all others get values only.
    delivery: updates a client missed, or the state. whole: numbers are values of functions, so that one left out cannot
    count as 0, nor be added to that of another point. unanimous: a round is of use only if all clients answer.
    reads_state: why a reply means nothing beside another state than the one it was computed at; empty: keys and the
    round in which it was asked for say it all, so that a step may be made of the replies of several rounds.
    reads_each_reply: `aggregate` or `share` look at `gathered.contributions`, and not at `gathered.mean()` alone.
    coder: how the numbers of a contribution are written where no link says otherwise.
    """

    seeded: bool = True
    comparable: bool = True
    remembers: bool = False
    self_correcting: bool = False
    first_order: bool = False
    delivery: Delivery = "catch-up"
    whole: bool = False
    unanimous: bool = False
    reads_state: str = READS_STATE
    reads_each_reply: bool = False
    coder: Coder = PLAIN


@dataclass(frozen=True)
class Cost:
    """What a round costs a client.

    replies: how many numbers a client sends in each exchange of the round, hence how many exchanges there are.
    queries: how often a client asks its function, by the paper's formula; first_queries: how often beside that in its
    first turn (until one has counted).
    """

    replies: tuple[int, ...]
    queries: int
    first_queries: int = 0


@dataclass(frozen=True)
class Vectors:
    """Vectors of d numbers beside the parameters, float32, kept tensor by tensor: `slots[t][i]` is vector i's part."""

    slots: Slots

    @staticmethod
    def zeros(params: Params, count: int) -> Vectors:
        return Vectors(params.slots(count))

    def __getitem__(self, index: int) -> Tensor:
        """Vector `index`, (d,), a copy."""
        return torch.cat([group[index] for group in self.slots])

    def __len__(self) -> int:
        return len(self.slots[0])

    def set(self, index: int, vector: Tensor) -> None:
        """Overwrite vector `index` from d numbers."""
        pieces = torch.split(vector, [group[index].numel() for group in self.slots])
        for group, piece in zip(self.slots, pieces, strict=True):
            group[index].copy_(piece)

    def clone(self) -> Vectors:
        return Vectors(tuple(tuple(s.clone() for s in group) for group in self.slots))

    def tensors(self, chosen: Sequence[int] | None = None) -> list[Tensor]:
        return [s for group in self.slots for i, s in enumerate(group) if chosen is None or i in chosen]


@dataclass(frozen=True)
class Part:
    """What of a state a client needs when it is sent one: the parameters or not, and which vectors (None: all)."""

    params: bool = True
    vectors: tuple[int, ...] | None = None


EVERYTHING = Part()


@dataclass(frozen=True)
class RuleState:
    """What a method's rule carries from round to round beside the parameters.

    Derive a frozen dataclass whose fields are `Vectors`, tensors, and plain values that msgpack can write. All of it is
    in checkpoints, in snapshots and in what a site keeps on its disk.
    """

    def part(self, client: int) -> Part:
        """What of the state this client needs when it is sent one."""
        return EVERYTHING

    def model(self, params: Params, client: int) -> Params:
        """The model that this client's values are computed on."""
        return params

    def rebuild_params(self, params: Params, keys: Keys) -> None:
        """Overwrite parameters that a state came without (see `part`): they follow from the rest of it."""

    def estimate(self) -> tuple[float, float] | None:
        """Where the method has one: the objective's value at the parameters, and its standard error."""
        return None

    def tensors(self, chosen: Sequence[int] | None = None) -> list[Tensor]:
        found: list[Tensor] = []
        for value in self._values():
            found += (
                value.tensors(chosen) if isinstance(value, Vectors) else [value] if isinstance(value, Tensor) else []
            )
        return found

    def _values(self) -> Iterable[Any]:
        return (getattr(self, each.name) for each in fields(self))

    def numbers(self) -> Numbers:
        """The plain values: 0 where there are none, or all are empty; one count as it is; else all of them, packed."""
        plain = [value for value in self._values() if not isinstance(value, Vectors | Tensor)]
        if not any(plain):
            return 0
        return plain[0] if len(plain) == 1 and isinstance(plain[0], int) else msgspec.msgpack.encode(plain)

    def with_numbers(self, numbers: Numbers) -> RuleState:
        """This value with the plain values that `numbers` gave."""
        plain = [each.name for each in fields(self) if not isinstance(getattr(self, each.name), Vectors | Tensor)]
        if isinstance(numbers, bytes):
            found = decoded(_values.decode, numbers, "the values of a state")
            if len(found) != len(plain):
                raise FedzeroError(f"a state with {len(found)} values where {type(self).__name__} has {len(plain)}")
            return replace(
                self, **{name: _like(getattr(self, name), value) for name, value in zip(plain, found, strict=True)}
            )
        if len(plain) == 1 and isinstance(getattr(self, plain[0]), int):
            return replace(self, **{plain[0]: numbers})
        return self

    @property
    def empty(self) -> bool:
        """Whether nothing is carried: there is no value to write."""
        return type(self) is RuleState

    def clone(self) -> RuleState:
        copied = {
            each.name: value.clone()
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), Vectors | Tensor)
        }
        return replace(self, **copied)


_values = msgspec.msgpack.Decoder(list[Any], strict=False)


def _like(before: Any, value: Any) -> Any:
    """Lists that msgpack made of tuples, as they were."""
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    found = tuple(value) if isinstance(before, tuple) and isinstance(value, list) else value
    fits = before is None or isinstance(found, type(before)) or (isinstance(before, float) and isinstance(found, int))
    if not fits:
        raise FedzeroError(f"a state with a value of type {type(found).__name__} for a {type(before).__name__}")
    return found


NOTHING = RuleState()

"""Its name in 0.2."""


@dataclass(frozen=True)
class State:
    """A replica: parameters, how many rounds it has seen, how many clients there are, and what the rule carries."""

    params: Params
    carry: Any = NOTHING
    round: int = 0
    clients: int = 1

    @property
    def scale(self) -> Scale:
        return Scale(self.params.size, self.clients)

    def branch(self) -> State:
        """A copy to walk away with; *revert* is dropping it."""
        return replace(self, params=self.params.clone(), carry=self.carry.clone())

    def digest(self, client: int) -> bytes:
        """Of the model that a client's values are computed on."""
        digest: bytes = self.carry.model(self.params, client).digest()
        return digest

    def tensors(self, part: Part = EVERYTHING) -> list[Tensor]:
        return [*(self.params.tensors.values() if part.params else ()), *self.carry.tensors(part.vectors)]

    @property
    def numbers(self) -> Numbers:
        numbers: Numbers = self.carry.numbers()
        return numbers

    def to_bytes(self, part: Part = EVERYTHING) -> bytes:
        """Tensors as raw bytes; round and numbers travel beside them."""
        return to_bytes(self.tensors(part))

    def restored(self, data: bytes, round: int, numbers: Numbers, part: Part = EVERYTHING) -> State:
        """This state with its tensors overwritten from `to_bytes`."""
        from_bytes(data, self.tensors(part))
        self.params.changed()
        return replace(self, round=round, carry=self.carry.with_numbers(numbers))


Observer = Callable[[int, Tensor, Tensor], None]
"""Is told of every local step that is a vector of numbers: its number, the gradient, and what is added to x."""


class Turn(Struct, frozen=True, eq=False):
    """What a client knows when it works; `memory` is what it returned at its last turn that counted, or None.

    cache: of the process the client is in, for what can be made again from the memory; a run must not depend on it.
    """

    round: int
    client: int
    keys: Keys
    memory: Memory | None = None
    cache: MutableMapping[Any, Any] = msgspec.field(default_factory=dict)
    observe: Observer = ignore


@dataclass(frozen=True, eq=False)
class Intermediate:
    """Values a client sends in the middle of a round; it is sent what the server makes of everybody's."""

    values: F32
    loss: float


@dataclass(frozen=True, eq=False)
class IntermediateResult:
    """What came of a `Intermediate`: one vector for all, and whose values are in it.

    own: what this client shared, *as the server read it*, for both sides to agree where a filter changed it.
    """

    values: F32
    clients: tuple[int, ...] = ()
    own: F32 | None = None


Work = Generator[Ask | Intermediate, Answer, Contribution]


@dataclass(frozen=True)
class StepInputs:
    """What an exchange brought.

    contributions: by client; weights: how often each was drawn (1 unless clients are sampled with replacement);
    shared: contributions of the round's earlier exchanges; combine: the average, or what a filter puts in its place;
    state: the server's, before the round; None on a server without a model.
    asked: by client, the round whose question it answered, and discounts: what its reply weighs beside a fresh one;
    empty where all answered the question of this round.
    totals: of every exchange of the round, where a gathering hides the replies; `contributions` cannot be read then.
    """

    round: int
    scale: Scale
    keys: Keys
    contributions: Mapping[int, F32]
    weights: Mapping[int, int]
    combine: Combine
    state: State | None = None
    shared: tuple[Mapping[int, F32], ...] = ()
    asked: Mapping[int, int] = field(default_factory=dict)
    discounts: Mapping[int, float] = field(default_factory=dict)
    totals: tuple[Total, ...] = ()

    def mean(self, exchange: int = -1) -> F32:
        """The contributions as one, the same whatever order they came in; of an earlier exchange, if one is given."""
        if self.totals:
            return self.totals[exchange].mean()
        return self.combine((*self.shared, self.contributions)[exchange], self.weights)

    @property
    def turns(self) -> tuple[int, ...]:
        """The clients, sorted, each as often as it was drawn."""
        clients = self.totals[-1].clients if self.totals else self.contributions
        return tuple(c for c in sorted(clients) for _ in range(self.weights[c]))


class Method(TaggedConfig):
    """The contract. The fields are the hyper-parameters, and the keys of a recipe's `[algorithm]` table."""

    @property
    def name(self) -> str:
        """The tag, by which recipes choose the method."""
        return str(self.__struct_config__.tag)

    def traits(self, scale: Scale) -> Traits:
        """What the method is, in a federation of this scale."""
        return Traits()

    def cost(self, round: int, scale: Scale) -> Cost:
        """Numbers that a client sends in a round, and its queries."""
        raise NotImplementedError

    def client(self, state: State, turn: Turn) -> Work:
        """One client's part of a round: a generator that yields asks or an `Intermediate`; returns its contribution."""
        raise NotImplementedError

    def aggregate(self, gathered: StepInputs) -> Update:
        """What becomes of the contributions of a round."""
        raise NotImplementedError

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        """The state after updates; the same bits for many at once as for one after the other."""
        raise NotImplementedError

    def init(self, params: Params, clients: int) -> State:
        """The state before round 0."""
        return State(params, clients=clients)

    def share(self, gathered: StepInputs) -> IntermediateResult:
        """What everybody is sent of what clients shared; only for rounds of several exchanges."""
        raise NotImplementedError

    def decode_update(self, update: Update) -> F32:
        """The numbers of an update, for those who look at their size."""
        return unpack(update.values if isinstance(update, Dense) else b"".join(part for _, part in parts_of(update)))

    def max_update_scale(self, state: State, round: int) -> float:
        """How much the numbers of an update can weigh in the model, at most: |Δx| ≤ scale · |what the update sums to|.

        A cheap upper bound. Updates above it are tested before they are committed.
        """
        return 1.0

    def check(self, federation: Federation) -> None:
        """Raise `FedzeroError` for a federation the method cannot serve."""
        why = "needs a server that holds the model and sends it to clients before their turns (decomfl does not)"
        federation.expect(f"{self.name} {why}", private=False, server_model=True, sync=False, pull_after=None)


def advance_round(state: State, updates: Sequence[Update]) -> State:
    """Check that `updates` carry on where the state stands, in order; the state after them, tensors aside."""
    expected = state.round
    for update in updates:
        if update.round < expected:
            raise FedzeroError(f"update of round {update.round} comes after round {expected - 1} was applied")
        expected = update.round + 1
    return replace(state, round=expected)


"""Its name in 0.2."""
