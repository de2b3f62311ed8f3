"""Objects that a user names as module:attribute."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from fedzero.errors import FedzeroError


def imported(where: str) -> Any:
    """The object, or `FedzeroError` whose text goes on after words like "task.boxes names"; None: there is no such
    attribute. Modules in the current folder are found, too."""
    module, colon, path = where.partition(":")
    if not (module and colon and path):
        raise FedzeroError(f"{where!r}, which is not of the form module:attribute")
    here = str(Path.cwd())
    if here not in sys.path:  # last, so that they hide nothing
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # importing runs a user's code, which may raise anything
        raise FedzeroError(
            f"{where!r}, but module {module!r} cannot be imported ({type(error).__name__}: {error}): "
            "run fedzero in its folder, or install it"
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
