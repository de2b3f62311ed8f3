"""The integers of devices in runs with [privacy]: they come with the reply, and leave here when the gathering asks for
them.

    device   [round, exchange, digest, integers, no loss, queries]      one message
    server   the reply without its integers; then a phase of the gathering: the integers by device

The order stays open for the same bytes, so nothing is on disk here: after a restart of the server its devices answer
again as before.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fedzero.errors import FedzeroError, Refused
from fedzero.protocol.messages import decode_reply, encode_reply

WIDEST = 8
"""Bytes of an integer, at most."""


class Sums:
    """The integers of the round in progress, by host."""

    def __init__(self) -> None:
        self._round, self._given = -1, dict[str, bytes]()

    def taken(self, asked: int, host: str, body: bytes) -> bytes | Exception:
        """A device's reply as the server reads it, without the integers, which are kept."""
        try:
            reply = decode_reply(body, len(body))
            if reply.loss:
                raise Refused("sent a loss, which nobody may see in a run with [privacy]")
        except Refused as reason:
            return reason
        if asked != self._round:
            self._round, self._given = asked, {}
        self._given[host] = reply.values
        return encode_reply(replace(reply, values=b""))

    def answers(self, asked: int, phase: int, bodies: Mapping[str, bytes]) -> Mapping[str, bytes | Exception]:
        """What devices have given for a phase of a round."""
        if phase or asked != self._round:
            return {host: FedzeroError("has given nothing for this phase") for host in bodies}
        return {host: self._given.get(host, FedzeroError("has given no integers")) for host in bodies}
