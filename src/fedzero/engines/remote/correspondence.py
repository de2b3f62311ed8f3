"""Orders and their answers over a connection that only sends and receives: a `Link` for every simple transport.

An order begins with a number, and its answer with the same one. An answer counts once, for the order with its number:
an answer that comes twice, too late or out of order does no harm. A host that gets an order again answers with the same
bytes, so an order that may be lost is sent again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from fedzero.callbacks import always_false
from fedzero.engines.remote.transport import Answers, Gone, News, NoAnswer, Pending, Waiting
from fedzero.errors import Refused
from fedzero.protocol.engine import Interrupted, Undelivered

NUMBER = 8
"""Bytes of a number."""
LOOK_EVERY = 0.1
"""The longest time in seconds between two calls of `enough`, and until `Waiting` comes."""
KEPT = 1 << 20
"""Bytes of answers to earlier orders that a host keeps beside the last, to repeat them."""
RELIABLE = math.inf
"""`resend` for a connection that loses nothing while a host is there."""
Heard = tuple[str, bytes | Gone | News]
"""News of a host: its message; it is gone (`Gone`); it has come, or begun anew, and knows nothing (`News`)."""


class Connection(Protocol):
    """resend: seconds after which a message without an answer is sent again; infinite if no message is ever lost."""

    resend: float

    def begin(self) -> Collection[str]:
        """The hosts that are there; waits until at least one is."""
        ...

    def send(self, host: str, message: bytes) -> None:
        """Send a message; raises `Undelivered` if its loss is known at once."""
        ...

    def receive(self, seconds: float) -> Sequence[Heard]:
        """The messages and news that have come; waits up to so many seconds for the first."""
        ...


class Correspondence:
    """Numbers begin with the current time, so a restarted server continues with larger numbers."""

    several = True

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic):
        self._connection, self._clock, self._number = connection, clock, time.time_ns()
        self._here, self._come = set[str](), set[str]()
        self._asking: dict[int, _Asking] = {}
        self._pending: dict[str, tuple[int, int]] = {}
        """by host that is no longer waited for: the number of its order, and the size limit of the answer"""
        self._late: list[tuple[str, bytes | Exception]] = []
        self._news = False

    def begin(self) -> Collection[str]:
        self._here = set(self._connection.begin())
        self._pending, self._late, self._come, self._news = {}, [], set(), False
        return sorted(self._here)

    def ask(
        self, orders: Mapping[str, bytes], seconds: float, limit: int, enough: Callable[[], bool] = always_false
    ) -> Answers:
        if not self._here:
            raise Interrupted("no host is left")
        self._number += 1
        number = self._number
        mine = self._asking[number] = _Asking({}, limit)
        try:
            for host, order in orders.items():
                self._send(mine, host, number.to_bytes(NUMBER, "big") + order)
            yield from self._answers(mine, seconds, enough)
            self._pending |= dict.fromkeys(mine.missing, (number, limit))
            for host in sorted(mine.missing):
                yield host, Pending("has not answered yet")
        finally:
            del self._asking[number]

    def _answers(self, mine: _Asking, seconds: float, enough: Callable[[], bool]) -> Answers:
        now = self._clock()
        end, pause, again = now + seconds, self._connection.resend, now + self._connection.resend
        said = now
        while True:
            while mine.found:
                yield mine.found.pop(0)
            if self._news:
                self._news = False
                yield "", News()
            if not mine.missing or enough():
                return
            now = self._clock()
            if now >= end:
                for host in sorted(mine.missing):
                    mine.missing.pop(host)
                    yield host, NoAnswer(f"did not answer in {seconds:g} s")
                return
            if now >= again:
                pause *= 2
                again = now + pause
                for host, message in list(mine.missing.items()):
                    self._send(mine, host, message)
            self._hear(min(end - now, again - now, LOOK_EVERY))
            others = any(asking.found for asking in self._asking.values() if asking is not mine)
            if not mine.found and not self._news and (others or self._clock() - said >= LOOK_EVERY):
                said = self._clock()
                yield "", Waiting()

    def late(self) -> Answers:
        self._hear(0.0)
        found, self._late, self._news = self._late, [], bool(self._come)
        yield from found

    def admit(self) -> Collection[str]:
        self._hear(0.0)
        come, self._come, self._news = self._come, set(), bool(self._late)
        return sorted(come)

    def _send(self, mine: _Asking, host: str, message: bytes) -> None:
        mine.missing[host] = message
        self._pending.pop(host, None)
        try:
            if host not in self._here:
                raise Undelivered("is not here")
            self._connection.send(host, message)
        except Undelivered as error:
            mine.take(host, error)

    def _hear(self, seconds: float) -> None:
        for host, found in self._connection.receive(seconds):
            if isinstance(found, News):
                if host in self._here:
                    self._lost(host, Gone("began anew"))
                self._here.add(host)
                self._come.add(host)
                self._news = True
            elif isinstance(found, Gone):
                self._lost(host, found)
            else:
                self._arrived(host, int.from_bytes(found[:NUMBER], "big"), found[NUMBER:])

    def _lost(self, host: str, gone: Gone) -> None:
        self._here.discard(host)
        self._come.discard(host)
        for asking in self._asking.values():
            asking.take(host, gone)
        if self._pending.pop(host, None) is not None:
            self._late.append((host, gone))
            self._news = True

    def _arrived(self, host: str, number: int, answer: bytes) -> None:
        asking = self._asking.get(number)
        if asking is not None:
            asking.take(host, _within(answer, asking.limit))
        elif self._pending.get(host, (-1, 0))[0] == number:
            _, limit = self._pending.pop(host)
            self._late.append((host, _within(answer, limit)))
            self._news = True


class _Asking:
    """Orders with one number. missing: by host, the sent message, until it is answered; found: answers to hand over."""

    def __init__(self, missing: dict[str, bytes], limit: int):
        self.missing, self.limit = missing, limit
        self.found: list[tuple[str, bytes | Exception]] = []

    def take(self, host: str, answer: bytes | Exception) -> None:
        if self.missing.pop(host, None) is not None:
            self.found.append((host, answer))


def _within(answer: bytes, limit: int) -> bytes | Exception:
    if len(answer) <= limit:
        return answer
    return Refused(f"sent {len(answer)} bytes where at most {limit} were expected")


class Obedient:
    """The host's end of a correspondence. A repeated order gets the same bytes again, if it is among the last; any
    other order that is older than the latest gets no answer."""

    def __init__(self, answer: Callable[[bytes], bytes]):
        self._answer, self._last = answer, -1
        self._said: dict[int, bytes] = {}

    def __call__(self, message: bytes) -> bytes | None:
        number = int.from_bytes(message[:NUMBER], "big")
        if number > self._last:
            self._said[number], self._last = self._answer(message[NUMBER:]), number
            while len(self._said) > 1 and sum(map(len, self._said.values())) > KEPT + len(self._said[number]):
                del self._said[min(self._said)]
        return message[:NUMBER] + self._said[number] if number in self._said else None
