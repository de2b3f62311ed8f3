"""Progress of a run: a live line in a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedzero.ledger import replay
from fedzero.ledger.records import Evaluation, Round
from fedzero.ledger.store import Ledger
from fedzero.oracles.blackbox import ESTIMATED
from fedzero.report.units import human_bytes
from fedzero.run.recipe import Recipe, from_canonical
from fedzero.run.session import LEDGER, folder_of

QUIET_SECONDS = 10.0


class Totals:
    """Running totals of a run, as they are shown."""

    def __init__(self, clients: int, done: Sequence[Round]):
        self.clients, self.round, self.bytes, self.queries = clients, 0, 0, 0
        self.loss: float | None = None
        self.evaluation: Evaluation | None = None
        for record in done:
            self.add(record)

    def add(self, record: Round) -> None:
        self.round = record.round + 1
        self.bytes += record.bytes_up + record.bytes_down
        self.queries += record.queries
        self.loss = record.loss if record.loss is not None else self.loss

    def line(self) -> str:
        parts = [] if self.loss is None else [f"loss {self.loss:.4f}"]
        if self.evaluation is not None:
            metrics = self.evaluation.metrics
            about = "≈ " if ESTIMATED in metrics.others else ""
            parts.append(f"test {about}{metrics.loss:.4f}")
            if metrics.accuracy is not None:
                parts.append(f"accuracy {metrics.accuracy:.1%}")
        parts += [f"{human_bytes(self.bytes / self.clients)} per client", f"{self.queries:,} queries"]
        return " · ".join(parts)


class Silent:
    """No output; the base of the others."""

    def begin(self, recipe: Recipe, parameters: int, done: Sequence[Round]) -> None:
        pass

    def round(self, record: Round) -> None:
        pass

    def evaluation(self, record: Evaluation) -> None:
        pass

    def end(self) -> None:
        pass


class LiveWatch(Silent):
    """A progress bar with loss, accuracy, bytes per client, queries and time left, on standard error."""

    def __init__(self, console: Console):
        self.console = console
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )

    def begin(self, recipe: Recipe, parameters: int, done: Sequence[Round]) -> None:
        self._totals = Totals(recipe.federation.clients, done)
        self._task = self._progress.add_task(recipe.name, total=recipe.rounds, completed=len(done), line="")
        self._progress.start()

    def round(self, record: Round) -> None:
        self._totals.add(record)
        self._progress.update(self._task, completed=record.round + 1, line=self._totals.line())
        for client, reason in record.refused:
            self.console.print(f"round {record.round}: client {client} {reason}", style="yellow", markup=False)

    def evaluation(self, record: Evaluation) -> None:
        self._totals.evaluation = record
        self._progress.update(self._task, line=self._totals.line())

    def end(self) -> None:
        self._progress.stop()


class PlainWatch(Silent):
    """A line every ten seconds, for logs."""

    def __init__(self, console: Console):
        self.console = console
        self._last = time.monotonic()

    def begin(self, recipe: Recipe, parameters: int, done: Sequence[Round]) -> None:
        self._totals, self._recipe = Totals(recipe.federation.clients, done), recipe
        self._began, self._done = time.monotonic(), len(done)
        resumed = f", resumed at round {len(done)}" if done else ""
        self.console.print(f"{recipe.name}: {recipe.algorithm.name}, {parameters:,} parameters{resumed}")

    def round(self, record: Round) -> None:
        self._totals.add(record)
        for client, reason in record.refused:
            self.console.print(f"round {record.round}: client {client} {reason}", markup=False)
        if time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            pace = (self._last - self._began) / (self._totals.round - self._done)
            left = pace * (self._recipe.rounds - self._totals.round)
            self.console.print(
                f"{self._recipe.name}: round {self._totals.round}/{self._recipe.rounds} · "
                f"{self._totals.line()} · {left:.0f} s left"
            )

    def evaluation(self, record: Evaluation) -> None:
        self._totals.evaluation = record


class Replaying:
    """Rounds of a ledger or a patch being folded: a bar in a terminal, a line every ten seconds elsewhere, and nothing
    of what is over at once."""

    def __init__(self, console: Console, what: str = "replaying"):
        self.console, self.what = console, what
        self._progress: Progress | None = None
        self._first: tuple[float, int] | None = None  # when it was first told, and of which round
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.console.is_terminal:
            self._draw(done, total)
        elif self._first is None:
            self._first, self._last = (now, done), now
        elif now - self._last >= QUIET_SECONDS and self._first[1] < done < total:
            began, start = self._first
            left, self._last = (now - began) / (done - start) * (total - done), now
            self.console.print(f"{self.what}: round {done}/{total} · {left:.0f} s left")

    def _draw(self, done: int, total: int) -> None:
        if self._progress is None:
            if done >= total:
                return
            columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
            self._progress = Progress(*columns, TimeRemainingColumn(compact=True), console=self.console, transient=True)
            self._progress.add_task(self.what, total=total)
            self._progress.start()
            atexit.register(self._progress.stop)  # after Ctrl-C, too, the cursor comes back
        self._progress.update(self._progress.task_ids[0], completed=done, total=total)
        if done >= total:
            self._progress.stop()
            self._progress = None


def follow(folder: Path, watch: LiveWatch | PlainWatch, once: bool = False) -> None:
    """Show what a run's ledger says, as it grows, until the run has ended."""
    seen = -1
    try:
        while True:
            ledger = Ledger.open(folder_of(folder) / LEDGER)
            try:
                view = replay.read(ledger)
                if seen < 0:
                    start = ledger.start()
                    watch.begin(from_canonical(start.recipe, start.needs), start.parameters, [])
                    seen = 0
            finally:
                ledger.close()
            for entry in view.entries[seen:]:
                if isinstance(entry.record, Round):
                    watch.round(entry.record)
                elif isinstance(entry.record, Evaluation):
                    watch.evaluation(entry.record)
            seen = len(view.entries)
            if once or view.end is not None:
                return
            time.sleep(1.0)
    finally:
        if seen >= 0:
            watch.end()


def watch_on(console: Console) -> LiveWatch | PlainWatch:
    return LiveWatch(console) if console.is_terminal else PlainWatch(console)
