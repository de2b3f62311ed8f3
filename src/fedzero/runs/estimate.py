"""What a run takes, from its first two rounds: seconds, bytes, queries and memory of the whole. Nothing is kept.

    seconds = setup + first + (R − 1) second + E evaluation         E evaluations, R rounds
    down    = R C/N o + max(0, R − N/C) u                           of each of N clients, C in a round

o is what a client gets in the first round, u the update that it has missed in the second: in the end every client has
been sent every update until its last turn. The second round stands for all that follow: where directions are added
later, or replies become larger, so does the run.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from msgspec import Struct

from fedzero.errors import Invalid
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Evaluation, Round
from fedzero.recipe.recipe import Recipe
from fedzero.report.units import human_bytes, human_seconds, human_words
from fedzero.runs.progress import Silent

ROUNDS = 2


class Estimate(Struct, frozen=True, kw_only=True):
    """What a whole run takes, if no rule ends it early and all rounds are as the second."""

    rounds: int
    seconds: float
    setup_seconds: float
    """before the first round: data, model, compiling"""
    round_seconds: float
    evaluation_seconds: float
    bytes_up_per_client: float
    bytes_down_per_client: float
    """at most: a client that missed much may get a state instead"""
    queries: int
    memory: int
    """bytes: the most that the process and those that it started had"""
    gpu_memory: int
    """bytes on the GPU; 0: none was used"""

    def __str__(self) -> str:
        gpu = f", {human_bytes(self.gpu_memory)} on the GPU" if self.gpu_memory else ""
        each = f"{human_seconds(self.round_seconds)} a round, {human_seconds(self.evaluation_seconds)} an evaluation"
        up, down = human_bytes(self.bytes_up_per_client), human_bytes(self.bytes_down_per_client)
        return (
            f"{self.rounds:,} rounds: about {human_seconds(self.seconds)} ({each}); {up} up and {down} down per "
            f"client; {human_words(self.queries)} queries; {human_bytes(self.memory)} of memory{gpu}"
        )


class _Enough(Exception):
    """Ends a run after its second round, from outside."""


@dataclass
class _Measured(Silent):
    """Looks on, and ends the run when it has seen enough."""

    began: float = field(default_factory=time.perf_counter)
    recipe: Recipe | None = None
    setup: float = 0.0
    since: float = 0.0
    seconds: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    memory: int = 0
    alone: bool = True
    """neither callbacks nor loggers are told of a dry run"""

    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None:
        if getattr(recipe.task, "boxes", ()):
            raise Invalid("a dry run would ask the black boxes, and every query counts: there is none for them")
        self.recipe, self.since = recipe, time.perf_counter()
        self.setup = self.since - self.began

    def round(self, record: Round) -> None:
        self.seconds.append(self._lap())
        self.rounds.append(record)
        self.memory = max(self.memory, occupied())
        self._end_if_enough()

    def evaluation(self, record: Evaluation) -> None:
        self.evaluations.append(self._lap())
        self._end_if_enough()

    def _lap(self) -> float:
        before, self.since = self.since, time.perf_counter()
        return self.since - before

    def _end_if_enough(self) -> None:
        assert self.recipe is not None
        if len(self.rounds) >= min(ROUNDS, self.recipe.rounds) and self.evaluations:
            raise _Enough


def estimated(play: Callable[[Path, Silent], object], uncounted: int = 0) -> Estimate:
    """play: begins a run in a folder with somebody who looks on. uncounted: bytes that only the dry run has."""
    watch = _Measured()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory(prefix="fedzero-dry-") as place, suppress(_Enough):
        play(Path(place) / "run", watch)
    gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    on_gpu = uncounted if gpu else 0
    return _of(watch, watch.memory - (0 if gpu else uncounted), gpu - on_gpu)


def _of(seen: _Measured, memory: int, gpu_memory: int) -> Estimate:
    recipe, first, last = seen.recipe, seen.rounds[0], seen.rounds[-1]
    assert recipe is not None
    rounds, clients = recipe.rounds, recipe.federation.clients
    cohort = max(1, len(first.cohort))
    evaluations = 1 + (rounds - 1) // recipe.evaluate_every + 1
    each = min(seen.evaluations)
    overhead = first.bytes_down / cohort
    missed = max(0.0, last.bytes_down / max(1, len(last.cohort)) - overhead)
    return Estimate(
        rounds=rounds,
        seconds=seen.setup + seen.seconds[0] + (rounds - 1) * seen.seconds[-1] + evaluations * each,
        setup_seconds=seen.setup,
        round_seconds=seen.seconds[-1],
        evaluation_seconds=each,
        bytes_up_per_client=last.bytes_up * rounds / clients,
        bytes_down_per_client=rounds * cohort / clients * overhead + max(0.0, rounds - clients / cohort) * missed,
        queries=first.queries + (rounds - 1) * last.queries,
        memory=memory,
        gpu_memory=gpu_memory,
    )


def occupied() -> int:
    """Bytes of memory: the most that this process has had, and what those have that it has started."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    total = most
    for child in psutil.Process().children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return total
