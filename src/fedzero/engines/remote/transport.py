"""A transport carries bytes between server and hosts. Like an engine, it is a tagged value with a method `open`.

    class MyTransport(Transport, tag="my-transport"):
        @contextmanager
        def open(self, program: Program, report: Report) -> Iterator[Link]: …

A transport opens a `Link`. `Correspondence` makes a link of a connection that only sends and receives: it numbers
orders, and survives messages that are lost, late, doubled or out of order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from fedzero import plugins
from fedzero.callbacks import always_false
from fedzero.errors import FedzeroError, Invalid
from fedzero.model.value import TaggedConfig, quoted

Report = Callable[[str], None]
"""Is told, in a sentence, what people should know."""


class Answering(Protocol):
    """Obeys orders in a host's process: a host itself, or a site."""

    def answer(self, data: bytes) -> bytes:
        """Obey an order and give an answer, whatever happens."""
        ...

    def leave(self) -> None:
        """The process ends."""
        ...


Program = Callable[[str], Answering]
"""Makes the host of a given name. It is pickled if hosts are other processes."""


class Transport(TaggedConfig):
    """A way to hosts."""

    def open(self, program: Program, report: Report) -> AbstractContextManager[Link]:
        """Reach the hosts; processes that the transport started end with the block. program: for a transport that
        starts its hosts, the program that they run."""
        raise NotImplementedError


def chosen(wanted: str | Mapping[str, Any]) -> Transport:
    """A transport from its name, or from a table with its settings."""
    table = {"kind": wanted} if isinstance(wanted, str) else dict(wanted)
    try:
        kind = plugins.find("transports", table.get("kind")).type
        found: Transport = msgspec.convert(table, kind)
        return found
    except (msgspec.ValidationError, plugins.NotInstalled) as error:
        raise Invalid(f"transport = {quoted(wanted)} is not valid: {str(error).replace('`', '')}") from None


class NoAnswer(FedzeroError):
    """A site was asked and did not answer."""


class Gone(NoAnswer):
    """A site was asked and has left: no answer will come."""


class News(FedzeroError):
    """Not an answer: something else has happened, and `late` and `admit` say what."""


class Waiting(FedzeroError):
    """Not an answer: none has come yet. It lets whoever asks do something else meanwhile."""


class Pending(FedzeroError):
    """A site was asked and is no longer waited for; its answer may still come."""


Answers = Iterator[tuple[str, bytes | Exception]]


class Link(Protocol):
    """A link lives in epochs; an epoch may end at any moment, for any reason (`Interrupted`).

    It may have the attribute `several`, see `ask`; without it one `ask` is carried at a time.
    """

    def begin(self) -> Collection[str]:
        """End the epoch if there is one, and begin the next; returns the sites that take part."""
        ...

    def ask(
        self, orders: Mapping[str, bytes], seconds: float, limit: int, enough: Callable[[], bool] = always_false
    ) -> Answers:
        """Send orders to sites; yields answers as they come. An answer may be an exception, which makes a sentence with
        the site's name in front: `NoAnswer` after `seconds`, `Undelivered` if the order could not be sent, `Refused` if
        the answer has more than `limit` bytes. `Gone` comes as soon as a site leaves. `enough` is asked now and then;
        once it is true, sites that have not answered are `Pending`. `News` may come between answers, about any site,
        from a link that lets sites in at any time; other sites may be asked meanwhile. `Waiting` comes a few times a
        second while no answer does. A link with `several = True` lets a second `ask` begin, also to the same sites,
        before the answers to the first have come; they obey one order after the other.

        The site of an answer is known from its certificate, never from the answer.
        """
        ...

    def late(self) -> Answers:
        """Answers that have come by now from sites that were `Pending`; such a site must not be asked before that."""
        ...

    def admit(self) -> Collection[str]:
        """Sites that have come, or come back, since the epoch began and were not returned yet. They take part from now
        on, and know nothing. It is called before every round and after `News`, and does not wait. A link that cannot
        let sites in during an epoch ends the epoch between two rounds, and has no news."""
        ...


class Enough:
    """Whether the last sites have been waited for long enough: after `quorum` sites have answered, the others get the
    same time again plus `patience` seconds."""

    def __init__(self, quorum: int, patience: float, clock: Callable[[], float] = time.monotonic):
        self._quorum, self._patience, self._clock = quorum, patience, clock
        self._began, self._count, self._end = clock(), 0, float("inf")

    def answered(self) -> None:
        self._count += 1
        if self._count == self._quorum:
            now = self._clock()
            self._end = now + (now - self._began) + self._patience

    def __call__(self) -> bool:
        return self._clock() > self._end
