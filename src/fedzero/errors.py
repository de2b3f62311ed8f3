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


class Invalid(FedzeroError, ValueError):
    """What a parameter does not take: its name, what was given, and what is wanted."""


class Misnamed(FedzeroError, TypeError):
    """An argument that a constructor does not have, or one that it needs and was not given."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A question about what somebody may have meant, in capitals or not; empty where nothing known is like it."""
    spelled = {each.lower(): each for each in known}
    found = get_close_matches(str(word).lower(), list(spelled), 1)
    return f"did you mean {spelled[found[0]]}?" if found else ""
