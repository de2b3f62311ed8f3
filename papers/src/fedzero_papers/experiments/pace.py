"""How far an experiment has come, and how long it will take: pure arithmetic that both displays show.

Runs differ in size, so they are weighed by their cost, in expected seconds on one core. The pace is measured: seconds
gone by for each unit of cost done since this process began, whatever the machine, the workers and the estimates are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedzero_papers.experiments.contract import Job
from fedzero_papers.experiments.worker import Done, Progress

TRUSTED_AFTER = 5.0
"""Seconds before the measured pace is believed rather than the estimate."""


@dataclass
class Pace:
    """`kept` are runs that were already there; shares are of runs in progress."""

    workers: int
    began: float | None = None
    """when the first run spoke: what it takes to start processes says nothing about the pace"""
    runs: int = 0
    kept: int = 0
    made: int = 0
    total: float = 0.0
    finished: float = 0.0
    ahead: tuple[int, float] = (0, 0.0)
    going: dict[str, tuple[Job, Progress]] = field(default_factory=dict)

    def stage(self, todo: Sequence[Job], kept: int, ahead: tuple[int, float]) -> None:
        self.runs += len(todo) + kept
        self.kept += kept
        self.total += sum(job.cost for job in todo)
        self.ahead = ahead

    def note(self, job: Job, message: Progress | Done, now: float) -> None:
        self.began = now if self.began is None else self.began
        if isinstance(message, Progress):
            self.going[job.folder] = job, message
            return
        _, last = self.going.pop(job.folder, (job, Progress(0, 1, 0)))
        self.made += 1
        self.finished += job.cost * (1 - last.begun / max(1, last.rounds))
        self.total -= job.cost * last.begun / max(1, last.rounds)

    @property
    def all_runs(self) -> int:
        return self.runs + self.ahead[0]

    @property
    def done_runs(self) -> int:
        return self.kept + self.made

    def _worked(self) -> float:
        """Cost done by this process."""
        return self.finished + sum(job.cost * (p.done - p.begun) / p.rounds for job, p in self.going.values())

    def _left(self) -> float:
        known = self.total - self.finished - sum(job.cost * p.done / p.rounds for job, p in self.going.values())
        return max(0.0, known) + self.ahead[1]

    def share(self) -> float:
        """Of the cost that was there when this process began, 0 … 1."""
        worked, left = self._worked(), self._left()
        return worked / (worked + left) if worked + left > 0 else 1.0

    def seconds_left(self, now: float) -> float:
        worked, gone = self._worked(), 0.0 if self.began is None else now - self.began
        pace = gone / worked if worked > 0 and gone > TRUSTED_AFTER else 1 / self.workers
        return self._left() * pace
