"""What carries bytes between server and hosts: a value with a tag that opens, like an engine.

    class MyTransport(Transport, tag="my-transport"):
        @contextmanager
        def open(self, program: Program, report: Report) -> Iterator[Link]: …

What a transport opens is a `Link`. One that only sends and receives is made a link by `Correspondence`, which numbers
orders, and survives what is lost, late, doubled or in another order.
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
"""Is told in a sentence what should be known."""


class Answering(Protocol):
    """What obeys orders in a host's process: a host itself, or a site."""

    def answer(self, data: bytes) -> bytes:
        """An order in, an answer out, whatever happens."""
        ...

    def leave(self) -> None:
        """The process ends."""
        ...


Program = Callable[[str], Answering]
"""What a host of that name runs. It is pickled where hosts are other processes."""


class Transport(TaggedConfig):
    """A way to hosts."""

    def open(self, program: Program, report: Report) -> AbstractContextManager[Link]:
        """Hosts, reached; what was started for them ends with the block. program: what they run, of a transport that
        starts them itself."""
        raise NotImplementedError


def chosen(wanted: str | Mapping[str, Any]) -> Transport:
    """A transport by its word, or by a table with its settings."""
    table = {"kind": wanted} if isinstance(wanted, str) else dict(wanted)
    try:
        kind = plugins.find("transports", table.get("kind")).type
        found: Transport = msgspec.convert(table, kind)
        return found
    except (msgspec.ValidationError, plugins.NotInstalled) as error:
        raise Invalid(f"transport = {quoted(wanted)} is not valid: {str(error).replace('`', '')}") from None


class NoAnswer(FedzeroError):
    """A site was asked and says nothing."""


class Gone(NoAnswer):
    """A site was asked and has left: nothing of it will come."""


class News(FedzeroError):
    """No answer: something has happened beside, `late` and `admit` say what."""


class Pending(FedzeroError):
    """A site was asked and is not waited for any longer; its answer may come yet."""


Answers = Iterator[tuple[str, bytes | Exception]]


class Link(Protocol):
    """An epoch at a time: sites are fixed while it lasts. It may end at any moment, for any reason (`Interrupted`)."""

    def begin(self) -> Collection[str]:
        """End the epoch if there is one, begin the next; the sites that take part."""
        ...

    def ask(
        self, orders: Mapping[str, bytes], seconds: float, limit: int, enough: Callable[[], bool] = always_false
    ) -> Answers:
        """Orders to sites, answers as they come. After `seconds`, or beyond `limit` bytes, an answer is an exception:
        `NoAnswer` or `Undelivered` of a site that is gone. With the site's name in front it makes a sentence.
        `Pending` is that of the sites that have not answered when it is `enough`, which is asked now and then. `Gone`
        is said at once. `News` may come between answers, of any site, from a link that lets sites in at any time;
        others may be asked meanwhile.

        The site of an answer is known from its certificate, never from the answer.
        """
        ...

    def late(self) -> Answers:
        """Answers that have come by now from sites that were `Pending`; they are not to be asked before."""
        ...

    def admit(self) -> Collection[str]:
        """Sites that have come, or come back, since the epoch began, and take part from now on; they know nothing yet.
        Asked before every round and after `News`, it waits for nobody. A link that can let nobody in ends the epoch
        between two rounds, and has no news."""
        ...


class Enough:
    """Whether the last sites have been waited for long enough: once `quorum` sites have answered, as long again as
    that took, and `patience` seconds more."""

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
