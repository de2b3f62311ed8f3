"""Why a frame is refused: a number for programs, a sentence for people."""

from __future__ import annotations

from enum import IntEnum

from fedzero.errors import Refused


class Code(IntEnum):
    """Of an error that a gateway sends."""

    MALFORMED = 1
    VERSION = 2
    TICKET = 3
    FULL = 4
    PLACE = 5
    REVOKED = 6
    SIGNATURE = 7
    UNEXPECTED = 8
    STALE = 9
    CONFLICT = 10
    LARGE = 11
    RATE = 12
    REPLACED = 13
    RUN = 14
    BUSY = 15
    BUILD = 16
    BUDGET = 17
    COOL = 18
    PAUSED = 19


LASTING = frozenset({Code.STALE, Code.CONFLICT, Code.RATE})
"""After these the session goes on; after all others it is over."""


FAULTS = frozenset(
    {Code.MALFORMED, Code.TICKET, Code.PLACE, Code.SIGNATURE, Code.UNEXPECTED, Code.LARGE, Code.RATE, Code.RUN}
)
"""A device that ends its sessions by these again and again has to wait (`limits`)."""


class Denied(Refused):
    """A frame that is refused by name."""

    def __init__(self, code: Code, sentence: str):
        super().__init__(sentence)
        self.code = code
