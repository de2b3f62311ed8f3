"""What every transport must do, whatever it is made of."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedzero.callbacks import always_false
from fedzero.engines.remote import Remote
from fedzero.engines.remote.transport import Gone, Link, News, NoAnswer, Pending, Transport, Waiting
from fedzero.errors import FedzeroError
from fedzero.protocol.engine import Interrupted, Undelivered
from fedzero.testing import engine_checks
from fedzero.testing.trial import Check, expect, run_checks

LONG, SHORT, SOON = 60.0, 0.3, 20.0
"""Seconds: of an order that should be answered, of one that should not, and within which something must be noticed."""
LIMIT = 1 << 22


def check_transport(transport: Transport, checks: Sequence[Check] | None = None) -> None:
    """Ask hosts over a transport that starts them itself, and raise `CheckFailed` with what does not hold.

    Checks: bytes arrive as they were, each of its host; whoever is done first is heard first; an answer that comes too
    late, or whose order was given up, is not taken for that of another order; an answer beyond the limit is refused and
    nothing else; where a link carries several orders at a time, each has its answer; a host that dies keeps nobody
    waiting; a run writes the ledger of one process, and clients that fail are named.
    """
    run_checks(type(transport), transport, checks or CHECKS)


class Echo:
    """What hosts run here: the first word of an order says what to do."""

    def __init__(self, name: str):
        self.name = name.encode()

    def answer(self, data: bytes) -> bytes:
        word, _, rest = data.partition(b" ")
        if word == b"sleep":
            time.sleep(float(rest))
        if word == b"die":
            raise SystemExit(1)
        return self.name + b" " + (bytes(int(rest)) if word == b"long" else data)

    def leave(self) -> None: ...


@contextmanager
def _opened(transport: Transport) -> Iterator[tuple[Link, list[str]]]:
    with transport.open(Echo, lambda text: None) as link:
        hosts = sorted(link.begin())
        expect(len(hosts) >= 2, f"there are {len(hosts)} hosts, and the checks need two")
        yield link, hosts


def _asked(link: Link, orders: Mapping[str, bytes], seconds: float = LONG) -> dict[str, bytes | Exception]:
    found: dict[str, bytes | Exception] = {}
    for host, answer in link.ask(orders, seconds, LIMIT, always_false):
        if isinstance(answer, News | Waiting):
            continue
        expect(host in orders, f"{host} answers, which was not asked")
        expect(host not in found, f"{host} answers twice")
        found[host] = answer
    expect(found.keys() == orders.keys(), f"{sorted(orders.keys() - found.keys())} neither answer nor fail")
    return found


def carries_bytes(transport: Transport, folder: Path) -> None:
    with _opened(transport) as (link, hosts):
        for size in (0, 1, 1000, 1 << 20):
            orders = {host: bytes([number % 256]) * size for number, host in enumerate(hosts, 1)}
            for host, answer in _asked(link, orders).items():
                expect(answer == host.encode() + b" " + orders[host], f"{size} bytes to {host} come back changed")


def hears_who_is_done(transport: Transport, folder: Path) -> None:
    with _opened(transport) as (link, (first, second, *_)):
        found = list(_asked(link, {first: b"sleep 0.5", second: b"x"}))
        expect(found == [second, first], f"{found[0]} is heard first, which took longer")


def keeps_answers_apart(transport: Transport, folder: Path) -> None:
    with _opened(transport) as (link, (first, second, *_)):
        found = _asked(link, {first: b"sleep 1", second: b"x"}, SHORT)
        expect(isinstance(found[first], NoAnswer), f"nobody answered in {SHORT} s, and this came: {found[first]!r}")
        expect(found[second] == second.encode() + b" x", "one host is silent, and the other is not heard")
        found = _asked(link, {first: b"next"})
        expect(found[first] == first.encode() + b" next", f"taken for the answer to another order: {found[first]!r}")


def answers_later(transport: Transport, folder: Path) -> None:
    with _opened(transport) as (link, (first, *_)):
        ((host, pending),) = list(link.ask({first: b"sleep 0.3"}, LONG, LIMIT, lambda: True))
        expect(isinstance(pending, Pending), f"{host} was not waited for, and this came: {pending!r}")
        end, found = time.monotonic() + SOON, list[tuple[str, bytes | Exception]]()
        while not found and time.monotonic() < end:
            found = list(link.late())
            time.sleep(0.01)
        expect(found == [(first, first.encode() + b" sleep 0.3")], f"answered later: {found!r}")
        expect(list(link.late()) == [], "what was answered later is said twice")


def asks_several_at_once(transport: Transport, folder: Path) -> None:
    """For a link that says so: a host obeys two orders one after the other, and whoever is free is heard first."""
    with _opened(transport) as (link, (first, second, *_)):
        if not getattr(link, "several", False):
            return
        slow = link.ask({first: b"sleep 0.5"}, LONG, LIMIT, always_false)
        came = next(slow)
        expect(isinstance(came[1], Waiting), f"an order takes half a second, and this comes meanwhile: {came!r}")
        found = _asked(link, {first: b"x", second: b"y"})
        wanted = {first: first.encode() + b" x", second: second.encode() + b" y"}
        expect(found == wanted, f"asked beside another order: {found!r}")
        left = [each for each in slow if not isinstance(each[1], News | Waiting)]
        expect(left == [(first, first.encode() + b" sleep 0.5")], f"the first order is answered by {left!r}")


def refuses_what_is_too_long(transport: Transport, folder: Path) -> None:
    with _opened(transport) as (link, (first, second, *_)):
        found = _asked(link, {first: b"long %d" % (LIMIT + 1), second: b"long 10"})
        expect(isinstance(found[first], FedzeroError), "an answer beyond the limit is let through")
        expect(
            found[second] == second.encode() + b" " + bytes(10), "one answer is too long, and the other is not heard"
        )


def notices_who_dies(transport: Transport, folder: Path) -> None:
    with _opened(transport) as (link, (first, second, *_)):
        began = time.monotonic()
        found = _asked(link, {first: b"die", second: b"x"}, 2 * LONG)
        expect(isinstance(found[first], NoAnswer | Undelivered), f"{first} died, and this came: {found[first]!r}")
        expect(time.monotonic() - began < SOON, f"{first} died, and was waited for")
        expect(isinstance(found[first], Gone), f"{first} died, and is not said to be gone")
        expect(found[second] == second.encode() + b" x", f"{first} died, and {second} is not heard")
        end, back = time.monotonic() + 10 * SHORT, False
        while not back and time.monotonic() < end:
            back = first in link.admit()
            time.sleep(0.01)
        if back:
            found = _asked(link, {first: b"z"})
            expect(found[first] == first.encode() + b" z", f"{first} is back, and does not answer")


def interrupts_where_nobody_is_left(transport: Transport, folder: Path) -> None:
    """Not for ever: another epoch begins, or the run waits."""
    with _opened(transport) as (link, hosts):
        _asked(link, dict.fromkeys(hosts, b"die"))
        try:
            _asked(link, dict.fromkeys(hosts, b"x"), SHORT)
        except Interrupted:
            expect(bool(link.begin()), "an epoch begins with nobody")


def plays_runs(transport: Transport, folder: Path) -> None:
    """A seeded method, and one whose clients remember."""
    engine = Remote.over(transport, merge=False, device="cpu")
    engine_checks.writes_the_ledger_of_one_process(engine, folder, engine_checks.METHODS[::3])


CHECKS: tuple[Check, ...] = (
    carries_bytes,
    hears_who_is_done,
    keeps_answers_apart,
    asks_several_at_once,
    answers_later,
    refuses_what_is_too_long,
    notices_who_dies,
    interrupts_where_nobody_is_left,
    plays_runs,
)
