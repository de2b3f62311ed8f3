"""What carries bytes between the supervisor and the sites."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from fedzero.errors import FedzeroError


class NoAnswer(FedzeroError):
    """A site was asked and says nothing."""


class Link(Protocol):
    """An epoch at a time: sites are fixed while it lasts. It may end at any moment, for any reason (`Interrupted`)."""

    def begin(self) -> Collection[str]:
        """End the epoch if there is one, begin the next; the sites that take part."""
        ...

    def ask(self, orders: Mapping[str, bytes], seconds: float, limit: int) -> Iterator[tuple[str, bytes | Exception]]:
        """Orders to sites, answers as they come. After `seconds`, or beyond `limit` bytes, an answer is an exception:
        `NoAnswer` or `Undelivered` of a site that is gone. With the site's name in front it makes a sentence.

        The site of an answer is known from its certificate, never from the answer.
        """
        ...

    def waiting(self) -> Collection[str]:
        """Sites that are there but have no part in this epoch, or none any more."""
        ...
