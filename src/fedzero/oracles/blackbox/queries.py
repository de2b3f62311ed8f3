"""Queries of many clients: reserve, call, log, retry.

    reserve all points of the requests, in one transaction      → from now on they are spent
    call each box, a few points at a time                       in threads; clients do not wait for each other
    log every value as it comes, then use it                    or the cause of a failure, and retry after a pause

A box that gives inf or NaN has no value at that point. That is an answer: neither this nor a later round asks it there
again. What a request comes to where a point has no value, or no answer in any attempt, is the asker's choice (`gaps`).

Everything but the calls themselves happens in the caller's thread, so a log need not be thread-safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

import numpy as np

from fedzero.oracles.blackbox.attempts import Call, Cancellation, Outcome, launch, no_value, short
from fedzero.oracles.blackbox.contract import EVALUATION, Query, QueryFailed, QueryLog, Told, Waiting, digest_of
from fedzero.oracles.contract import F64

LONGEST_WAIT = 3600.0
"""Seconds of one wait: longer ones are not left to a single timer."""
MAX_DOUBLINGS = 20
LOST = 3
"""Of a request with gaps: how many points without an answer, from the first one on, show that the box is down."""
NOWHERE, UNANSWERED = math.inf, math.nan
"""In the place of values, where gaps are allowed: the box has no value at the point; it did not answer."""


@dataclass(frozen=True)
class Conditions:
    """Limits of the queries."""

    timeout: float | None = None
    """seconds that an attempt may take; None: no limit"""
    retries: int = 2
    backoff: float = 0.1
    """seconds before the first retry, doubled for every further one"""
    workers: int = 1
    """how many points of a request are evaluated at the same time"""
    budget: int | None = None
    """attempts per client, in the whole run; None: no limit"""
    kept: int = 0
    """of the budget, for an evaluation at the end"""

    @property
    def but_kept(self) -> str:
        return f" (beside {self.kept} kept for the evaluation at the end)" if self.kept else ""


@dataclass(frozen=True)
class OpenBox:
    """A box ready to be called; `batched`: with all points of a request. `told`: it is not called but looked up."""

    call: Call
    label: str
    batched: bool
    told: Told | None = None


@dataclass(frozen=True, eq=False)
class Request:
    """Points (n, d) at which a client queries its box; the first is number `first` of its round.

    gaps: points without a value have `NOWHERE` or `UNANSWERED`, and the others their values; else the request fails.
    """

    client: int
    round: int
    first: int
    points: F64
    box: OpenBox
    gaps: bool = False


@dataclass(eq=False)
class Attempt:
    """An attempt at one point (of a batched box, at several): its rows in the log, and when it may begin."""

    rows: list[Query]
    not_before: float = 0.0
    retry: bool = False
    """A retry is reserved only when it begins."""


@dataclass(eq=False)
class Job:
    """The progress of a request."""

    request: Request
    values: dict[int, float] = field(default_factory=dict)
    """by position; `NOWHERE` where the box has none"""
    lost: dict[int, str] = field(default_factory=dict)
    """by position: why there is no answer; only where gaps are allowed"""
    failures: dict[int, int] = field(default_factory=dict)
    todo: list[Attempt] = field(default_factory=list)
    busy: int = 0
    """points (or calls) in progress; one that waits for its retry counts, so that a box that is down soon fails"""
    failed: QueryFailed | None = None

    def position(self, row: Query) -> int:
        return row.ordinal - self.request.first

    def point(self, row: Query) -> bytes:
        return bytes(self.request.points[self.position(row)].astype("<f8").tobytes())

    def fail(self, what: str) -> None:
        r = self.request
        self.failed = self.failed or QueryFailed(f"box {r.box.label} of client {r.client} {what}")

    def give_up(self, cause: str, failures: int, positions: Sequence[int]) -> None:
        """There will be no answer at these points."""
        self._lose(f"gave no value in {failures} attempt{'s' * (failures > 1)}: {cause}", positions)

    def cannot_pay(self, conditions: Conditions, cause: str, positions: Sequence[int]) -> None:
        self._lose(_budget_spent(conditions, cause), positions)

    def _lose(self, what: str, positions: Sequence[int]) -> None:
        if self.request.gaps:
            self.lost |= dict.fromkeys(positions, what)
        else:
            self.fail(what)

    def note_absent(self, position: int, cause: str) -> None:
        """The box has no value at a point."""
        if self.request.gaps:
            self.values[position] = NOWHERE
        else:
            self.fail(f"gave no value in 1 attempt: {cause}")

    @property
    def down(self) -> bool:
        """By the order of the points, so that it does not depend on which attempts ended first."""
        return all(position in self.lost for position in range(min(LOST, len(self.request.points))))

    @property
    def over(self) -> bool:
        """Nothing more is asked."""
        return self.failed is not None or self.down

    def result(self) -> F64 | QueryFailed:
        if self.failed is not None:
            return self.failed
        if self.down:
            return np.full(len(self.request.points), UNANSWERED)
        return np.array([self.values.get(i, UNANSWERED) for i in range(len(self.request.points))])


@dataclass(frozen=True)
class Running:
    """An attempt in progress."""

    job: Job
    attempt: Attempt
    cancellation: Cancellation
    deadline: float


def query(requests: Sequence[Request], log: QueryLog, conditions: Conditions) -> list[F64 | QueryFailed]:
    """The values of every request, or why there are none. What the log already has is not queried again."""
    jobs = [_job(request, log, conditions) for request in requests]
    while told := [job for job in jobs if job.todo and job.request.box.told is not None]:
        _log_told(told, log)
        jobs = [_job(request, log, conditions) for request in requests]
    if rows := [row for job in jobs for attempt in job.todo for row in attempt.rows]:
        log.write(rows)
        _Dispatcher(jobs, log, conditions).run()
    return [job.result() for job in jobs]


def _log_told(jobs: Sequence[Job], log: QueryLog) -> None:
    """Log what was told of the jobs' attempts, all at once and never reserved; raises `Waiting` where it was not."""
    rows = [replace(row, point=job.point(row)) for job in jobs for attempt in job.todo for row in attempt.rows]
    told = jobs[0].request.box.told
    assert told is not None
    outcomes, done = told(rows), list[Query]()
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome is None:
            raise Waiting
        if isinstance(outcome, str):
            done.append(replace(row, state="failed", cause=short(outcome), point=None))
        else:
            done.append(answered(row, outcome, row.point or b""))
    log.write(done)


def _job(request: Request, log: QueryLog, conditions: Conditions) -> Job:
    """What the log has of a request that an earlier process may have begun, and what remains to be done.

    An attempt at another point under the same number does not count. One that has neither value nor cause was lost in
    a crash: it is spent, but is not the box's failure, so it does not count as one of the retries.
    """
    job, missing, absent = Job(request), list[Query](), log.absent(request.client)
    for i, point in enumerate(request.points):
        digest = digest_of(point)
        tried = log.tried(request.client, request.round, request.first + i)
        same = [row for row in tried if row.digest == digest]
        known = [row.value for row in same if row.value is not None]
        if known:
            job.values[i] = known[-1]
            continue
        if digest in absent:
            job.note_absent(i, absent[digest].cause)
            continue
        failed = [row for row in same if row.state == "failed"]
        job.failures[i] = len(failed)
        if len(failed) > conditions.retries:
            job.give_up(failed[-1].cause, len(failed), [i])
            continue
        attempt = tried[-1].attempt + 1 if tried else 0
        missing.append(Query(request.client, request.round, request.first + i, attempt, digest))
    if not job.over and not _affordable(log, conditions, request.client, len(missing)):
        causes = [row.cause for q in missing for row in log.tried(q.client, q.round, q.ordinal) if row.cause]
        job.cannot_pay(conditions, causes[-1] if causes else "", [job.position(row) for row in missing])
        missing = []
    if missing and not job.over:
        job.todo = [Attempt(missing)] if request.box.batched else [Attempt([row]) for row in missing]
    return job


def answered(row: Query, value: float, point: bytes) -> Query:
    """With its value. An evaluation asks all clients at one point, so client 0's row has it for all."""
    kept = None if row.ordinal == EVALUATION and row.client else point
    return replace(row, state="done", value=value, point=kept)


def _affordable(log: QueryLog, conditions: Conditions, client: int, queries: int) -> bool:
    return conditions.budget is None or log.spent(client) + queries <= conditions.budget - conditions.kept


def _budget_spent(conditions: Conditions, cause: str) -> str:
    last = f"; {cause}" if cause else ""
    return f"cannot be asked (again): its budget of {conditions.budget} queries is spent{conditions.but_kept}{last}"


class _Dispatcher:
    """Carries out jobs, all at the same time."""

    def __init__(self, jobs: Sequence[Job], log: QueryLog, conditions: Conditions):
        self.jobs, self.log, self.conditions = jobs, log, conditions
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._running: dict[int, Running] = {}
        self._launched = 0

    def run(self) -> None:
        try:
            while True:
                for job in self.jobs:
                    self._start(job)
                if not self._running and not any(job.todo for job in self.jobs):
                    return
                self._settle(list(self._wait()))
        finally:  # nothing that was started here is left running, whatever happened
            for running in self._running.values():
                running.cancellation.cancel()

    def _start(self, job: Job) -> None:
        """Launch what may begin now; release the reservations of what never will."""
        now = time.monotonic()
        for attempt in [a for a in job.todo if a.not_before <= now]:
            if job.over:
                break
            if not attempt.retry and job.busy == self.conditions.workers:
                continue
            if not attempt.retry and not job.request.box.batched and self._answered_elsewhere(job, attempt.rows[0]):
                continue
            job.todo.remove(attempt)
            if attempt.retry:
                if not _affordable(self.log, self.conditions, job.request.client, len(attempt.rows)):
                    job.cannot_pay(self.conditions, attempt.rows[0].cause, list(map(job.position, attempt.rows)))
                    job.busy -= 1
                    continue
                attempt.rows = [replace(row, cause="") for row in attempt.rows]
                self.log.write(attempt.rows)
            self._launch(job, attempt)
        if job.over and job.todo:
            if reserved := [row for attempt in job.todo if not attempt.retry for row in attempt.rows]:
                self.log.write([replace(row, state="unused") for row in reserved])
            job.todo = []

    def _answered_elsewhere(self, job: Job, row: Query) -> bool:
        """Whether a point need not be asked, or not yet, because the box was or is being asked there: it may have no
        value there, and is told so once."""
        known = self.log.absent(row.client).get(row.digest)
        if known is not None:
            job.todo = [attempt for attempt in job.todo if attempt.rows[0] is not row]
            self.log.write([replace(row, state="unused")])
            job.note_absent(job.position(row), known.cause)
        running = (each.attempt.rows[0] for each in self._running.values() if each.job is job)
        return known is not None or any(each.digest == row.digest for each in running)

    def _launch(self, job: Job, attempt: Attempt) -> None:
        points = job.request.points[[job.position(row) for row in attempt.rows]]
        timeout = self.conditions.timeout
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        cancellation = launch(self._launched, job.request.box.call, points, timeout, self._outcomes)
        self._running[self._launched] = Running(job, attempt, cancellation, deadline)
        self._launched += 1
        job.busy += not attempt.retry

    def _wait(self) -> Iterator[tuple[Running, list[float] | str]]:
        """Attempts that ended or timed out; none if a retry is due, or after `LONGEST_WAIT`."""
        due = [running.deadline for running in self._running.values()]
        due += [attempt.not_before for job in self.jobs for attempt in job.todo if attempt.retry]
        pause = min(due) - time.monotonic()
        try:
            while True:
                number, result = self._outcomes.get(timeout=min(max(0.0, pause), LONGEST_WAIT))
                if number in self._running:  # not abandoned
                    yield self._running.pop(number), result
                pause = 0.0  # outcomes that are there already go into the same transaction
        except Empty:
            pass
        now = time.monotonic()
        for number in [n for n, running in self._running.items() if running.deadline <= now]:
            running = self._running.pop(number)
            running.cancellation.cancel()
            yield running, f"it did not answer within {self.conditions.timeout:g} s"

    def _settle(self, ended: list[tuple[Running, list[float] | str]]) -> None:
        """Log the outcomes of attempts, and only then use them."""
        rows: list[Query] = []
        for running, result in ended:
            of = running.cancellation
            for i, bare in enumerate(running.attempt.rows):
                row = bare if i else replace(bare, sent=of.sent, received=of.received)
                if isinstance(result, str):
                    rows.append(replace(row, state="failed", cause=short(result)))
                    continue
                if math.isfinite(result[i]):
                    rows.append(answered(row, result[i], running.job.point(row)))
                else:
                    rows.append(replace(row, state="absent", cause=no_value(result[i])))
        if rows:
            self.log.write(rows)
        for running, result in ended:
            job, done = running.job, running.attempt.rows
            if isinstance(result, str):
                self._retry(job, done, result)
            else:
                job.busy -= 1
                for row, value in zip(done, result, strict=True):
                    if math.isfinite(value):
                        job.values[job.position(row)] = value
                    else:
                        job.note_absent(job.position(row), no_value(value))

    def _retry(self, job: Job, rows: list[Query], cause: str) -> None:
        for row in rows:
            job.failures[job.position(row)] += 1
        failures = max(job.failures[job.position(row)] for row in rows)
        if failures > self.conditions.retries:
            job.busy -= 1
            job.give_up(cause, failures, list(map(job.position, rows)))
        elif not job.over:
            later = time.monotonic() + self.conditions.backoff * 2.0 ** min(failures - 1, MAX_DOUBLINGS)
            again = [replace(row, attempt=row.attempt + 1, cause=cause) for row in rows]
            job.todo.insert(0, Attempt(again, later, retry=True))
