"""Ledgers that come from elsewhere, and what they would run, import or fetch here.

A recipe may name programs, modules, services and models of a hub. Who starts a run has chosen them; of a ledger that
somebody else sent that cannot be said. So it is noted, in a folder of the user's own, which recipes that name such
things the user has started, and in which folders: a module or a program of the same name in another folder is another
one. A ledger of any other recipe is foreign, unless the user says that it is trusted: reading it uses nothing that it
names, and it is not resumed. Nothing in the folder of the run counts: it came with the ledger.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedzero.folders import state_folder
from fedzero.ledger.records import Start
from fedzero.model import files
from fedzero.recipe.environment import Environment
from fedzero.tasks.contract import Task, refuse_foreign

LARGEST = 1 << 20
"""Bytes of a note: the folders in which a recipe was started."""


def note(recipe: bytes, task: Task, functions: Mapping[str, Any]) -> None:
    """This user starts a run of a recipe (as the ledger has it) here. Where that cannot be noted, resuming asks."""
    if not (task.runs(functions) or task.fetches()):
        return
    with suppress(OSError):
        path, here = _noted(recipe), _here()
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if here not in _folders(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(here + b"\n")


def is_foreign(start: Start, environment: Environment) -> bool:
    """Whether this user neither started the run of a ledger, here, nor vouches for it."""
    return not environment.vouched and _here() not in _folders(_noted(start.recipe))


def expect_nothing_named(task: Task, functions: Mapping[str, Any]) -> None:
    """Before a foreign run goes on."""
    if named := task.runs(functions):
        more = f" and {len(named) - 1} more" if len(named) > 1 else ""
        refuse_foreign(f"what it would run, {named[0]}{more}")


def _here() -> bytes:
    """Hashed: the name of a folder may have any characters. Empty in a folder that is gone."""
    try:
        return hashlib.sha256(os.fsencode(Path.cwd())).hexdigest().encode()
    except OSError:
        return b""


def _noted(recipe: bytes) -> Path:
    return state_folder() / "started" / hashlib.sha256(recipe).hexdigest()


def _folders(path: Path) -> list[bytes]:
    """The folders in which this user started a recipe."""
    try:
        return files.read(path, LARGEST).split() if path.lstat().st_uid == os.getuid() else []
    except (OSError, files.Unfit):
        return []
