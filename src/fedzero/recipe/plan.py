"""What the rounds of a run follow from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.links import NO_FILTERS, Chain, Link
from fedzero.links.bound import Bound
from fedzero.methods.contract import Cost, Federation, Method, Scale, Traits


def cohort_of(keys: Keys, round: int, federation: Federation) -> tuple[int, ...]:
    """C_r, sorted; with replacement a client may be in it more than once."""
    clients, cohort = federation.clients, federation.cohort
    if cohort == clients and not federation.replacement:
        return tuple(range(clients))
    return drawn_from(keys.generator("cohort", round), federation)


def drawn_from(generator: np.random.Generator, federation: Federation) -> tuple[int, ...]:
    """A cohort, sorted."""
    clients, cohort = federation.clients, federation.cohort
    chosen = generator.choice(clients, cohort, replace=federation.replacement, shuffle=False)
    return tuple(np.sort(chosen).tolist())


@dataclass(frozen=True)
class Plan:
    """What the rounds of a run follow from: the recipe made concrete, without task and data. `size` is d; `least_loss`
    of the task; private_sampling: no cohort follows from the keys."""

    algorithm: Method
    federation: Federation
    keys: Keys
    size: int
    chain: Chain = NO_FILTERS
    least_loss: float = -math.inf
    private_sampling: bool = False
    _costs: dict[int, Cost] = field(default_factory=dict, repr=False, compare=False)
    """of the round that is being played; asked for often"""

    @property
    def scale(self) -> Scale:
        return Scale(self.size, self.federation.clients)

    @cached_property
    def traits(self) -> Traits:
        return self.algorithm.traits(self.scale)

    def cost(self, round: int) -> Cost:
        if round not in self._costs:
            self._costs.clear()
            self._costs[round] = self.algorithm.cost(round, self.scale)
        return self._costs[round]

    def cohort(self, round: int) -> tuple[int, ...]:
        """As the keys say; of a run with private sampling it was another."""
        return cohort_of(self.keys, round, self.federation)

    def outcome(self, round: int, contributions: Mapping[int, F32]) -> F32:
        """What the server makes of contributions that clients of a round send, if they can be compared."""
        weights = Counter(self.cohort(round))
        return self.chain.outcome(contributions, weights, *self.bound(round))

    def bound(self, round: int) -> tuple[Link, ...]:
        """The link that `federation.bound` is, before all others on the server; it marks whom it shortens, or, where
        clients keep account of what they sent, refuses. There is none where a gathering hides the replies."""
        if self.chain.hides_replies:
            return ()
        factor, accounts = self.federation.bound, self.traits.remembers and not self.traits.comparable
        return (Bound(factor=factor, accounts=accounts),) if factor else ()
