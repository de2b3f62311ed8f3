"""What a server is told when a site cannot do something.

An error that speaks of the recipe, of messages or of the site's terms (`Sendable`) is sent as it is. Of all others,
which may quote rows, paths or what somebody's code said, the server gets one of the sentences below; the whole of it is
printed at the site.
"""

from __future__ import annotations

import sys
import traceback
from enum import StrEnum

from fedzero.errors import FedzeroError, Sendable
from fedzero.lines import printable

LONGEST = 1000
"""Characters of a sentence that is sent; what it quotes of a recipe may be long."""


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
    """What of an error leaves the site."""
    if isinstance(error, Sendable):
        return str(error)[:LONGEST].encode(errors="replace").decode()
    return f"{kind}: {SEE}"


def kept(error: BaseException) -> str:
    """What of an error the people at the site are shown."""
    return printable(str(error) if isinstance(error, FedzeroError) else f"{type(error).__name__}: {error}", LONGEST)


def log(error: BaseException) -> None:
    """On the site's console, whole; what a recipe says in it stays on its line."""
    if not isinstance(error, FedzeroError):
        traceback.print_exception(error)
        return
    said: BaseException | None = error
    while said is not None:  # an error that may be sent can hide the one that says more
        print(kept(said), file=sys.stderr, flush=True)
        said = said.__cause__ if isinstance(said.__cause__, FedzeroError) else None
