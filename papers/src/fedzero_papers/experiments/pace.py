"""How far an experiment has come, and how long it will take: pure arithmetic.

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
    """`left` is the cost left of every run that this process makes, `worked` what it has done of them."""

    workers: int
    left: dict[str, float] = field(default_factory=dict)
    going: dict[str, Progress] = field(default_factory=dict)
    worked: float = 0.0
    done_runs: int = 0
    all_runs: int = 0
    ahead: float = 0.0
    """cost of later stages"""
    began: float | None = None
    """when the first run reported: what it takes to start processes says nothing about the pace"""

    def stage(self, todo: Sequence[Job], kept: int, ahead: tuple[int, float]) -> None:
        self.done_runs += kept
        self.left |= {job.folder: job.cost for job in todo}
        self.all_runs, self.ahead = self.done_runs + len(todo) + ahead[0], ahead[1]

    def note(self, job: Job, message: Progress | Done, now: float) -> None:
        self.began = now if self.began is None else self.began
        before, left = self.left[job.folder], 0.0
        if isinstance(message, Done):
            self.going.pop(job.folder, None)
            self.done_runs += 1
        else:
            if job.folder not in self.going:
                before = job.cost * (1 - message.begun / message.rounds)
            left = job.cost * (1 - message.done / message.rounds)
            self.going[job.folder] = message
        self.worked += before - left
        self.left[job.folder] = left

    def share(self) -> float:
        """Of the cost that was there when this process began, 0 … 1."""
        left = sum(self.left.values()) + self.ahead
        return self.worked / (self.worked + left) if self.worked + left > 0 else 1.0

    def seconds_left(self, now: float) -> float:
        gone = 0.0 if self.began is None else now - self.began
        measured = self.worked > 0 and gone > TRUSTED_AFTER
        return (sum(self.left.values()) + self.ahead) * (gone / self.worked if measured else 1 / self.workers)
