"""The record of a round of which nobody may know who took part.

It names no client, and its costs are those that are expected: clients × a client's bytes and queries, of those that
answer and of those that take part. They are constants of the recipe and of the round, so two runs whose cohorts differ
write the same.
"""

from __future__ import annotations

from fedzero.ledger.records import PrivateRound, Round
from fedzero.protocol.messages import MODEL_DIGEST, Reply, encode_reply
from fedzero.recipe.plan import Plan


def without_clients(record: Round, plan: Plan, down: int) -> PrivateRound:
    """The record without clients. down: bytes of the instruction with the last update."""
    assert plan.privacy is not None and plan.chain.gathering is not None
    cost, answering = plan.cost(record.round), plan.privacy.answering(plan.federation)
    reply = Reply(record.round, 0, bytes(MODEL_DIGEST), b"", b"", cost.queries)
    up = answering * len(encode_reply(reply))
    hosts = round(answering) if plan.privacy.present else plan.privacy.of(plan.federation)
    up += plan.chain.gathering.bytes_up(cost.replies[0], hosts, min(answering, hosts))
    return PrivateRound(
        round=record.round,
        cohort=(),
        update=record.update,
        dense=record.dense,
        bytes_up=round(up),
        bytes_down=plan.privacy.following(plan.federation) * down,
        queries=round(plan.privacy.asked(plan.federation) * cost.queries),
        loss=None,
        spent=plan.privacy.spent(plan.federation, plan.numbers, record.round + 1, plan.rounds),
    )
