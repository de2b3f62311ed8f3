"""Reasons of failures at a site, as they are sent to the server.

An error about the recipe, messages or the site's terms (`Sendable`) is sent as it is. All other errors may quote rows,
paths or the output of somebody's code: for them the server gets one of the sentences below, and the whole error is
printed at the site.
"""

from __future__ import annotations

import sys
import traceback
from enum import StrEnum

from fedzero.errors import FedzeroError, Sendable
from fedzero.lines import printable

LONGEST = 1000
"""The most characters of a sentence that is sent; its quotations of a recipe may be long."""


class Reason(StrEnum):
    ORDER = "it could not obey an order"
    TASK = "its task could not be built"
    DATA = "its data or its model are not those it began this run with"
    TURN = "its turn failed"
    BOX = "its box gave no value"
    REBUILD = "its model could not be brought forward"
    MEASURE = "it could not evaluate the model"


SEE = "the site's log has the reason"


def sent(error: BaseException, kind: Reason) -> str:
    """The text of an error that leaves the site."""
    if isinstance(error, Sendable):
        return str(error)[:LONGEST].encode(errors="replace").decode()
    return f"{kind}: {SEE}"


def kept(error: BaseException) -> str:
    """The text of an error for the people at the site."""
    return printable(str(error) if isinstance(error, FedzeroError) else f"{type(error).__name__}: {error}", LONGEST)


def log(error: BaseException) -> None:
    """Print the whole error on the site's console; text from a recipe stays on one line."""
    if not isinstance(error, FedzeroError):
        traceback.print_exception(error)
        return
    said: BaseException | None = error
    while said is not None:  # an error that may be sent can hide a more detailed cause
        print(kept(said), file=sys.stderr, flush=True)
        said = said.__cause__ if isinstance(said.__cause__, FedzeroError) else None
