"""From the replies that count to an update: bounds, links, the method, and the check that the model stays finite."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fedzero.directions.terms import F32
from fedzero.links.bound import FAR, too_far
from fedzero.links.bounds import norms_of
from fedzero.links.contract import Replies
from fedzero.links.gathering import Hidden
from fedzero.methods.contract import StepInputs
from fedzero.model.updates import Update
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan
from fedzero.rounds.guard import Guard
from fedzero.rounds.tally import Admitted, RoundInProgress


class Aggregation:
    """replica: the server's, None on a server without a model."""

    def __init__(self, plan: Plan, replica: Replica | None):
        self.plan, self.replica = plan, replica
        self.guard = Guard(plan.algorithm, plan.keys)

    def through_links(self, round: int, tally: RoundInProgress, weights: Mapping[int, int]) -> None:
        """Pass the replies of an exchange through the links on the server. Clients that are refused there are out of
        the round. If a gathering left a sum, there are no replies to pass."""
        if tally.totals:
            return
        given = Replies({client: reply.values for client, reply in tally.replies.items()}, weights)
        left = self.plan.chain.on_server(given, *self.plan.bound(round))
        tally.refused |= left.refused
        tally.bounded |= left.bounded
        tally.replies = {c: _with(reply, left.values[c]) for c, reply in tally.replies.items() if c in left.values}

    def update(self, round: int, tally: RoundInProgress, weights: Mapping[int, int]) -> Update | None:
        """The update of a round; None if nobody answered, or if the update would make the model infinite or NaN.

        In the latter case the round is first tried again without the clients whose numbers are far beyond the others';
        if there are no such clients, or leaving them out does not help, nothing of the round counts.
        """
        state = None if self.replica is None else self.replica.state
        for attempt in range(2):
            if not tally.replies and not tally.totals:
                return None
            update = self.plan.algorithm.aggregate(self.step_inputs(round, tally, weights))
            if self.guard.admits(state, update):
                return update
            if tally.totals:  # in a sum nobody can tell whose numbers are far beyond the others'
                break
            norms = norms_of({client: reply.values for client, reply in tally.replies.items()})
            why = "which would have made the model infinite"
            far = {} if attempt else too_far(norms, FAR, why)
            if not far:
                break
            tally.refused |= far
            tally.replies = {client: reply for client, reply in tally.replies.items() if client not in far}
        for client in tally.replies:
            tally.refused[client] = "was left out with its whole round, which would have made the model infinite"
        tally.replies = {}
        return None

    def step_inputs(self, round: int, tally: RoundInProgress, weights: Mapping[int, int]) -> StepInputs:
        return StepInputs(
            round=round,
            scale=self.plan.scale,
            keys=self.plan.keys,
            contributions=self.contributions(tally),
            weights=weights,
            combine=self.plan.chain.combine,
            state=None if self.replica is None else self.replica.state,
            shared=tuple(tally.shared),
            asked=(late := tally.late()),
            discounts={client: tally.discounts[client] for client in late},
            totals=tuple(tally.totals),
        )

    def contributions(self, tally: RoundInProgress) -> Mapping[int, F32]:
        if self.plan.chain.hides_replies and self.plan.chain.gathering is not None:
            return Hidden(self.plan.chain.gathering.name)
        return {client: reply.values for client, reply in tally.replies.items()}


def _with(reply: Admitted, values: F32) -> Admitted:
    return reply if values is reply.values else replace(reply, values=values)
