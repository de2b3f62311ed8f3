"""Ledgers that come from elsewhere, and what they would run here.

A recipe may name programs, modules and services (black boxes), so going on with a run calls what its ledger names. Who
starts a run has chosen them; of a ledger that somebody else sent that cannot be said. So it is noted, in a folder of
the user's own, which recipes that name such things the user has started; a ledger of any other is resumed only if the
user says that it is trusted. Nothing in the folder of the run counts: it came with the ledger.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.folders import state_folder
from fedzero.ledger.records import Start
from fedzero.runs import recipe as recipes
from fedzero.tasks.contract import Task


def note(recipe: bytes, task: Task, functions: Mapping[str, Any]) -> None:
    """This user starts a run of a recipe (as the ledger has it). Where that cannot be noted, resuming asks."""
    if task.runs(functions):
        with suppress(OSError):
            path = _noted(recipe)
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            path.touch(0o600)


def expect(start: Start, functions: Mapping[str, Any]) -> None:
    """Refuse to run what the recipe of a ledger names if this user has not started it."""
    task = recipes.from_canonical(start.recipe, start.needs).task
    if (named := task.runs(functions)) and not _mine(_noted(start.recipe)):
        more = f" and {len(named) - 1} more" if len(named) > 1 else ""
        raise FedzeroError(
            f"the ledger would run what it names, {named[0]}{more}, and this user has not started this run here: "
            "resume it with --trust (in Python, trust=True) if you know where it comes from"
        )


def _noted(recipe: bytes) -> Path:
    return state_folder() / "started" / hashlib.sha256(recipe).hexdigest()


def _mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:
        return False
