"""What the server makes of the replies that count: bounds, links, the method, and whether the model stays finite."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fedzero.links.bounds import beyond, bounded, norms_of
from fedzero.methods.contract import Gathered
from fedzero.model.updates import Update
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan
from fedzero.rounds.guard import Guard
from fedzero.rounds.tally import Tally

FAR = 1000.0
"""Times the median norm of a round, beyond which a client is refused: where it cannot be shortened, because clients
keep account of what they sent; and where a round would have made the model infinite."""


class Aggregation:
    """replica: the server's, None on a server without a model."""

    def __init__(self, plan: Plan, replica: Replica | None):
        self.plan, self.replica = plan, replica
        self.guard = Guard(plan.algorithm, plan.keys)

    def through_links(self, round: int, tally: Tally, weights: Mapping[int, int]) -> None:
        """Replies of an exchange through the bound and the server's links."""
        self._bound(round, tally)
        if tally.replies and self.plan.chain.mixers:
            mixed = self.plan.chain.mix({client: reply.values for client, reply in tally.replies.items()}, weights)
            tally.replies = {c: replace(reply, values=mixed[c]) for c, reply in tally.replies.items()}

    def _bound(self, round: int, tally: Tally) -> None:
        """Hold what a single client can do to the round within `federation.bound`, see `links.bounds`.

        Clients that keep account of what they sent, and whose accounts must add up to the server's, cannot be
        shortened behind their backs: they are refused, and only where they are beyond all measure.
        """
        factor, wire = self.plan.federation.bound, self.plan.wire(round)
        if not factor or not tally.replies:
            return
        values = {client: reply.values for client, reply in tally.replies.items()}
        if wire.remembers and not wire.comparable:
            _refuse_far(tally, norms_of(values), max(factor, FAR), "more than a client may send")
            return
        held, outside = bounded(values, factor)
        for client in outside:
            tally.replies[client] = replace(tally.replies[client], values=held[client])
        tally.bounded |= set(outside)

    def update(self, round: int, tally: Tally, weights: Mapping[int, int]) -> Update | None:
        """What comes of a round; None if nobody answered, or if it would make a number of the model infinite or NaN.

        In the latter case the round goes on without those whose numbers are far beyond the others'; if there are none,
        or that does not help, nothing of the round counts.
        """
        state = None if self.replica is None else self.replica.state
        for attempt in range(2):
            if not tally.replies:
                return None
            update = self.plan.algorithm.aggregate(self.step_inputs(round, tally, weights))
            if self.guard.admits(state, update):
                return update
            norms = norms_of({client: reply.values for client, reply in tally.replies.items()})
            why = "which would have made the model infinite"
            if attempt or not _refuse_far(tally, norms, FAR, why):
                break
        for client in tally.replies:
            tally.refused[client] = "was left out with its whole round, which would have made the model infinite"
        tally.replies = {}
        return None

    def step_inputs(self, round: int, tally: Tally, weights: Mapping[int, int]) -> Gathered:
        return Gathered(
            round=round,
            scale=self.plan.scale,
            keys=self.plan.keys,
            contributions={client: reply.values for client, reply in tally.replies.items()},
            weights=weights,
            combine=self.plan.chain.combine,
            state=None if self.replica is None else self.replica.state,
            shared=tuple(tally.shared),
        )


def _refuse_far(tally: Tally, norms: Mapping[int, float], factor: float, why: str) -> bool:
    """Refuse clients whose numbers are that much longer than the round's median; False: nobody's are."""
    longest, outside = beyond(norms, factor)
    for client in outside:
        del tally.replies[client]
        tally.refused[client] = f"sent numbers of norm {norms[client]:.3g}, {why}: at most {longest:.3g} this round"
    return bool(outside)
