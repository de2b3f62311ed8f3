"""What a person sees while an experiment goes: bars in a terminal, plain lines now and then elsewhere.

Runs differ in size, so they are weighed by their cost, in expected seconds on one core. The pace is measured: seconds
gone by for each unit of cost done since this process began, whatever the machine, the workers and the estimates are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedzero.report.units import human_seconds
from fedzero_papers.experiments import worker
from fedzero_papers.experiments.contract import Job, Stage
from fedzero_papers.experiments.worker import Done

QUIET_SECONDS = 10.0
TRUSTED_AFTER = 5.0
"""Seconds before the measured pace is believed rather than the estimate."""


@dataclass
class TimeEstimate:
    """`left` is the cost left of every run that this process makes, `worked` what it has done of them."""

    workers: int
    left: dict[str, float] = field(default_factory=dict)
    going: dict[str, worker.Progress] = field(default_factory=dict)
    worked: float = 0.0
    done_runs: int = 0
    all_runs: int = 0
    ahead: float = 0.0
    """cost of later stages"""
    began: float | None = None
    """when the first run reported: what it takes to start processes says nothing about the pace"""

    def stage(self, todo: Sequence[Job], kept: int, ahead: tuple[int, float]) -> None:
        self.done_runs += kept
        self.left |= {job.folder: job.cost for job in todo}
        self.all_runs, self.ahead = self.done_runs + len(todo) + ahead[0], ahead[1]

    def note(self, job: Job, message: worker.Progress | Done, now: float) -> None:
        self.began = now if self.began is None else self.began
        before, left = self.left[job.folder], 0.0
        if isinstance(message, Done):
            self.going.pop(job.folder, None)
            self.done_runs += 1
        else:
            if job.folder not in self.going:
                before = job.cost * (1 - message.begun / message.rounds)
            left = job.cost * (1 - message.done / message.rounds)
            self.going[job.folder] = message
        self.worked += before - left
        self.left[job.folder] = left

    def share(self) -> float:
        """Of the cost that was there when this process began, 0 … 1."""
        left = sum(self.left.values()) + self.ahead
        return self.worked / (self.worked + left) if self.worked + left > 0 else 1.0

    def seconds_left(self, now: float) -> float:
        gone = 0.0 if self.began is None else now - self.began
        measured = self.worked > 0 and gone > TRUSTED_AFTER
        return (sum(self.left.values()) + self.ahead) * (gone / self.worked if measured else 1 / self.workers)


class Display:
    """A line a stage, and one every ten seconds: for logs."""

    def __init__(self, console: Console, name: str, workers: int):
        self.console, self.name, self.estimate = console, name, TimeEstimate(workers)
        self._last = time.monotonic()

    def stage(self, stage: Stage, todo: Sequence[Job]) -> None:
        kept = len(stage.jobs) - len(todo)
        self.estimate.stage(todo, kept, stage.ahead)
        self._print(f"{stage.title}: {len(todo)} runs to make" + (f", {kept} already there" if kept else ""))
        self._show()

    def note(self, job: Job, message: worker.Progress | Done) -> None:
        self.estimate.note(job, message, time.monotonic())
        self._show()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _show(self) -> None:
        if time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            going = ", ".join(f"{folder} {p.done}/{p.rounds}" for folder, p in self.estimate.going.items())
            self._print(f"{self._totals()} · {going or '–'}")

    def _totals(self) -> str:
        left = human_seconds(self.estimate.seconds_left(time.monotonic()))
        return f"{self.estimate.done_runs} of {self.estimate.all_runs} runs · about {left} left"

    def _print(self, text: str) -> None:
        self.console.print(f"{self.name}: {text}", markup=False, highlight=False, soft_wrap=True)


class LiveDisplay(Display):
    """A bar for the whole and one for each run in progress, on standard error."""

    def __init__(self, console: Console, name: str, workers: int):
        super().__init__(console, name, workers)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}"))
        self._bars = Progress(*columns, console=console)
        self._whole = self._bars.add_task(f"[bold]{escape(name)}", total=1.0, line="")
        self._runs: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def _show(self) -> None:
        for folder in self._runs.keys() - self.estimate.going.keys():
            self._bars.remove_task(self._runs.pop(folder))
        for folder, p in self.estimate.going.items():
            if folder not in self._runs:
                self._runs[folder] = self._bars.add_task(f"  {escape(folder)}", line="")
            line = f"round {p.done:,} of {p.rounds:,}"
            self._bars.update(self._runs[folder], total=p.rounds, completed=p.done, line=line)
        self._bars.update(self._whole, completed=self.estimate.share(), line=self._totals())

    def __exit__(self, *_: object) -> None:
        for bar in self._runs.values():
            self._bars.remove_task(bar)
        self._bars.stop()


def display_on(console: Console, name: str, workers: int) -> Display:
    return (LiveDisplay if console.is_terminal else Display)(console, name, workers)
