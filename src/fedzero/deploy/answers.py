"""What sites answer, read with distrust: of the kind that was asked for and fit to be written down, or an exception."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from fedzero.deploy import measuring, messages
from fedzero.errors import FedzeroError, Refused

T = TypeVar("T", bound=Struct)
SENTENCE = 500
"""Characters of what a site says, at most."""


class SiteFailure(FedzeroError):
    """What a site itself says it could not do."""


def received(site: str, data: bytes | Exception, wanted: type[T]) -> T | Exception:
    """An answer of the wanted kind, or why there is none."""
    if isinstance(data, Exception):
        return data
    try:
        answer = messages.decode_answer(data)
        if isinstance(answer, messages.Failed):
            return SiteFailure(sentence(answer.reason))
        if not isinstance(answer, wanted):
            return Refused(f"{site} sent an answer of another kind")
        if isinstance(answer, messages.Measured):
            measuring.checked(answer)
        return answer
    except Refused as reason:
        return reason
    except RecursionError:
        return Refused("sent an answer that is nested too deeply")


def sentence(text: str) -> str:
    """What a site says, short enough for the ledger and without control characters."""
    printable = "".join(c if c.isprintable() else " " for c in text[: SENTENCE + 1])
    return printable if len(printable) <= SENTENCE else f"{printable[:SENTENCE]}…"
