"""A thread that tells a logger of a run, from the ledger and from the rounds as they are made.

A round only appends a point to a queue of bounded length. The thread writes what is in it every few seconds. Errors
are said once, and end the thread and nothing else. Points are made of durable records; a resume continues the series
after its last step, and fills in what was lost, because the ledger has all rounds.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from fedzero.callbacks import Callback, EndInfo, EvaluationInfo, RoundInfo, RunInfo, Totals
from fedzero.ledger.records import Evaluation, Round, metrics_of, readers_of, time_of
from fedzero.ledger.store import ledger_in
from fedzero.lines import LONGEST_SAID, said_of
from fedzero.report import page
from fedzero.results.history import history

LONGEST = 10_000
"""Points that wait; the oldest of more are left out."""
PIECE = 100
"""Points of the ledger that are written at a time."""
EVERY = 5.0
"""Seconds between two writes: a transaction of MLflow costs as much as many numbers in it."""
PATIENCE = 60.0
"""Seconds that the end of a run waits for a logger."""


class Point(NamedTuple):
    """Numbers after `step` rounds. at: seconds since 1970. evaluated: of an evaluation, else of a round."""

    step: int
    at: float
    values: Mapping[str, float]
    evaluated: bool = False


@dataclass(frozen=True)
class Written:
    """The last steps that a series has already; −1: none."""

    rounds: int = -1
    evaluations: int = -1

    def has(self, point: Point) -> bool:
        return point.step <= (self.evaluations if point.evaluated else self.rounds)


class Sink(Protocol):
    """A logger. All is called by one thread."""

    def open(self, run: RunInfo, series: str) -> Written:
        """Begin the series of that name, or continue it."""

    def write(self, points: Sequence[Point]) -> None: ...
    def page(self, path: Path) -> None:
        """Keep the report of the run."""

    def close(self, complete: bool) -> None: ...


class Reporter(Callback):
    """Tells one logger. Its calls take microseconds."""

    def __init__(self, name: str, sink: Callable[[], Sink], warn: Callable[[str], None]):
        self.name, self._sink, self._warn = name, sink, warn
        self._points: deque[Point] = deque(maxlen=LONGEST)
        self._left_out, self._over = 0, threading.Event()
        self._thread: threading.Thread | None = None
        self._end: EndInfo | None = None
        self._failed = False
        self._clients = 1
        self.writing, self.all = 0.0, 0.0
        """Processor seconds of the thread: for points; with imports, opening, the page and closing."""

    def begin(self, run: RunInfo) -> None:
        self._clients = run.clients
        self._thread = threading.Thread(target=self._work, args=(run,), name=f"fedzero-{self.name}", daemon=True)
        self._thread.start()

    def round(self, result: RoundInfo) -> None:
        place = result.rounds, time.time(), result.loss, result.totals, self._clients
        self._put(of_round(*place, result.epsilon, result.time))

    def evaluation(self, result: EvaluationInfo) -> None:
        self._put(of_evaluation(result.rounds, time.time(), result.metrics))

    def end(self, result: EndInfo) -> None:
        if self._thread is None:
            return
        self._end = result
        self._over.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._warn(f"{self.name} has not finished after {PATIENCE:g} s; its last points may be missing")
        if self._left_out:
            self._warn(f"{self.name} was too slow: {self._left_out:,} points of rounds were left out")

    def _put(self, point: Point) -> None:
        if self._failed:
            return
        self._left_out += len(self._points) == LONGEST
        self._points.append(point)

    def _work(self, run: RunInfo) -> None:
        try:
            sink = self._sink()
            written = sink.open(run, series_of(run.folder))
            began = time.thread_time()
            recorded = _recorded(run, written)
            while points := list(islice(recorded, PIECE)):
                sink.write(points)
            while not self._over.wait(EVERY):
                self._write(sink, written)
            self._write(sink, written)
            self.writing = time.thread_time() - began
            assert self._end is not None
            if self._end.complete:
                with tempfile.TemporaryDirectory() as place:
                    written_page = Path(place) / "report.html"
                    page.write([history(run.folder)], written_page)
                    sink.page(written_page)
            sink.close(self._end.complete)
            self.all = time.thread_time()
        except Exception as error:  # whatever a library raises
            self._failed = True
            self._points.clear()
            self._warn(f"{self.name} gets no more of this run, which goes on ({said_of(error, LONGEST_SAID)})")

    def _write(self, sink: Sink, written: Written) -> None:
        points = [self._points.popleft() for _ in range(len(self._points))]
        if points := [point for point in points if not written.has(point)]:
            sink.write(points)


def of_round(
    step: int,
    at: float,
    loss: float | None,
    totals: Totals,
    clients: int,
    epsilon: float | None = None,
    simulated: float | None = None,
) -> Point:
    """bytes are those of a client, since the start; queries are those of all clients, since the start."""
    up, down = totals.bytes_up / clients, totals.bytes_down / clients
    values = {"bytes/up": up, "bytes/down": down, "queries": float(totals.queries), "seconds": totals.seconds}
    told = {"train/loss": loss, "privacy/epsilon": epsilon, "simulated/seconds": simulated}
    return Point(step, at, {name: number for name, number in told.items() if number is not None} | values)


def of_evaluation(step: int, at: float, metrics: Mapping[str, float]) -> Point:
    return Point(step, at, {f"test/{name}": value for name, value in metrics.items()}, evaluated=True)


def series_of(folder: Path) -> str:
    """The name of a run's series: the same after a resume, in a folder that was moved, and for all loggers; another one
    for another run of the same recipe."""
    with ledger_in(folder) as ledger:
        first = next(ledger.entries(0, 1))
    return hashlib.sha256(first.chain + repr(first.at).encode()).hexdigest()[:16]


def _recorded(run: RunInfo, written: Written) -> Iterator[Point]:
    """The points of the ledger at the begin of this call that the series does not have."""
    if written.rounds >= run.rounds and written.evaluations >= run.rounds:
        return
    up = down = queries = 0
    with ledger_in(run.folder) as ledger:
        for entry in ledger.entries(0, run.entries):
            record = entry.record
            if isinstance(record, Round):
                up, down, queries = up + record.bytes_up, down + record.bytes_down, queries + record.queries
                totals = Totals(up, down, queries, entry.seconds)
                spent, simulated = readers_of(record), time_of(record)
                point = of_round(record.round + 1, entry.at, record.loss, totals, run.clients, spent, simulated)
            elif isinstance(record, Evaluation):
                point = of_evaluation(record.round, entry.at, metrics_of(record))
            else:
                continue
            if not written.has(point):
                yield point
