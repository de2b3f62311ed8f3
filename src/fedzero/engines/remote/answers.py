"""Answers of sites, read with distrust: an answer of the wanted kind that is fit for the ledger, or an exception."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from fedzero.engines.remote import measuring, messages
from fedzero.errors import FedzeroError, Refused

T = TypeVar("T", bound=Struct)


class SiteFailure(FedzeroError):
    """A failure that the site itself reports."""


def received(site: str, data: bytes | Exception, wanted: type[T]) -> T | Exception:
    """An answer of the wanted kind, or the reason why there is none."""
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
