"""What is in the folder of a run: nothing yet, the beginning, all of it, or a run of another definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from fedzero.errors import FedzeroError
from fedzero.ledger.store import Ledger
from fedzero.run import recipe as recipes
from fedzero.run.recipe import Recipe
from fedzero.run.session import LEDGER, MODEL
from fedzero_papers.experiments.contract import Job

State = Literal["absent", "unfinished", "finished"]


def state_of(folder: Path, job: Job) -> State:
    """How far a run has come; an error if the folder holds a run of another recipe."""
    path = folder / LEDGER
    if not path.exists():
        return "absent"
    try:
        ledger = Ledger.open(path)
        try:
            raw = ledger.start().recipe
        finally:
            ledger.close()
    except FedzeroError as error:
        raise FedzeroError(f"{folder}: {error}; remove that folder to make the run again") from error
    _compare(folder, raw, job.recipe)
    # The model is written after the last entry of the ledger, in one piece: if it is there, so is everything.
    return "finished" if (folder / MODEL).exists() else "unfinished"


def _compare(folder: Path, raw: bytes, wanted: Recipe) -> None:
    changes = differences(msgspec.json.decode(raw), msgspec.to_builtins(wanted))
    try:
        found = recipes.from_canonical(raw)
        # Words about a run do not change it.
        if msgspec.structs.replace(found, title=wanted.title, about=wanted.about) == wanted:
            return
    except msgspec.ValidationError:
        pass  # made by another release, whose recipes had other keys: the differences say which
    listed = ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
    raise FedzeroError(
        f"{folder} holds a run of another definition ({listed}): --out chooses another folder for the new one, "
        "or remove that folder to make the run again"
    )


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """`a.b 1 → 2` for every leaf that differs, words about the run aside."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if path or key not in ("title", "about")]
        inner = [(f"{path}.{key}".lstrip("."), before.get(key), after.get(key)) for key in keys]
        return [change for name, old, new in inner for change in differences(old, new, name)]
    same = msgspec.json.encode(before) == msgspec.json.encode(after)  # a tuple here is a list there
    return [] if same else [f"{path} {_plain(before)} → {_plain(after)}"]


def _plain(value: Any) -> str:
    return "absent" if value is None else msgspec.json.encode(value).decode()
