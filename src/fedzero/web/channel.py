"""What the process of a run and the process that serves its page say to each other.

    run → page      Settings once; then an Answer to every Question
    page → run      a Question, one at a time

The process that serves the page talks to strangers; the process of the run reads its ledger and makes the page. Nothing
that a stranger sends goes any further than the first of the two: a Question has two fields, and no text of anybody.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

Mode = Literal["live", "update"]
"""The whole page; what an open page is sent when it changed."""
LONGEST_QUESTION = 64
"""Bytes."""
T = TypeVar("T")


class Settings(Struct, array_like=True):
    """Who may look: whoever has the token; without one, whoever names one of the hosts."""

    token: str | None
    hosts: tuple[str, ...]


class Question(Struct, array_like=True):
    """The page, if it is not of this version any more."""

    mode: Mode
    version: int


class Answer(Struct, array_like=True):
    """`version` 0: there is no run yet. text: None where the version is the one that was named, or 0.

    wait: seconds in which no other version is made. problem: why the page cannot be made.
    """

    version: int
    wait: float
    text: str | None = None
    problem: str = ""


def send(channel: Connection, message: Struct) -> None:
    channel.send_bytes(msgspec.msgpack.encode(message))


def receive(channel: Connection, kind: type[T], longest: int | None = None) -> T:
    """EOFError or OSError: the other process is gone, or does not keep to the rules."""
    try:
        return msgspec.msgpack.decode(channel.recv_bytes(longest), type=kind)
    except msgspec.DecodeError as error:
        raise OSError(f"no {kind.__name__}: {error}") from error
