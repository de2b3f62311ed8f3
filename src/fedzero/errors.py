"""The one exception meant for users: a sentence that says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedzeroError(Exception):
    """Bad input or an impossible request; the command line prints it and exits with 2."""


class Sendable(FedzeroError):
    """Speaks of a recipe, of messages and of a site's terms alone, never of data, of places on a disk or of what some
    code said: a site may tell it to the server. Of every other error the server learns the kind only."""


class Refused(Sendable):
    """A message that does not count: wrong round, wrong length, not finite, unknown sender, …"""


def near(word: object, known: Iterable[str]) -> str:
    """A question about what somebody may have meant; empty where nothing known is like it."""
    found = get_close_matches(str(word), list(known), 1)
    return f"did you mean {found[0]}?" if found else ""
