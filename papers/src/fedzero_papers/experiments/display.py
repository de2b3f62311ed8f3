"""What a person sees while an experiment goes: bars in a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedzero.report.units import human_seconds
from fedzero_papers.experiments import worker
from fedzero_papers.experiments.contract import Job, Stage
from fedzero_papers.experiments.pace import Pace
from fedzero_papers.experiments.worker import Done

QUIET_SECONDS = 10.0


class Display:
    """A line a stage, and one every ten seconds: for logs."""

    def __init__(self, console: Console, name: str, workers: int):
        self.console, self.name, self.pace = console, name, Pace(workers)
        self._last = time.monotonic()

    def stage(self, stage: Stage, todo: Sequence[Job]) -> None:
        kept = len(stage.jobs) - len(todo)
        self.pace.stage(todo, kept, stage.ahead)
        self._print(f"{stage.title}: {len(todo)} runs to make" + (f", {kept} already there" if kept else ""))
        self._show()

    def note(self, job: Job, message: worker.Progress | Done) -> None:
        self.pace.note(job, message, time.monotonic())
        self._show()

    def end(self) -> None: ...

    def _show(self) -> None:
        if time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            going = ", ".join(f"{folder} {p.done}/{p.rounds}" for folder, p in self.pace.going.items())
            self._print(f"{self._totals()} · {going or '–'}")

    def _totals(self) -> str:
        left = human_seconds(self.pace.seconds_left(time.monotonic()))
        return f"{self.pace.done_runs} of {self.pace.all_runs} runs · about {left} left"

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
        self._bars.start()

    def _show(self) -> None:
        for folder in self._runs.keys() - self.pace.going.keys():
            self._bars.remove_task(self._runs.pop(folder))
        for folder, p in self.pace.going.items():
            if folder not in self._runs:
                self._runs[folder] = self._bars.add_task(f"  {escape(folder)}", line="")
            line = f"round {p.done:,} of {p.rounds:,}"
            self._bars.update(self._runs[folder], total=p.rounds, completed=p.done, line=line)
        self._bars.update(self._whole, completed=self.pace.share(), line=self._totals())

    def end(self) -> None:
        for bar in self._runs.values():
            self._bars.remove_task(bar)
        self._bars.stop()


def display_on(console: Console, name: str, workers: int) -> Display:
    return (LiveDisplay if console.is_terminal else Display)(console, name, workers)
