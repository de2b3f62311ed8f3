"""What a person sees while an experiment goes: bars in a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedzero.report.units import human_seconds
from fedzero_papers.experiments import worker
from fedzero_papers.experiments.contract import Job, Stage
from fedzero_papers.experiments.pace import Pace
from fedzero_papers.experiments.worker import Done

QUIET_SECONDS = 10.0


class Display(Protocol):
    """Somebody who looks on while an experiment goes."""

    def stage(self, stage: Stage, todo: Sequence[Job]) -> None: ...
    def note(self, job: Job, message: worker.Progress | Done) -> None: ...
    def end(self) -> None: ...


class LiveDisplay:
    """A bar for the whole and one for each run in progress, on standard error."""

    def __init__(self, console: Console, name: str, workers: int):
        self.pace = Pace(workers)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}"),
            console=console,
        )
        self._whole = self._bars.add_task(f"[bold]{escape(name)}", total=1.0, line="")
        self._runs: dict[str, TaskID] = {}
        self._bars.start()

    def stage(self, stage: Stage, todo: Sequence[Job]) -> None:
        self.pace.stage(todo, len(stage.jobs) - len(todo), stage.ahead)
        self._bars.console.print(f"{escape(stage.title)}: {_counts(stage, todo)}", highlight=False)
        self._refresh()

    def note(self, job: Job, message: worker.Progress | Done) -> None:
        self.pace.note(job, message, time.monotonic())
        if isinstance(message, Done):
            if (bar := self._runs.pop(job.folder, None)) is not None:
                self._bars.remove_task(bar)
        else:
            bar = self._runs.get(job.folder)
            if bar is None:
                bar = self._runs[job.folder] = self._bars.add_task(f"  {escape(job.folder)}", line="")
            line = f"round {message.done:,} of {message.rounds:,}"
            self._bars.update(bar, total=message.rounds, completed=message.done, line=line)
        self._refresh()

    def _refresh(self) -> None:
        left = human_seconds(self.pace.seconds_left(time.monotonic()))
        line = f"{self.pace.done_runs} of {self.pace.all_runs} runs · about {left} left"
        self._bars.update(self._whole, completed=self.pace.share(), line=line)

    def end(self) -> None:
        for bar in self._runs.values():
            self._bars.remove_task(bar)
        self._bars.stop()


class PlainDisplay:
    """A line a stage, and one every ten seconds: for logs."""

    def __init__(self, console: Console, name: str, workers: int):
        self.console, self.name = console, name
        self.pace = Pace(workers)
        self._last = time.monotonic()

    def stage(self, stage: Stage, todo: Sequence[Job]) -> None:
        self.pace.stage(todo, len(stage.jobs) - len(todo), stage.ahead)
        self._print(f"{stage.title}: {_counts(stage, todo)}")

    def note(self, job: Job, message: worker.Progress | Done) -> None:
        self.pace.note(job, message, time.monotonic())
        if time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            going = ", ".join(f"{folder} {p.done}/{p.rounds}" for folder, (_, p) in self.pace.going.items())
            left = human_seconds(self.pace.seconds_left(self._last))
            self._print(f"{self.pace.done_runs} of {self.pace.all_runs} runs · {going or '–'} · about {left} left")

    def _print(self, text: str) -> None:
        self.console.print(f"{self.name}: {text}", markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None: ...


def _counts(stage: Stage, todo: Sequence[Job]) -> str:
    kept = len(stage.jobs) - len(todo)
    return f"{len(todo)} runs to make" + (f", {kept} already there" if kept else "")


def display_on(console: Console, name: str, workers: int) -> LiveDisplay | PlainDisplay:
    return (LiveDisplay if console.is_terminal else PlainDisplay)(console, name, workers)
