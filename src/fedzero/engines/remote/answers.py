"""What sites answer, read with distrust: of the kind that was asked for and fit to be written down, or an exception."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from fedzero.engines.remote import measuring, messages
from fedzero.errors import FedzeroError, Refused

T = TypeVar("T", bound=Struct)


class SiteFailure(FedzeroError):
    """What a site itself says it could not do."""


def received(site: str, data: bytes | Exception, wanted: type[T]) -> T | Exception:
    """An answer of the wanted kind, or why there is none."""
    if isinstance(data, Exception):
        return data
    try:
        answer = messages.decode_answer(data)
        if isinstance(answer, messages.Failed):
            return SiteFailure(answer.reason)
        if not isinstance(answer, wanted):
            return Refused(f"{site} sent an answer of another kind")
        if isinstance(answer, messages.Measured):
            measuring.checked(answer)
        return answer
    except Refused as reason:
        return reason
