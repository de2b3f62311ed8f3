"""Slices of a cohort, dealt to workers; where a worker dies, what it had played of the round is played by another.

How many slices there are depends on the number of workers, not on who is alive or done first, so losses merged within a
slice have the same bits after a death, and wherever it is played.
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
"""Workers that may die of one slice in one round before the run ends: perhaps it is what kills them."""
PATIENCE = 60.0
"""Seconds that all workers are waited for once one of them is ready."""

Step = Callable[[int], Ref]
"""A call of a worker."""


@dataclass(eq=False)
class Slice:
    """Clients that are played together, the worker they are at, and the steps of the round that it has done. pinned:
    they have memories there. life: which of the worker's it was. lost: how many died meanwhile."""

    clients: Sequence[int]
    worker: int
    pinned: bool = False
    done: list[Step] = field(default_factory=list)
    life: int = 0
    lost: int = 0


@dataclass(eq=False)
class _Job:
    """A slice at a worker: steps to be done one after the other, the answer that is awaited, and whether the worker's
    replica had to catch up."""

    slice: Slice
    steps: list[Step] = field(default_factory=list)
    ref: Ref = None
    caught: list[Ref] = field(default_factory=list)


class Scheduler:
    """The workers that are alive, and who plays what.

    base: the digest that workers must find. standing: what one that is behind is sent, in parts. report: is told, in a
    sentence, of workers that died.
    """

    def __init__(
        self, crew: WorkerPool, base: bytes, standing: Callable[[], Iterable[CatchUp]], report: Callable[[str], None]
    ):
        self.crew, self.base, self.standing, self.report = crew, base, standing, report
        self.opened = False
        self.alive: dict[int, WorkerInfo] = {}
        self.lives = [0] * crew.size
        """how often each worker has died"""
        self._before: dict[int, WorkerInfo] = {}
        """what each was that died last"""
        self._absent: dict[int, Ref] = {worker: crew.about(worker) for worker in range(crew.size)}

    def open(self) -> None:
        """Wait until all workers are ready; once one is, for the others not for ever."""
        self.opened, end = True, None
        while self._absent:
            self._returned(None if end is None else max(0.0, end - time.monotonic()))
            if self.alive:
                end = end or time.monotonic() + PATIENCE
                if self._absent and time.monotonic() > end:
                    self.report(f"{len(self._absent)} of {self.crew.size} workers are not ready: the others begin")
                    return

    def play(
        self, slices: Sequence[Slice], step: Callable[[Slice], Step]
    ) -> Iterator[tuple[Slice, Any] | tuple[None, PendingQueries]]:
        """A step of every slice, and its result when it is done; without a slice, queries that are durable once the
        next one is asked for. Where a worker dies later, the steps of its slices are done again."""
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
                self._returned(None)
                continue
            (ready,) = self.crew.first([job.ref for job in busy.values()])
            worker = next(worker for worker, job in busy.items() if job.ref == ready)
            job = busy.pop(worker)
            try:
                answer = self.crew.result(ready)
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
        """A step at a worker, after those that another one had done, or that one before it died."""
        slice, life = job.slice, self.lives[worker]
        job.steps = [step] if (slice.worker, slice.life) == (worker, life) else [*slice.done, step]
        slice.worker, slice.life = worker, life
        job.ref = job.steps[0](worker)

    def _proceeds(self, worker: int, job: _Job, answer: Any) -> bool:
        """Call the worker again where an answer is not the last of its job."""
        if isinstance(answer, NeedsCatchUp):
            if job.caught:
                for ref in job.caught:
                    self.crew.result(ref)
                raise FedzeroError(f"a worker stands before round {answer.round} after all that the ledger has")
            job.caught = [self.crew.call(worker, "catch_up", self.crew.put(part)) for part in self.standing()]
            job.ref = job.steps[0](worker)
        elif isinstance(answer, PendingQueries):
            job.ref = self.crew.call(worker, "proceed")
        elif len(job.steps) > 1:
            del job.steps[0]
            job.ref = job.steps[0](worker)
        else:
            return False
        return True

    def _worker_for(self, slice: Slice, busy: dict[int, Any], anywhere: bool) -> int | None:
        """Its own, or, where that is not alive, one that has nothing to do. anywhere: also where that is busy, if the
        slice has not been begun in this round."""
        if slice.worker in self.alive and slice.worker not in busy:
            return slice.worker
        if slice.worker in self.alive and (slice.done or slice.pinned or not anywhere):
            return None
        return next((worker for worker in self.alive if worker not in busy), None)

    def restart(self, worker: int) -> None:
        """Of a worker whose replica is not to be trusted."""
        if worker in self.alive:
            self.crew.restart(worker)
            self._lose(worker)

    def _lose(self, worker: int) -> None:
        about = self._before[worker] = self.alive.pop(worker)
        self.report(f"worker {worker} (process {about.pid} on {about.host}) is lost: Ray starts another in its place")
        self.lives[worker] += 1
        self._absent[worker] = self.crew.about(worker)

    def _returned(self, seconds: float | None) -> None:
        """Workers that are ready by now; waits for the first of them so long."""
        if not self._absent:
            raise FedzeroError("no worker is left")
        for ref in self.crew.first(self._absent.values(), seconds):
            worker = next(worker for worker, asked in self._absent.items() if asked == ref)
            try:
                about: WorkerInfo = self.crew.result(ref)
            except WorkerDead as error:
                del self._absent[worker]
                if not self.alive and not self._absent:
                    raise FedzeroError(f"no worker can be started: {error}") from error
                self.report(f"worker {worker} cannot be started: {error}")
                continue
            except WorkerRestarting:  # it is still being started
                self._absent[worker] = self.crew.about(worker)
                continue
            if about == self._before.get(worker):  # it was out of reach, and may have begun what others repeat
                self.crew.restart(worker)
                self._absent[worker] = self.crew.about(worker)
                continue
            if about.base != self.base:
                raise FedzeroError(
                    f"a worker on {about.host} starts from model {about.base.hex()}, not {self.base.hex()}: give all "
                    "machines the same release, data and base model"
                )
            del self._absent[worker]
            self.alive[worker] = about
