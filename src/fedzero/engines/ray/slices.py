"""Slices of a cohort, dealt to workers; if a worker dies, another one repeats its part of the round.

The number of slices depends on the number of workers, not on which of them are alive or done first. Losses that are
merged within a slice therefore have the same bits after a death, and on whichever worker the slice is played.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedzero.engines.ray.on_ray import Ref, WorkerDead, WorkerPool, WorkerRestarting
from fedzero.engines.ray.worker import CatchUp, NeedsCatchUp, PendingQueries, WorkerInfo
from fedzero.errors import FedzeroError

MOST_LOST = 5
"""The run ends when so many workers have died during one slice of a round: perhaps the slice kills them."""
PATIENCE = 60.0
"""Seconds to wait for the other workers once one of them is ready."""

Step = Callable[[int], Ref]
"""A call of a worker."""


@dataclass(eq=False)
class Slice:
    """Clients that are played together, their worker, and the steps of the round that are done. pinned: the clients
    have memories at this worker. life: the worker's life in which the steps were done. lost: how many workers died
    during the slice."""

    clients: Sequence[int]
    worker: int
    pinned: bool = False
    done: list[Step] = field(default_factory=list)
    life: int = 0
    lost: int = 0


@dataclass(eq=False)
class _Job:
    """A slice at a worker: the steps to do one after the other, the awaited answer, and the calls by which the
    worker's replica catches up, if it had to."""

    slice: Slice
    steps: list[Step] = field(default_factory=list)
    ref: Ref = None
    caught: list[Ref] = field(default_factory=list)


class Scheduler:
    """The workers that are alive, and which of them plays which slice.

    base: the digest of the base model that workers must find. catch_up: the parts of the catch-up for a worker that is
    behind. report: is told, in a sentence, of workers that died.
    """

    def __init__(
        self, pool: WorkerPool, base: bytes, catch_up: Callable[[], Iterable[CatchUp]], report: Callable[[str], None]
    ):
        self.pool, self.base, self.catch_up, self.report = pool, base, catch_up, report
        self.opened = False
        self.patience: float | None = None
        """seconds that `play` waits before it says that nothing has come; None: as long as it takes"""
        self.alive: dict[int, WorkerInfo] = {}
        self.lives = [0] * pool.size
        """how often each worker has died"""
        self._before: dict[int, WorkerInfo] = {}
        """by worker: the process that died last"""
        self._absent: dict[int, Ref] = {worker: pool.about(worker) for worker in range(pool.size)}

    def open(self) -> None:
        """Wait until all workers are ready; once one is, wait for the others at most `PATIENCE` seconds."""
        self.opened, end = True, None
        while self._absent:
            self._returned(None if end is None else max(0.0, end - time.monotonic()))
            if self.alive:
                end = end or time.monotonic() + PATIENCE
                if self._absent and time.monotonic() > end:
                    self.report(f"{len(self._absent)} of {self.pool.size} workers are not ready: the others begin")
                    return

    def play(
        self, slices: Sequence[Slice], step: Callable[[Slice], Step]
    ) -> Iterator[tuple[Slice, Any] | tuple[None, PendingQueries | None]]:
        """Do a step of every slice; yields each slice with its result. A pair without a slice carries queries, which
        the caller makes durable before it asks for the next pair, or nothing: `patience` is over. If a worker dies
        later, the steps of its slices are repeated."""
        if self._absent:
            self._returned(0)
        waiting = [_Job(slice) for slice in slices]
        busy: dict[int, _Job] = {}
        while waiting or busy:
            for anywhere in (False, True):  # a worker's own slices come first
                for job in list(waiting):
                    worker = self._worker_for(job.slice, busy, anywhere)
                    if worker is not None:
                        waiting.remove(job)
                        self._begin(job, worker, step(job.slice))
                        busy[worker] = job
            if not busy:
                if not self._returned(self.patience):
                    yield None, None
                continue
            found = self.pool.first([job.ref for job in busy.values()], self.patience)
            if not found:
                yield None, None
                continue
            (ready,) = found
            worker = next(worker for worker, job in busy.items() if job.ref == ready)
            job = busy.pop(worker)
            try:
                answer = self.pool.result(ready)
                if answer == NeedsCatchUp(None):
                    raise WorkerRestarting("it died between two calls")
                if isinstance(answer, PendingQueries):
                    yield None, answer
                goes_on = self._proceeds(worker, job, answer)
            except WorkerRestarting as error:
                self._lose(worker)
                job.slice.lost += 1
                if job.slice.lost == MOST_LOST:
                    raise FedzeroError(f"{MOST_LOST} workers died of the same clients in one round: {error}") from error
                waiting.append(_Job(job.slice))
                continue
            if goes_on:
                busy[worker] = job
                continue
            job.slice.done.append(job.steps[0])
            yield job.slice, answer

    def _begin(self, job: _Job, worker: int, step: Step) -> None:
        """Begin a step at a worker, after repeating steps that were done by another worker or in an earlier life."""
        slice, life = job.slice, self.lives[worker]
        job.steps = [step] if (slice.worker, slice.life) == (worker, life) else [*slice.done, step]
        slice.worker, slice.life = worker, life
        job.ref = job.steps[0](worker)

    def _proceeds(self, worker: int, job: _Job, answer: Any) -> bool:
        """Call the worker again where an answer is not the last of its job."""
        if isinstance(answer, NeedsCatchUp):
            if job.caught:
                for ref in job.caught:
                    self.pool.result(ref)
                raise FedzeroError(f"a worker stands before round {answer.round} after all that the ledger has")
            job.caught = [self.pool.call(worker, "catch_up", self.pool.put(part)) for part in self.catch_up()]
            job.ref = job.steps[0](worker)
        elif isinstance(answer, PendingQueries):
            job.ref = self.pool.call(worker, "proceed")
        elif len(job.steps) > 1:
            del job.steps[0]
            job.ref = job.steps[0](worker)
        else:
            return False
        return True

    def _worker_for(self, slice: Slice, busy: dict[int, Any], anywhere: bool) -> int | None:
        """The slice's own worker or, if that is dead, an idle one. anywhere: an idle one also if its own is busy, as
        long as the slice has not begun in this round."""
        if slice.worker in self.alive and slice.worker not in busy:
            return slice.worker
        if slice.worker in self.alive and (slice.done or slice.pinned or not anywhere):
            return None
        return next((worker for worker in self.alive if worker not in busy), None)

    def restart(self, worker: int) -> None:
        """Restart a worker whose replica cannot be trusted."""
        if worker in self.alive:
            self.pool.restart(worker)
            self._lose(worker)

    def _lose(self, worker: int) -> None:
        about = self._before[worker] = self.alive.pop(worker)
        self.report(f"worker {worker} (process {about.pid} on {about.host}) is lost: Ray starts another in its place")
        self.lives[worker] += 1
        self._absent[worker] = self.pool.about(worker)

    def _returned(self, seconds: float | None) -> bool:
        """Take in the workers that are ready by now; waits up to so many seconds for the first. Returns whether there
        was news of any."""
        if not self._absent:
            raise FedzeroError("no worker is left")
        news = self.pool.first(self._absent.values(), seconds)
        for ref in news:
            worker = next(worker for worker, asked in self._absent.items() if asked == ref)
            try:
                about: WorkerInfo = self.pool.result(ref)
            except WorkerDead as error:
                del self._absent[worker]
                if not self.alive and not self._absent:
                    raise FedzeroError(f"no worker can be started: {error}") from error
                self.report(f"worker {worker} cannot be started: {error}")
                continue
            except WorkerRestarting:  # it is still being started
                self._absent[worker] = self.pool.about(worker)
                continue
            if about == self._before.get(worker):  # it was out of reach, and may still play a step that others repeat
                self.pool.restart(worker)
                self._absent[worker] = self.pool.about(worker)
                continue
            if about.base != self.base:
                raise FedzeroError(
                    f"a worker on {about.host} starts from model {about.base.hex()}, not {self.base.hex()}: give all "
                    "machines the same release, data and base model"
                )
            del self._absent[worker]
            self.alive[worker] = about
        return bool(news)
