"""The plan of a run: everything that determines its rounds, without task and data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.links import NO_FILTERS, Chain, Link
from fedzero.links.bound import Bound
from fedzero.methods.contract import Cost, Federation, Method, Scale, Traits
from fedzero.recipe.privacy import Privacy


def cohort_of(keys: Keys, round: int, federation: Federation) -> tuple[int, ...]:
    """C_r, sorted; with replacement a client may be in the cohort more than once."""
    clients, cohort = federation.clients, federation.cohort
    if cohort == clients and not federation.replacement:
        return tuple(range(clients))
    return drawn_from(keys.generator("cohort", round), federation)


def drawn_from(generator: np.random.Generator, federation: Federation) -> tuple[int, ...]:
    """A cohort drawn from `generator`, sorted."""
    clients, cohort = federation.clients, federation.cohort
    chosen = generator.choice(clients, cohort, replace=federation.replacement, shuffle=False)
    return tuple(np.sort(chosen).tolist())


@dataclass(frozen=True)
class Plan:
    """The recipe made concrete, without task and data. size: d; least_loss: of the task; private_sampling: cohorts do
    not follow from the keys. privacy: of the recipe, with σ; rounds: R; numbers: the most of a reply."""

    algorithm: Method
    federation: Federation
    keys: Keys
    size: int
    chain: Chain = NO_FILTERS
    least_loss: float = -math.inf
    private_sampling: bool = False
    privacy: Privacy | None = None
    rounds: int = 1
    numbers: int = 1
    _costs: dict[int, Cost] = field(default_factory=dict, repr=False, compare=False)
    """the cost of the current round, which is asked for often"""

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

    def drawn(self, generator: np.random.Generator) -> tuple[int, ...]:
        """A cohort drawn from a private generator."""
        if self.privacy is None:
            return drawn_from(generator, self.federation)
        return self.privacy.drawn(generator, self.federation)

    def can_be_drawn(self, cohort: Sequence[int]) -> bool:
        """Whether `drawn` can return this cohort."""
        m, N = self.federation.cohort, self.federation.clients
        once = len(set(cohort)) == len(cohort)
        if not all(0 <= client < N for client in cohort):
            return False
        return once if self.privacy is not None else len(cohort) == m and (once or self.federation.replacement)

    def cohort(self, round: int) -> tuple[int, ...]:
        """The cohort that follows from the keys; with private sampling the real one was different."""
        return cohort_of(self.keys, round, self.federation)

    def outcome(self, round: int, contributions: Mapping[int, F32]) -> F32:
        """The vector into which the server combines contributions of a round's clients, if they can be compared."""
        weights = Counter(self.cohort(round))
        return self.chain.outcome(contributions, weights, *self.bound(round))

    def bound(self, round: int) -> tuple[Link, ...]:
        """The link of `federation.bound`, before all others on the server. It marks clients that it shortens; if
        clients keep account of the numbers they sent, it refuses clients instead. There is none if a gathering hides
        the replies."""
        if self.chain.hides_replies:
            return ()
        factor, accounts = self.federation.bound, self.traits.remembers and not self.traits.comparable
        return (Bound(factor=factor, accounts=accounts),) if factor else ()
