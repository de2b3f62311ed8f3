"""Folders that hold folders of runs: what a sweep or a search leaves, or what somebody has put together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER, folder_of

DEPTH = 3
"""Levels of folders that are looked through."""


def runs_in(path: Path) -> list[Path]:
    """The folders of runs in a folder, as people sort them; the folder itself, if it holds a run."""
    place = folder_of(path)
    if (place / LEDGER).exists() or not place.is_dir():
        return [place]
    found = {ledger.parent for depth in range(1, DEPTH + 1) for ledger in place.glob("*/" * depth + LEDGER)}
    if not found:
        raise FedzeroError(f"{path} holds no run, and no folders of runs: there is no {LEDGER}")
    return sorted(found, key=lambda each: _numbers_by_size(str(each.relative_to(place))))


def all_runs(paths: Iterable[Path]) -> list[Path]:
    """Each once, in order."""
    return list(dict.fromkeys(run for path in paths for run in runs_in(path)))


def _numbers_by_size(name: str) -> list[tuple[float, str]]:
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", name)
    return [(float(part), "") if i % 2 else (0.0, part) for i, part in enumerate(parts)]
