"""The client that is tested: a command that is started with a ticket, or one that somebody starts by hand."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.lines import printable
from fedzero.testing.devices.turn import I64

PLACES = ("{url}", "{data}", "{csv}", "{folder}")
STOPPING = 10.0


class Subject(Protocol):
    """May be started, stopped without warning, and started again with what it has kept."""

    joining: float
    """seconds that it takes to be started or stopped"""

    def start(self, ticket: str, files: Files) -> None: ...

    def stop(self) -> None:
        """End it without warning; it is started again."""
        ...

    def kill(self) -> None:
        """End it for good."""
        ...

    def ended(self) -> int | None:
        """The exit status, if it has ended."""
        ...

    def words(self) -> str:
        """The last thing that it said."""
        ...

    def wait(self, seconds: float) -> int | None: ...


@dataclass(frozen=True)
class Files:
    """folder: the client's own, empty at first. data: rows as .npz (x, y); csv: the same, a row a line, label last."""

    folder: Path
    data: Path
    csv: Path


def written(folder: Path, x: F32, y: I64) -> Files:
    own = folder / "device"
    own.mkdir()
    np.savez(folder / "rows.npz", x=x, y=y)
    lines = (",".join([*(repr(float(v)) for v in row), str(int(label))]) for row, label in zip(x, y, strict=True))
    (folder / "rows.csv").write_text("".join(f"{line}\n" for line in lines))
    return Files(own, folder / "rows.npz", folder / "rows.csv")


class Command:
    """words: a command. {url} is replaced by the address of a ticket (or that is appended), {data} by a file of rows,
    {csv} by the same as text, {folder} by an empty folder of its own, which is where it runs if it is not named."""

    joining = 0.0

    def __init__(self, words: Sequence[str]):
        if len(words) == 1:
            words = shlex.split(words[0])
        self._words = [str(Path(word).resolve()) if Path(word).is_file() else word for word in words]
        if not any("{url}" in word for word in self._words):
            self._words.append("{url}")
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None

    def start(self, ticket: str, files: Files) -> None:
        values = dict(zip(PLACES, (ticket, str(files.data), str(files.csv), str(files.folder)), strict=True))
        words = list(self._words)
        for name, value in values.items():
            words = [word.replace(name, value) for word in words]
        named = any("{folder}" in word for word in self._words)
        self._log = files.folder.parent / "said.txt"
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    words,
                    cwd=None if named else files.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise FedzeroError(f"{words[0]} cannot be started: {error.strerror}") from error

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        """With the processes that it has started."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOPPING)

    def ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait(self, seconds: float) -> int | None:
        end = time.monotonic() + seconds
        while self.ended() is None and time.monotonic() < end:
            time.sleep(0.02)
        return self.ended()

    def words(self) -> str:
        if self._log is None or not self._log.exists():
            return ""
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return printable(lines[-1], 300) if lines else ""


class ByHand:
    """A browser tab, a phone, a board: somebody starts it. tell: prints a line."""

    joining = 600.0

    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell
        self._begun = ""

    def start(self, ticket: str, files: Files) -> None:
        if ticket == self._begun:
            self._tell("now start it again, with what it has kept")
            return
        self._begun = ticket
        self._tell(f"start a new client with the rows of {files.csv} (the same: {files.data}) and this ticket:")
        self._tell(ticket)

    def stop(self) -> None:
        self._tell("now end the client without warning: close the tab, cut the power")

    def kill(self) -> None:
        """What is over ends by itself: it is sent Finish."""

    def ended(self) -> int | None:
        return None

    def wait(self, seconds: float) -> int | None:
        return 0

    def words(self) -> str:
        return ""
