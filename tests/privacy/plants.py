"""Bugs that say more of a private run than its noisy sums, by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest.mock import patch

from msgspec import structs

from fedzero.engines import gathering as hosts
from fedzero.gatherings.private import central
from fedzero.gatherings.private.units import PrivateUnits
from fedzero.links.gathering import Total
from fedzero.protocol.messages import decode_reply, encode_reply
from fedzero.rounds import hiding, server


def _loss_sent() -> Any:
    """A client's link leaves the loss where it was, and its host lets it go."""
    stack, on_client = ExitStack(), PrivateUnits.on_client

    def with_loss(link: Any, mine: Any, client: Any) -> Any:
        return structs.replace(on_client(link, mine, client), loss=mine.loss)

    def sent(reply: bytes) -> bytes:
        return encode_reply(structs.replace(decode_reply(reply, len(reply)), values=b""))

    stack.enter_context(patch.object(PrivateUnits, "on_client", with_loss))
    stack.enter_context(patch.object(hosts, "without_numbers", sent))
    return stack


def _size_recorded() -> Any:
    """The costs of a round are those of the clients that took part."""
    hidden = hiding.without_clients

    def recorded(record: Any, *others: Any) -> Any:
        return structs.replace(hidden(record, *others), bytes_up=record.bytes_up, queries=record.queries)

    return patch.object(server, "without_clients", recorded)


def _divided_by_the_cohort() -> Any:
    real = central.PlainSum.at_server

    def counted(gathering: Any, given: Any, context: Any) -> Any:
        found = yield from real(gathering, given, context)
        return Total(found.values, float(max(1, len(found.clients))), found.clients)

    return patch.object(central.PlainSum, "at_server", counted)


PLANTS: dict[str, Callable[[], Any]] = {
    "": nullcontext,
    "loss sent": _loss_sent,
    "size recorded": _size_recorded,
    "divided by the cohort": _divided_by_the_cohort,
}
