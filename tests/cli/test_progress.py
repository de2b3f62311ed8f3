"""What a run shows while it goes: on a terminal one line that fits, in a log lines that are not wrapped."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from io import StringIO
from itertools import combinations
from pathlib import Path

import pytest
from rich.console import Console

from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Evaluation, Round
from fedzero.lines import fitting
from fedzero.oracles import Metrics
from fedzero.recipe import recipe as recipes
from fedzero.runs import progress
from fedzero.runs.progress import LiveWatch, PlainWatch

REASON = "failed: [bold]it gave '[/x]' instead of a number"
ENTRY = [sys.executable, "-m", "fedzero"]


def record(round: int, refused: tuple[tuple[int, str], ...] = ()) -> Round:
    return Round(
        round=round,
        cohort=(3,),
        update=None,
        dense=False,
        bytes_up=123_456,
        bytes_down=7_654_321,
        queries=1_234_567,
        loss=6.8e62,
        refused=refused,
    )


def watching(kind: type, width: int) -> tuple[LiveWatch | PlainWatch, StringIO]:
    shown = StringIO()
    return kind(Console(file=shown, force_terminal=kind is LiveWatch, color_system=None, width=width)), shown


@pytest.mark.parametrize("kind", [LiveWatch, PlainWatch])
def test_reasons_are_shown_as_they_are(kind: type) -> None:
    """What clients say is text, never markup of the terminal."""
    watch, shown = watching(kind, 200)
    watch.begin(recipes.load("demo"), 10, LedgerSummary())
    watch.round(record(0, ((3, REASON),)))
    watch.end()
    assert f"round 0: client 3 {REASON}" in shown.getvalue()


def test_what_fits_is_the_most_worthy() -> None:
    parts = [(3, 5), (9, 4), (1, 2), (7, 10)]
    for width in range(40):
        chosen = fitting(parts, width, between=3)
        assert chosen == sorted(chosen)
        assert sum(parts[p][1] + 3 for p in chosen) - 3 <= width
        kept = {parts[p][0] for p in chosen}
        assert kept == {9, 7, 3, 1} - {worth for worth in (9, 7, 3, 1) if worth < min(kept, default=10)}
        larger = [c for n in range(5) for c in combinations(range(4), n) if set(c) > set(chosen)]
        best = max((worth for worth, _ in parts if worth not in kept), default=None)
        for c in larger:
            if best in {parts[p][0] for p in c}:
                assert sum(parts[p][1] + 3 for p in c) - 3 > width


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 250])
def test_the_live_line_fits_and_keeps_the_round(width: int) -> None:
    watch, shown = watching(LiveWatch, width)
    watch.begin(recipes.load("demo", ["rounds=2000"]), 10, LedgerSummary())
    watch.round(record(1232))
    watch.round(record(1233))
    watch.evaluation(Evaluation(1234, b"", Metrics(loss=0.1234, accuracy=0.9123)))
    watch.end()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).rstrip("\n").split("\r")[-1].split("\n")[-1]
    assert len(last) <= width - 3, "a terminal adds ^C"
    assert "1234/2000" in last
    for least, word in ((40, " left"), (60, "━"), (60, "demo"), (80, "accuracy 91.2%"), (120, "loss 6.800e+62")):
        assert width < least or word in last, last
    assert (width == 250) == ("2,469,134 queries" in last)


def test_lines_of_a_log_are_not_wrapped(monkeypatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    watch, shown = watching(PlainWatch, 30)
    watch.begin(recipes.load("demo"), 10, LedgerSummary())
    watch.round(record(0, ((3, REASON),)))
    watch.round(record(1))
    watch.end()
    first, refused, _, line = shown.getvalue().splitlines()
    assert first.startswith("demo: decomfl") and refused.endswith(REASON)
    assert "round 2/" in line and "queries" in line and line.endswith(" left")


@pytest.mark.parametrize("kind", [LiveWatch, PlainWatch])
def test_a_long_phase_is_shown_and_a_short_one_is_not(kind: type, monkeypatch) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.4)
    watch, shown = watching(kind, 100)
    watch.phase("instant")
    watch.phase("evaluating")
    end = time.monotonic() + 60
    while "evaluating" not in shown.getvalue() and time.monotonic() < end:
        time.sleep(0.05)
    watch.begin(recipes.load("demo"), 10, LedgerSummary())
    watch.end()
    watch.end()
    assert re.search(r"evaluating,? \d\.\d s", shown.getvalue())
    assert "instant" not in shown.getvalue()


def test_watching_once_shows_the_state(fedzero, run_recipe, tiny: Path, tmp_path: Path) -> None:
    run_recipe(tiny, tmp_path / "run")
    _, line = fedzero("watch", tmp_path / "run", "--once").err.splitlines()
    assert "round 12/12" in line and "test " in line and "queries" in line


class Screen:
    """As much of a terminal as a live line needs: wrapping at the edge, \\r, \\n, up, erase a line."""

    def __init__(self, columns: int):
        self.columns, self.lines, self.row, self.column = columns, [""], 0, 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|.", text, re.DOTALL):
            if part == "\x1b[2K":
                self.lines[self.row] = ""
            elif part == "\x1b[1A":
                self.row = max(0, self.row - 1)
            elif part == "\r":
                self.column = 0
            elif part == "\n":
                self._down()
            elif not part.startswith("\x1b"):
                if self.column == self.columns:
                    self._down()
                    self.column = 0
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + part + line[self.column + 1 :]
                self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")


def test_ctrl_c_on_a_terminal_of_80_columns_leaves_one_line(tiny: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("COLUMNS", None)
    command = [*ENTRY, "run", str(tiny), "--rounds", "1000000", "--out", str(tmp_path / "run")]

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    process = subprocess.Popen(command, **streams, env=environment, preexec_fn=take_terminal)
    os.close(follower)
    shown, pressed, deadline = b"", False, time.monotonic() + 90
    while time.monotonic() < deadline:
        if select.select([leader], [], [], 0.1)[0]:
            try:
                some = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            shown += some
        if not pressed and b"loss" in shown and b" left" in shown:
            os.write(leader, b"\x03")
            pressed = True
    try:
        assert process.wait(60) == 130
    finally:
        process.kill()
        os.close(leader)
    screen = Screen(80)
    screen.feed(shown.decode())
    lines = [line for line in screen.lines if line.strip()]
    assert sum("/1000000" in line for line in lines) == 1, lines
    assert "━" in lines[0] or "─" in lines[0]
    assert " left" in lines[0]
    assert "resumes from the last completed round" in " ".join(lines[1:])
