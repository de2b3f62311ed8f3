"""Callbacks: what an observer of a run is told, and what it may answer; and callbacks of those who do not look on.

    class Notes(fedzero.Callback):
        def evaluation(self, result):
            if result.metrics["loss"] < 0.1:
                return fedzero.Stop("good enough")

    fedzero.train(model, clients, loss=loss, out="runs/a", callbacks=[Notes()])

A callback gets frozen values, never the run's own objects: nothing that it does with them changes the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedzero.errors import Invalid
from fedzero.lines import LONGEST_SAID, printable

METHODS = ("begin", "round", "evaluation", "checkpoint", "end")


def ignore(*_: object) -> None:
    """Whatever happens."""


def always_false() -> bool:
    return False


@dataclass(frozen=True)
class Stop:
    """Returned by `round` or `evaluation`: the run ends here, for ever, and its ledger has the reason."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not (said := printable(self.reason, LONGEST_SAID)):
            raise Invalid(f"reason = {self.reason!r} is not valid: say in a sentence why the run ends")
        object.__setattr__(self, "reason", said)


@dataclass(frozen=True)
class Pause:
    """Returned by `round` or `evaluation`: the call returns here, and the run can be resumed."""


Verdict = Stop | Pause | None


@dataclass(frozen=True)
class Totals:
    """Of a run since its start, over all resumes: bytes and queries of all clients, seconds of computing."""

    bytes_up: int = 0
    bytes_down: int = 0
    queries: int = 0
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """Up and down."""
        return self.bytes_up + self.bytes_down


@dataclass(frozen=True)
class EvaluationInfo:
    """The model after `rounds` rounds. metrics: all numbers by name; `loss` is among them."""

    rounds: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class RunInfo:
    """A run that begins, or goes on after `rounds` rounds."""

    folder: Path
    name: str
    method: str
    planned: int
    """rounds of the recipe"""
    rounds: int
    """made so far"""
    clients: int
    parameters: int
    """d"""
    totals: Totals
    config: Mapping[str, object]
    """the recipe; keys of its tables are joined by dots"""
    entries: int
    """of the ledger so far"""
    evaluations: Callable[[], tuple[EvaluationInfo, ...]] = field(repr=False)
    """reads the evaluations so far from the ledger"""


@dataclass(frozen=True)
class RoundInfo:
    """A round that was made. bytes and queries: of all clients, in this round alone."""

    rounds: int
    """made so far, this one included"""
    loss: float | None
    """mean training loss of the cohort, if a client told one"""
    bytes_up: int
    bytes_down: int
    queries: int
    cohort: tuple[int, ...]
    """empty with [privacy], as `refused`: nobody may know who took part"""
    refused: tuple[tuple[int, str], ...]
    """(client, reason)"""
    totals: Totals
    epsilon: float | None = None
    """ε of [privacy] after this round, against readers of model and ledger; None: the recipe has none"""
    time: float | None = None
    """simulated seconds to this step; None: the run has no simulated clock"""


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that was written: a resume reads the rounds after it only."""

    rounds: int
    path: Path


@dataclass(frozen=True)
class EndInfo:
    """A call that ends. complete: the run has ended; otherwise it can be resumed. reason: of a run that ended early."""

    rounds: int
    complete: bool
    reason: str
    totals: Totals


class Callback:
    """Base of observers of a run: override what you need.

    `round` and `evaluation` are called when the result is known, just before it is written, so that a `Stop` is written
    with it. After a kill at that moment they are called again for the same round. `end` is called once for every
    `begin`, whatever ended the call. An exception ends the call when the result is on disk, and the run can be resumed.
    """

    def begin(self, run: RunInfo) -> None:
        """The first round of this call is next."""

    def round(self, result: RoundInfo) -> Verdict:
        """A round was made."""
        return None

    def evaluation(self, result: EvaluationInfo) -> Verdict:
        """The model was evaluated."""
        return None

    def checkpoint(self, written: CheckpointInfo) -> None:
        """A checkpoint was written."""

    def end(self, result: EndInfo) -> None:
        """The call ends."""
