"""Which replies of an exchange count, and why the others are refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedzero.directions.terms import F32
from fedzero.errors import Refused
from fedzero.methods.contract import Cost
from fedzero.oracles.ranges import strange_loss
from fedzero.protocol.engine import Tied
from fedzero.protocol.messages import MEMORY_DIGEST, Reply, decode_reply, loss_of
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan
from fedzero.rounds import votes
from fedzero.rounds.tally import Admitted
from fedzero.rounds.tracker import ClientTracker


class Admission:
    """The conditions for a reply to count. remembering: clients have a memory between their turns. models: by round
    whose question may still be answered, the digest of the model at which it was asked."""

    def __init__(self, plan: Plan, tracker: ClientTracker, models: Mapping[int, bytes] | None = None):
        self.plan, self.tracker, self.models = plan, tracker, dict(models or {})
        self.remembering = plan.traits.remembers or plan.chain.feedback
        self._round = self._oldest = 0
        self._expected: tuple[tuple[int, int], Cost, int] = (-1, -1), Cost((), 0), 0
        """the round and exchange that were asked about last, with the costs and the limit of their replies"""

    def begin(self, round: int, replica: Replica | None, oldest: int) -> None:
        """Keep the digest of the model at which a round is asked, and the digests of the last `oldest` rounds."""
        self._round, self._oldest = round, oldest
        if replica is not None and oldest:
            self.models = {r: digest for r, digest in self.models.items() if r >= round - oldest}
            self.models[round] = replica.digest()

    def closed(self, answered: int | None, open: int | None) -> str:
        """Why a reply to the question of round `answered` cannot count; empty if that is the client's open question.
        A client whose question is over may have been asked again: the reply does not end its new turn."""
        if answered is None or answered == open:
            return ""
        if answered + self._oldest < self._round:
            last = f"after round {answered + self._oldest}" if self._oldest else "in a later round"
            return f"answered round {answered} {last}: too late to count"
        return f"answered round {answered}, and its turn was over"

    def limit(self, round: int, exchange: int) -> int:
        """The most bytes that a reply may have."""
        return self._of(round, exchange)[1]

    def _of(self, round: int, exchange: int) -> tuple[Cost, int]:
        """The costs of a round, and the limit of its replies."""
        if self._expected[0] != (round, exchange):
            cost = self.plan.cost(round)
            self._expected = (round, exchange), cost, self.plan.chain.limit(cost.replies[exchange]) + 128
        return self._expected[1:]

    def queries(self, round: int, client: int) -> int:
        """The most queries that a client makes in a round."""
        cost = self.plan.cost(round)
        first = cost.first_queries and self.tracker.turns.last(client) is None
        return cost.queries + (cost.first_queries if first else 0)

    def admit(self, round: int, exchange: int, client: int, data: bytes) -> Admitted:
        """The reply of a client, unpacked; raises `Refused`."""
        cost, limit = self._of(round, exchange)
        reply = decode_reply(data, limit)
        if reply.round != round:
            raise Refused(f"answered round {reply.round}, not round {round}")
        if reply.exchange != exchange:
            raise Refused(f"answered exchange {reply.exchange} of the round, not {exchange}")
        chain = self.plan.chain
        if chain.gathering is not None:
            values, loss = _hidden(reply)
        else:
            values, loss = chain.decode(reply.values, cost.replies[exchange]), loss_of(reply.loss, chain.hides_loss)
        if loss is not None and not chain.hides_loss and (why := strange_loss(loss, self.plan.least_loss)):
            raise Refused(f"says {why}")
        most = self.queries(round, client) if cost.first_queries else cost.queries
        if reply.queries > most:
            raise Refused(f"says it asked its function {reply.queries} times where the method asks {most} times")
        keeps = self.remembering and exchange + 1 == len(cost.replies)
        if len(reply.memory) != (MEMORY_DIGEST if keeps else 0):
            raise Refused("sent no digest of its memory" if keeps else "sent a digest of a memory where none is kept")
        return Admitted(values, loss, reply.queries, reply.digest, reply.memory)


def _hidden(reply: Reply) -> tuple[F32, None]:
    """No values and no loss: they stay at the host until a gathering asks for them, and the reply must not have any."""
    if reply.values or reply.loss:
        raise Refused("sent its numbers or its loss by itself, where a gathering asks for them")
    return np.empty(0, np.float32), None


def refuse_diverged(
    round: int,
    replica: Replica | None,
    hosts: Mapping[int, str],
    replies: dict[int, Admitted],
    refused: dict[int, str],
    earlier: Mapping[int, bytes] | None = None,
) -> list[int]:
    """Refuse values that were computed on a different model from ours (or, on a server without a model, from most
    others'); returns these clients. earlier: by client that answers the question of an earlier round, the digest of the
    model of that round."""
    if not replies:
        return []
    if replica is not None:
        before = earlier or {}
        right = {client: before.get(client) or replica.state.digest(client) for client in replies}
    else:
        right = dict.fromkeys(replies, _elected(round, hosts, replies))
    diverged = [c for c, reply in replies.items() if reply.digest != right[c]]
    for client in diverged:
        found = replies.pop(client).digest.hex()
        refused[client] = f"worked on model {found}, not {right[client].hex()}: must rebuild"
    return diverged


def _elected(round: int, hosts: Mapping[int, str], replies: Mapping[int, Admitted]) -> bytes:
    """The model that most replicas have. Clients that share a replica have one vote together; otherwise a site with
    many clients would outvote the others. On a tie all replicas are rebuilt before the round is repeated."""
    digests = {client: reply.digest for client, reply in replies.items()}
    found = set(digests.values())
    if len(found) == 1:
        return found.pop()
    ballots = votes.of_groups(digests, {client: hosts.get(client) or f"client {client}" for client in replies})
    right = votes.leading(ballots)
    if right is None:
        raise Tied(f"round {round} was worked on with different models ({votes.sides(ballots, 'model {}')})")
    return right
