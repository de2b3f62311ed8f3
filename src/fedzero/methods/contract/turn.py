"""What a client is given, what it gives, and what the server makes a step of."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from fedzero.callbacks import ignore
from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.links import Combine
from fedzero.links.contract import Contribution as Contribution
from fedzero.links.gathering import Total
from fedzero.methods.contract.federation import Scale
from fedzero.methods.contract.state import State
from fedzero.oracles import Answer, Ask

Memory = tuple[NDArray[Any], ...]
"""What a client keeps between its turns: arrays of any type."""


Observer = Callable[[int, Tensor, Tensor], None]
"""Is told of every local step that is a vector of numbers: its number, the gradient, and what is added to x."""


class Turn(Struct, frozen=True, eq=False):
    """What a client knows when it works; `memory` is what it returned at its last turn that counted, or None.

    cache: per process; holds only what can be recomputed from `memory`, and a run must not depend on it.
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
