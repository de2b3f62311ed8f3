"""Bytes that others wrote, as typed values: whatever is wrong with them is one sentence.

msgspec refuses wrong types, missing fields, trailing bytes and lengths beyond the data, and counts its own depth: 1,500
nested arrays raise RecursionError in Python, not a crash in C, so it can be caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from fedzero.errors import FedzeroError, Refused
from fedzero.lines import printable

T = TypeVar("T")

MALFORMED = (msgspec.DecodeError, ValueError, RecursionError, OverflowError, MemoryError)
"""What decoders raise for bytes that are not what they should be; ValueError for text that is no UTF-8, and of TOML."""
LONGEST_CAUSE = 200
"""Characters of a decoder's own words: they may quote what was sent."""


def decoded(decode: Callable[[Any], T], data: bytes, what: str, error: type[FedzeroError] = Refused) -> T:
    """`decode(data)`; bytes that cannot be decoded are not `what`."""
    try:
        return decode(data)
    except MALFORMED as cause:
        raise error(f"not {what}: {cause_of(cause)}") from None


@contextmanager
def reading(sentence: str, error: type[FedzeroError] = FedzeroError) -> Iterator[None]:
    """What is decoded inside fails with a sentence, in which {} stands for the cause."""
    try:
        yield
    except MALFORMED as cause:
        raise error(sentence.replace("{}", cause_of(cause), 1)) from None


def cause_of(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return printable(str(error), LONGEST_CAUSE) or type(error).__name__
