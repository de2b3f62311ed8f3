"""The one exception meant for users: a sentence that says what is wrong and what to do."""

from __future__ import annotations


class FedzeroError(Exception):
    """Bad input or an impossible request; the command line prints it and exits with 2."""


class Refused(FedzeroError):
    """A message that does not count: wrong round, wrong length, not finite, unknown sender, …"""
