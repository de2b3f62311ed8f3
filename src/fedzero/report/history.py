"""What the page needs of one run: a small value that anybody can make, from a ledger or by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Literal

from fedzero.oracles import Pictures

Metric = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Point:
    """One evaluated round; totals since the start of the run.

    `round` is the number of rounds done when the model was evaluated: 0 is the model the run started from.
    """

    round: int
    loss: float
    accuracy: float | None
    bytes_up: float  # per client, averaged over all clients, whether they took part or not
    bytes_down: float
    queries: int  # of all clients together
    others: dict[str, float] = field(default_factory=dict)  # what else the task measures, by name
    estimated: bool = False  # the loss is not that of the model, but of points near it
    seconds: float = 0.0  # since the start of the run, evaluation included

    @property
    def bytes(self) -> float:
        return self.bytes_up + self.bytes_down

    def value(self, metric: Metric) -> float | None:
        return self.accuracy if metric == "accuracy" else self.loss


@dataclass(frozen=True)
class Found:
    """What came of black boxes: where the run stands, and what each party's function is there, where it was asked."""

    x: tuple[float, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class History:
    """One run as a curve, and what is to be said about it. Points are in the order of their rounds.

    Runs are compared only if their `task` is the same text.
    """

    name: str
    algorithm: str
    task: str
    parameters: int
    clients: int
    cohort: int
    rounds: int
    points: tuple[Point, ...]
    train_loss: tuple[tuple[float, float], ...]  # (round, mean training loss of the cohort)
    seconds: float
    model_digest: str
    recipe: str  # TOML
    events: tuple[str, ...]
    complete: bool
    facts: dict[str, str] = field(default_factory=dict)  # what the task found out when it was built
    pictures: Pictures | None = None  # of what came out
    found: Found | None = None  # of black boxes: there is a point instead of a model
    diverged: bool = False  # the last loss is far above the first, or not finite

    @property
    def title(self) -> str:
        """The name, and what is to be known before anything else."""
        marks = [mark for mark, true in (("unfinished", not self.complete), ("diverged", self.diverged)) if true]
        return f"{self.name} ({', '.join(marks)})" if marks else self.name

    @property
    def final_loss(self) -> float:
        return self.points[-1].loss if self.points else nan

    @property
    def first_loss(self) -> float:
        return self.points[0].loss if self.points else nan

    @property
    def final_accuracy(self) -> float | None:
        """The last accuracy measured."""
        return list(self.accuracies)[-1] if self.measured else None

    @property
    def best_accuracy(self) -> float | None:
        return max(self.accuracies, default=None)

    @property
    def measured(self) -> bool:
        """Whether any round has an accuracy."""
        return any(True for _ in self.accuracies)

    @property
    def accuracies(self) -> Iterator[float]:
        return (p.accuracy for p in self.points if p.accuracy is not None and isfinite(p.accuracy))

    @property
    def others(self) -> dict[str, float]:
        return self.points[-1].others if self.points else {}

    @property
    def bytes_up(self) -> float:
        return self.points[-1].bytes_up if self.points else 0.0

    @property
    def bytes_down(self) -> float:
        return self.points[-1].bytes_down if self.points else 0.0

    @property
    def bytes(self) -> float:
        return self.bytes_up + self.bytes_down

    @property
    def queries(self) -> int:
        return self.points[-1].queries if self.points else 0

    @property
    def model_bytes(self) -> int:
        """One copy of the model in float32, the yardstick for all bytes."""
        return 4 * self.parameters

    @property
    def participations(self) -> float:
        """Rounds in which a client took part, on average, up to the last evaluated one."""
        return self.points[-1].round * self.cohort / self.clients if self.points and self.clients else 0.0

    @property
    def reply_bytes(self) -> float | None:
        """What a client sends in a round it takes part in, on average."""
        return self.bytes_up / self.participations if self.participations else None

    @property
    def dense_bytes(self) -> float:
        """What the same rounds cost a client if the float32 model went there and back each time."""
        return 2 * self.model_bytes * self.participations
