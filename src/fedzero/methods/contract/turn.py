"""The inputs and outputs of a client's turn, and the inputs of a server's step."""

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
from fedzero.links.contract import Contribution
from fedzero.links.gathering import Total
from fedzero.methods.contract.federation import Scale
from fedzero.methods.contract.state import State
from fedzero.oracles import Answer, Ask, Poisson

Memory = tuple[NDArray[Any], ...]
"""A client's memory between its turns: arrays of any type."""


Observer = Callable[[int, Tensor, Tensor], None]
"""Is told of every local step that is a vector of numbers: the step's index, the gradient, and the change of x."""


class Turn(Struct, frozen=True, eq=False):
    """The inputs of a client's work. memory: the client's memory from its last turn that counted, or None.

    cache: per process; holds only what can be recomputed from `memory`, so a run never depends on it.
    rows: a link reads the contributions of single units of such a batch; the method's `Contribution` has them (`rows`).
    None, and default: one contribution for the data of each step.
    """

    round: int
    client: int
    keys: Keys
    memory: Memory | None = None
    cache: MutableMapping[Any, Any] = msgspec.field(default_factory=dict)
    observe: Observer = ignore
    rows: Poisson | None = None


@dataclass(frozen=True, eq=False)
class Intermediate:
    """Values that a client sends in the middle of a round; the server combines them with those of the others."""

    values: F32
    loss: float


@dataclass(frozen=True, eq=False)
class IntermediateResult:
    """The server's answer to an `Intermediate`: one vector for all, and the clients whose values are in it.

    own: the values of this client, *as the server read them*, so that both sides agree even if a filter changed them.
    """

    values: F32
    clients: tuple[int, ...] = ()
    own: F32 | None = None


Work = Generator[Ask | Intermediate, Answer, Contribution]


@dataclass(frozen=True)
class StepInputs:
    """The results of an exchange.

    contributions: by client; weights: how often each was drawn (1 unless clients are sampled with replacement);
    shared: contributions of the round's earlier exchanges; combine: the average, or a filter's replacement of it;
    state: the server's, before the round; None on a server without a model.
    asked: by client that answered the question of an earlier round, that round; discounts: the weight of its reply, 1
    for a fresh one; both are empty if all answered the question of this round.
    totals: of every exchange of the round, if a gathering hides the replies; `contributions` cannot be read then.
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
        """The contributions combined into one vector, whatever their order; by default those of the last exchange."""
        if self.totals:
            return self.totals[exchange].mean()
        return self.combine((*self.shared, self.contributions)[exchange], self.weights)

    @property
    def turns(self) -> tuple[int, ...]:
        """The clients, sorted, each as often as it was drawn."""
        clients = self.totals[-1].clients if self.totals else self.contributions
        return tuple(c for c in sorted(clients) for _ in range(self.weights[c]))
