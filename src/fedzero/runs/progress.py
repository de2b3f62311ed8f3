"""Progress of a run: a live line in a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import UnsetType
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedzero.callbacks import Verdict
from fedzero.ledger import checkpoints, replay, traffic
from fedzero.ledger.folder import folder_of
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import End, Evaluation, Extended, Round, spent_of, time_of
from fedzero.ledger.store import ledger_in
from fedzero.ledger.traffic import Traffic
from fedzero.lines import fitting, print_line, visible
from fedzero.oracles.blackbox import ESTIMATED
from fedzero.recipe.in_force import in_force
from fedzero.recipe.recipe import Recipe
from fedzero.report.units import human_bytes, human_loss, human_seconds
from fedzero.rounds.refusals import Refusals

QUIET_SECONDS = 10.0
FIRST_SECONDS = 3.0
"""Activities that take longer are first named in a log after so many seconds."""
Part = tuple[int, str]
"""(priority, text): if not everything fits, the parts with the highest priority are shown."""


class Ages:
    """The ages of replies, in steps: from who was asked when. Of a run that goes on, those of questions from now on."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}

    def mean(self, record: Round) -> float:
        """The mean age of the replies that count in a step."""
        fresh = record.cohort if isinstance(record.asked, UnsetType) else record.asked
        self._asked |= dict.fromkeys(fresh, record.round)
        asked = {client: self._asked.pop(client, None) for client in record.cohort}
        out = dict(record.refused)
        found = [record.round - round for client, round in asked.items() if round is not None and client not in out]
        return sum(found) / len(found) if found else 0.0


class Totals:
    """Running totals of a run, for display."""

    def __init__(self, recipe: Recipe, done: LedgerSummary):
        self.recipe, self.round, self.queries, self.loss = recipe, done.done, done.queries, done.loss
        self.bytes = done.bytes_up + done.bytes_down
        self.spent = None if done.spent is None else done.spent[0]
        """ε against readers of the model and the ledger"""
        self.time = done.time
        """simulated seconds"""
        self.age = 0.0
        """mean of the ages of the last step's replies, in steps"""
        self.evaluation: Evaluation | None = None
        self.traffic = Traffic()
        self._at = 0.0
        self._paced: tuple[float, int] | None = None
        self._ages = Ages()

    def add(self, record: Round) -> None:
        self.round = record.round + 1
        self._at = time.monotonic()
        self._paced = self._paced or (self._at, self.round)
        self.bytes += record.bytes_up + record.bytes_down
        self.queries += record.queries
        self.loss = record.loss if record.loss is not None else self.loss
        if (spent := spent_of(record)) is not None:
            self.spent = spent[0]
        if (simulated := time_of(record)) is not None:
            self.time = simulated
            self.age = self._ages.mean(record)

    @property
    def left(self) -> str:
        """The time left at the pace so far, not counting the first round, in which kernels are compiled."""
        began, first = self._paced or (0.0, self.round)
        if self.round == first:
            return ""
        pace = (self._at - began) / (self.round - first)
        left = pace * (self.recipe.rounds - self.round) - (time.monotonic() - self._at)
        return f"{human_seconds(max(0.0, left))} left"

    def head(self, bar: int) -> list[Part]:
        rounds = self.recipe.rounds
        full = bar * self.round // rounds
        return [(6, self.recipe.name), (7, "━" * full + "─" * (bar - full)), (10, f"{self.round}/{rounds}")]

    def parts(self) -> list[Part]:
        """The parts in the order in which they are shown."""
        parts = [] if self.loss is None else [(3, f"loss {human_loss(self.loss)}")]
        if self.evaluation is not None:
            metrics = self.evaluation.metrics
            about = "≈ " if ESTIMATED in metrics.others else ""
            parts.append((4, f"test {about}{human_loss(metrics.loss)}"))
            if metrics.accuracy is not None:
                parts.append((5, f"accuracy {metrics.accuracy:.1%}"))
        if self.spent is not None:
            parts.append((9, f"ε {self.spent:.2f}"))
        if self.time is not None:
            parts.append((7, f"{human_seconds(self.time)} simulated"))
        if self.age:
            parts.append((6, f"age {self.age:.1f}"))
        parts += [
            (2, f"{human_bytes(self.bytes / self.recipe.federation.clients)} per client"),
            (1, f"{self.queries:,} queries"),
        ]
        if self.traffic.requests:
            parts.append((2, f"{human_bytes(self.traffic.sent + self.traffic.received)} to and from services"))
        return [*parts, (8, self.left)] if self.left else parts


class Silent:
    """No output; the base of the others."""

    def phase(self, what: str) -> None:
        pass

    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None:
        pass

    def decide(self, record: Round | Evaluation) -> Verdict:
        return None

    def traffic(self, total: Traffic) -> None:
        pass

    def round(self, record: Round) -> None:
        pass

    def evaluation(self, record: Evaluation) -> None:
        pass

    def checkpoint(self, done: int) -> None:
        pass

    def ended(self, record: End) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def end(self) -> None:
        pass


class LiveWatch(Silent):
    """One line on a terminal that fits its width: bar, round, loss, accuracy, bytes, queries, time left."""

    ECHO = 3
    """Columns left free: a terminal shows Ctrl-C as ^C after the line, and this must not begin a new line."""

    def __init__(self, console: Console, refusals: Refusals | None = None):
        self.console, self._refusals = console, refusals or Refusals()
        self._totals: Totals | None = None
        self._phase = "", 0.0
        self._live = Live(get_renderable=self._line, console=console, transient=True)

    def phase(self, what: str) -> None:
        self._phase = what, time.monotonic()
        if what:
            self._live.start()
        elif self._totals is None:
            self._live.stop()

    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None:
        self._totals, self._phase = Totals(recipe, done), ("", 0.0)
        self._live.transient = False  # the display before the run vanishes, the display of the run stays
        self._live.start()

    def traffic(self, total: Traffic) -> None:
        assert self._totals is not None
        self._totals.traffic = total

    def round(self, record: Round) -> None:
        assert self._totals is not None
        self._totals.add(record)
        self._phase = "", 0.0
        for text in self._refusals.news(record):
            self.warn(text)

    def evaluation(self, record: Evaluation) -> None:
        assert self._totals is not None
        self._totals.evaluation, self._phase = record, ("", 0.0)

    def warn(self, text: str) -> None:
        print_line(self.console, text, "yellow")

    def end(self) -> None:
        self._phase = "", 0.0
        self._live.stop()

    def _line(self) -> Text:
        width = self.console.width - self.ECHO
        parts = [] if self._totals is None else self._totals.head(24 if width >= 100 else 10) + self._totals.parts()
        what, since = self._phase
        if what and (took := time.monotonic() - since) >= 1:  # short activities would only make the line jump
            parts.append((9, f"{what} {human_seconds(took)}"))
        shown = fitting([(worth, len(text)) for worth, text in parts], width, between=2)
        return Text(visible("  ".join(parts[position][1] for position in shown)), no_wrap=True, overflow="crop")


class PlainWatch(Silent):
    """A line every ten seconds, for logs."""

    def __init__(self, console: Console, refusals: Refusals | None = None):
        self.console, self._refusals = console, refusals or Refusals()
        self._last, self._said = time.monotonic(), 0
        self._totals: Totals | None = None
        self._waiting: Waiting | None = None

    def phase(self, what: str) -> None:
        self._over()
        if what:
            self._waiting = Waiting(
                lambda seconds: print_line(self.console, f"{what}, {human_seconds(seconds)} so far")
            )

    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None:
        self._over()
        self._totals = Totals(recipe, done)
        made = f", {done.done} rounds made" if done.done else ""
        self.warn(f"{recipe.name}: {recipe.algorithm.name}, {parameters:,} parameters{made}")

    def traffic(self, total: Traffic) -> None:
        assert self._totals is not None
        self._totals.traffic = total

    def round(self, record: Round) -> None:
        self._over()
        assert self._totals is not None
        self._totals.add(record)
        for text in self._refusals.news(record):
            self.warn(text)
        if time.monotonic() - self._last >= QUIET_SECONDS:
            self._say(self._totals)

    def evaluation(self, record: Evaluation) -> None:
        self._over()
        assert self._totals is not None
        self._totals.evaluation = record

    def warn(self, text: str) -> None:
        print_line(self.console, text)

    def end(self) -> None:
        self._over()
        if self._totals is not None and self._said < self._totals.round:
            self._say(self._totals)

    def _say(self, totals: Totals) -> None:
        self._last, self._said = time.monotonic(), totals.round
        said = " · ".join(text for _, text in totals.parts())
        self.warn(f"{totals.recipe.name}: round {totals.round}/{totals.recipe.rounds} · {said}")

    def _over(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None


class Waiting:
    """Tells from a separate thread, now and then, how long an activity has taken; nothing about short ones."""

    def __init__(self, tell: Callable[[float], None]):
        self._over, began = threading.Event(), time.monotonic()

        def wait() -> None:
            pause = FIRST_SECONDS
            while not self._over.wait(pause):
                tell(time.monotonic() - began)
                pause = QUIET_SECONDS

        self._thread = threading.Thread(target=wait, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class Replaying:
    """The progress of folding a ledger or a patch: a bar in a terminal, a line every ten seconds elsewhere, and nothing
    if it is short."""

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
            print_line(self.console, f"{self.what}: round {done}/{total} · {human_seconds(left)} left")

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
    """Show a run's ledger as it grows, until the run has ended. No entry is read twice."""
    place, before = folder_of(folder), None
    try:
        while True:
            with ledger_in(place) as ledger:
                if before is None:
                    view, start = replay.read_from(ledger, checkpoints.own(place, ledger)), ledger.start()
                    watch.begin(in_force(start, view.outline.extended), start.parameters, view.outline)
                    watch.traffic(traffic.total(place))
                    if view.outline.evaluations.last is not None:
                        watch.evaluation(view.outline.evaluations.last)
                else:
                    view = replay.read(ledger, before)
                    watch.traffic(traffic.total(place))
                    for entry in ledger.entries(before.outline.entries, view.outline.entries):
                        if isinstance(entry.record, Round):
                            watch.round(entry.record)
                        elif isinstance(entry.record, Evaluation):
                            watch.evaluation(entry.record)
                        elif isinstance(entry.record, Extended):
                            watch.begin(in_force(ledger.start(), entry.record), ledger.start().parameters, view.outline)
            before = view
            if once or view.end is not None:
                return
            time.sleep(1.0)
    finally:
        if before is not None:
            watch.end()


def watch_on(console: Console, serving: bool = False) -> LiveWatch | PlainWatch:
    """The watch for a console. serving: the process reports missing sites itself."""
    kind = LiveWatch if console.is_terminal else PlainWatch
    return kind(console, Refusals(of_sites=not serving))
