"""The page of a run whose ledger grows: read anew only what is new, and no more often than its cost allows.

    pause = max(PAUSE, cost of the last update / SHARE)

so that following takes at most SHARE of the time, however long the run gets. Nothing is read while nobody looks.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

from fedzero.engines.remote.assignment import SiteAssignment
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER, folder_of
from fedzero.ledger.store import Ledger, ledger_in
from fedzero.report.history import History
from fedzero.report.page import Mode, page
from fedzero.results.history import history_of
from fedzero.results.reading import Reading

PAUSE = 1.0
"""Seconds between two looks at the ledger, at least."""
LONGEST = 60.0
"""and at most"""
SHARE = 0.005
"""of the time that may go into following"""

Signature = tuple[tuple[int, int, int], ...]


class Following:
    """What a page shows of the run in a folder, which may not have begun, be resumed or replaced. Used by many threads.

    version: counts the updates; 0 until there is a ledger.
    """

    def __init__(self, folder: Path):
        self.folder = folder_of(folder)
        self.version = 0
        self.spent = 0.0
        """seconds of processor time that updates took"""
        self._lock = threading.Lock()
        self._reading = Reading()
        self._shown = b""
        """the chain of the ledger, up to what the history has"""
        self._history: History | None = None
        self._made: dict[Mode, tuple[int, str]] = {}
        self._signature: Signature = ()
        self.due = 0.0
        """when it is time to look again, by the monotonic clock"""

    @property
    def history(self) -> History | None:
        """The run as it was at the last look."""
        return self._history

    def look(self, at_once: bool = False) -> int:
        """The version now; looks at the ledger if it is time, or `at_once`."""
        with self._lock:
            if not at_once and time.monotonic() < self.due:
                return self.version
            began = time.thread_time()
            signature = self._files()
            if not signature:  # a run that begins is seen at once
                return self.version
            if signature != self._signature:
                self._read(signature)
            cost = time.thread_time() - began
            self.spent += cost
            self.due = time.monotonic() + min(LONGEST, max(PAUSE, cost / SHARE))
            return self.version

    def page(self, mode: Mode) -> str | None:
        """The page as it was at the last look, made once for all who ask; None before there is a ledger."""
        with self._lock:
            if self._history is None:
                return None
            if self._made.get(mode, (0, ""))[0] != self.version:
                began = time.thread_time()
                self._made[mode] = self.version, page([self._history], self._history.name, mode)
                cost = time.thread_time() - began
                self.spent += cost
                self.due += min(LONGEST, cost / SHARE)
            return self._made[mode][1]

    def _files(self) -> Signature:
        """What changes when the ledger does; empty where there is none."""
        path = self.folder / LEDGER
        try:
            main = path.stat()
        except FileNotFoundError:
            return ()
        found = [(main.st_ino, main.st_size, main.st_mtime_ns)]
        beside = path.with_name(f"{path.name}-wal")
        if beside.exists():
            try:
                log = beside.stat()
                found.append((log.st_ino, log.st_size, log.st_mtime_ns))
            except FileNotFoundError:  # the run ended just now
                pass
        return tuple(found)

    def _read(self, signature: Signature) -> None:
        """A ledger that is being replaced, or written by a full disk, is looked at again next time."""
        try:
            with ledger_in(self.folder) as ledger:
                self._more(ledger)
            if self._reading.outline.chain != self._shown:
                sites = SiteAssignment.of(self.folder)
                self._history = history_of(self._reading, self.folder, None if sites is None else sites.clients)
                self._shown = self._reading.outline.chain
                self.version += 1
            self._signature = signature
        except FedzeroError as error:
            if self._history is not None:
                self._history = replace(self._history, events=(*self._history.events, f"the ledger: {error}"))

    def _more(self, ledger: Ledger) -> None:
        try:
            self._reading.more(ledger)
        except FedzeroError:  # another ledger has taken its place
            self._reading = Reading()
            self._reading.more(ledger)
