"""The page of a folder of runs, which come and go: each is followed by itself, and the page compares them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.ledger.folder import folder_of
from fedzero.report.history import History
from fedzero.report.page import Mode, page
from fedzero.results.folders import runs_in
from fedzero.web.following import LONGEST, PAUSE, SHARE, Following


def holds_runs(folder: Path) -> bool:
    """Whether runs are in folders of this one."""
    try:
        return runs_in(folder) != [folder_of(folder)]
    except FedzeroError:
        return False


class FollowingFolder:
    """As `Following`, of all runs in a folder. It looks for new ones whenever it looks at those that it knows."""

    def __init__(self, folder: Path):
        self.folder, self.version, self.spent, self.due = folder, 0, 0.0, 0.0
        self._lock = threading.Lock()
        self._runs: dict[Path, Following] = {}
        self._seen: tuple[tuple[Path, int], ...] = ()
        self._made: dict[Mode, tuple[int, str]] = {}

    def look(self, at_once: bool = False) -> int:
        with self._lock:
            if not at_once and time.monotonic() < self.due:
                return self.version
            began = time.thread_time()
            try:
                found = runs_in(self.folder)
            except FedzeroError:  # no run has begun yet
                found = []
            self._runs = {path: self._runs.get(path) or Following(path) for path in found}
            seen = tuple((path, run.look(at_once=True)) for path, run in self._runs.items())
            if seen != self._seen and any(version for _, version in seen):
                self._seen = seen
                self.version += 1
            self._took(began, PAUSE)
            return self.version

    def page(self, mode: Mode) -> str | None:
        with self._lock:
            histories = [run.history for run in self._runs.values()]
            known: list[History] = [history for history in histories if history is not None]
            if not known:
                return None
            if self._made.get(mode, (0, ""))[0] != self.version:
                began = time.thread_time()
                self._made[mode] = self.version, page(known, self.folder.name, mode)
                self._took(began, 0.0)
            return self._made[mode][1]

    def _took(self, began: float, pause: float) -> None:
        """Looking takes at most `SHARE` of the time."""
        cost = time.thread_time() - began
        self.spent += cost
        self.due = max(self.due, time.monotonic()) + min(LONGEST, max(pause, cost / SHARE))
