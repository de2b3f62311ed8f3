"""Asks of many clients, carried out: reserve, call, write down, try again.

    reserve all points of the asks, in one transaction      → from now on they are spent
    call each box, a few points at a time                   in threads; clients do not wait for each other
    write every value down as it comes, then use it         or the cause of a failure, and try again after a while

Everything but the calls themselves happens in the thread that asks, so a log need not fear company.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

import numpy as np

from fedzero.oracles.blackbox.attempts import Call, Cancellation, Landed, launch, short
from fedzero.oracles.blackbox.contract import EVALUATION, Query, QueryFailed, QueryLog, digest_of
from fedzero.oracles.contract import F64

A_WHILE = 3600.0
"""Seconds that are waited at a stretch: no clock has to be trusted with longer ones."""
MOST_DOUBLINGS = 20


@dataclass(frozen=True)
class Conditions:
    """On what conditions boxes are asked."""

    timeout: float | None = None
    """seconds that an attempt may take; None: as long as it likes"""
    retries: int = 2
    backoff: float = 0.1
    """seconds before the first retry, doubled for every further one"""
    workers: int = 1
    """how many points of an ask are evaluated at the same time"""
    budget: int | None = None
    """attempts per client, in the whole run; None: no limit"""


@dataclass(frozen=True)
class Opened:
    """A box ready to be called."""

    call: Call
    label: str
    whole: bool


@dataclass(frozen=True, eq=False)
class Wanted:
    """The values that a client wants of its box: points (n, d), the first of which is number `first` of its round."""

    client: int
    round: int
    first: int
    points: F64
    box: Opened


@dataclass(eq=False)
class Try:
    """An attempt at one point (or, of a whole box, at several): its rows in the log, and when it may begin."""

    rows: list[Query]
    not_before: float = 0.0
    retry: bool = False
    """A retry is reserved only when it begins."""


@dataclass(eq=False)
class Job:
    """How far a client's ask has come."""

    wanted: Wanted
    values: dict[int, float] = field(default_factory=dict)
    """by position"""
    failures: dict[int, int] = field(default_factory=dict)
    todo: list[Try] = field(default_factory=list)
    busy: int = 0
    """points (or calls) under way; one that waits for its retry is, so that a box that is down is soon given up"""
    failed: QueryFailed | None = None

    def position(self, row: Query) -> int:
        return row.ordinal - self.wanted.first

    def fail(self, what: str) -> None:
        w = self.wanted
        self.failed = self.failed or QueryFailed(f"box {w.box.label} of client {w.client} {what}")

    def gave_up(self, cause: str, failures: int) -> None:
        self.fail(f"gave no value in {failures} attempt{'s' * (failures > 1)}: {cause}")

    def outcome(self) -> F64 | QueryFailed:
        if self.failed is not None:
            return self.failed
        return np.array([self.values[i] for i in range(len(self.wanted.points))])


@dataclass(frozen=True)
class Flight:
    """An attempt that is under way."""

    job: Job
    attempt: Try
    leash: Cancellation
    deadline: float


def ask(wanted: Sequence[Wanted], log: QueryLog, conditions: Conditions) -> list[F64 | QueryFailed]:
    """Values for every client, or why it has none. What the log knows already is not asked again."""
    jobs = [_job(each, log, conditions) for each in wanted]
    if rows := [row for job in jobs for attempt in job.todo for row in attempt.rows]:
        log.write(rows)
        _Crew(jobs, log, conditions).work()
    return [job.outcome() for job in jobs]


def _job(wanted: Wanted, log: QueryLog, conditions: Conditions) -> Job:
    """What the log says of an ask that an earlier process may have begun, and what remains to be done.

    An attempt at another point under the same number answers nothing. One that has neither value nor cause was lost in
    a crash: it is paid for, but the box is not to blame, so it does not count as one of the retries.
    """
    job, missing = Job(wanted), []
    for i, point in enumerate(wanted.points):
        digest = digest_of(point)
        tried = log.tried(wanted.client, wanted.round, wanted.first + i)
        same = [row for row in tried if row.digest == digest]
        known = [row.value for row in same if row.value is not None]
        if known:
            job.values[i] = known[-1]
            continue
        failed = [row for row in same if row.state == "failed"]
        job.failures[i] = len(failed)
        if len(failed) > conditions.retries:
            job.gave_up(failed[-1].cause, len(failed))
        attempt = tried[-1].attempt + 1 if tried else 0
        missing.append(Query(wanted.client, wanted.round, wanted.first + i, attempt, digest))
    if job.failed is None and not _pays(log, conditions, wanted.client, len(missing)):
        causes = [row.cause for q in missing for row in log.tried(q.client, q.round, q.ordinal) if row.cause]
        job.fail(_broke(conditions, causes[-1] if causes else ""))
    if job.failed is None and missing:
        job.todo = [Try(missing)] if wanted.box.whole else [Try([row]) for row in missing]
    return job


def _pays(log: QueryLog, conditions: Conditions, client: int, queries: int) -> bool:
    return conditions.budget is None or log.spent(client) + queries <= conditions.budget


def _broke(conditions: Conditions, cause: str) -> str:
    last = f"; {cause}" if cause else ""
    return f"cannot be asked (again): its budget of {conditions.budget} queries is spent{last}"


class _Crew:
    """Carries out jobs, all at the same time."""

    def __init__(self, jobs: Sequence[Job], log: QueryLog, conditions: Conditions):
        self.jobs, self.log, self.conditions = jobs, log, conditions
        self._landed: SimpleQueue[Landed] = SimpleQueue()
        self._flights: dict[int, Flight] = {}
        self._launched = 0

    def work(self) -> None:
        try:
            while True:
                for job in self.jobs:
                    self._start(job)
                if not self._flights and not any(job.todo for job in self.jobs):
                    return
                self._settle(list(self._wait()))
        finally:  # nothing that was started here is left running, whatever happened
            for flight in self._flights.values():
                flight.leash.cut()

    def _start(self, job: Job) -> None:
        """Launch what may begin now; give back what will never begin."""
        now = time.monotonic()
        for attempt in [a for a in job.todo if a.not_before <= now]:
            if job.failed is not None:
                break
            if not attempt.retry and job.busy == self.conditions.workers:
                continue
            job.todo.remove(attempt)
            if attempt.retry:
                if not _pays(self.log, self.conditions, job.wanted.client, len(attempt.rows)):
                    job.fail(_broke(self.conditions, attempt.rows[0].cause))
                    break
                attempt.rows = [replace(row, cause="") for row in attempt.rows]
                self.log.write(attempt.rows)
            self._launch(job, attempt)
        if job.failed is not None and job.todo:
            if reserved := [row for attempt in job.todo if not attempt.retry for row in attempt.rows]:
                self.log.write([replace(row, state="unused") for row in reserved])
            job.todo = []

    def _launch(self, job: Job, attempt: Try) -> None:
        points = job.wanted.points[[job.position(row) for row in attempt.rows]]
        timeout = self.conditions.timeout
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        leash = launch(self._launched, job.wanted.box.call, points, timeout, self._landed)
        self._flights[self._launched] = Flight(job, attempt, leash, deadline)
        self._launched += 1
        job.busy += not attempt.retry

    def _wait(self) -> Iterator[tuple[Flight, list[float] | str]]:
        """Whatever came in, or was due and did not; nothing if a retry is due to begin, or after a long while."""
        due = [flight.deadline for flight in self._flights.values()]
        due += [attempt.not_before for job in self.jobs for attempt in job.todo if attempt.retry]
        pause = min(due) - time.monotonic()
        try:
            while True:
                number, result = self._landed.get(timeout=min(max(0.0, pause), A_WHILE))
                if number in self._flights:  # not abandoned
                    yield self._flights.pop(number), result
                pause = 0.0  # what else is there already goes into the same transaction
        except Empty:
            pass
        now = time.monotonic()
        for number in [n for n, flight in self._flights.items() if flight.deadline <= now]:
            flight = self._flights.pop(number)
            flight.leash.cut()
            yield flight, f"it did not answer within {self.conditions.timeout:g} s"

    def _settle(self, landed: list[tuple[Flight, list[float] | str]]) -> None:
        """Write down what came of attempts, and only then go by it."""
        rows: list[Query] = []
        for flight, result in landed:
            for i, row in enumerate(flight.attempt.rows):
                if isinstance(result, str):
                    rows.append(replace(row, state="failed", cause=short(result)))
                    continue
                point = flight.job.wanted.points[flight.job.position(row)].astype("<f8").tobytes()
                kept = None if row.ordinal == EVALUATION else point
                rows.append(replace(row, state="done", value=result[i], point=kept))
        if rows:
            self.log.write(rows)
        for flight, result in landed:
            job, done = flight.job, flight.attempt.rows
            if isinstance(result, str):
                self._again(job, done, result)
            else:
                job.busy -= 1
                job.values |= {job.position(row): value for row, value in zip(done, result, strict=True)}

    def _again(self, job: Job, rows: list[Query], cause: str) -> None:
        for row in rows:
            job.failures[job.position(row)] += 1
        failures = max(job.failures[job.position(row)] for row in rows)
        if failures > self.conditions.retries:
            job.gave_up(cause, failures)
        elif job.failed is None:
            later = time.monotonic() + self.conditions.backoff * 2.0 ** min(failures - 1, MOST_DOUBLINGS)
            again = [replace(row, attempt=row.attempt + 1, cause=cause) for row in rows]
            job.todo.insert(0, Try(again, later, retry=True))
