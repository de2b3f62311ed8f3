"""What the page needs of one run: a small value that anybody can make, from a ledger or by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Literal

from fedzero.oracles import Pictures, Sample

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
    errors: dict[str, float] = field(default_factory=dict)  # of a mean of runs: its standard error, by metric
    epsilon: float = 0.0  # of differential privacy, spent by then; 0 also where the recipe has none
    time: float = 0.0  # simulated seconds since the start; 0 also where the run has no simulated clock

    @property
    def bytes(self) -> float:
        return self.bytes_up + self.bytes_down

    def value(self, metric: Metric) -> float | None:
        return self.accuracy if metric == "accuracy" else self.loss


@dataclass(frozen=True)
class Promise:
    """Differential privacy of a run so far: ε against readers of model and ledger, and against the server (None: no
    bound), for a unit. asked: how many clients are expected to answer in a round."""

    epsilon: float
    server: float | None
    delta: float
    unit: str
    asked: float

    def __str__(self) -> str:
        article = "an" if self.unit == "example" else "a"
        return f"ε {self.epsilon:.2f} at δ {self.delta:.2g} for {article} {self.unit}; {self.against_server}"

    @property
    def against_server(self) -> str:
        return f"{'none' if self.server is None else f'ε {self.server:.2f}'} against the server"


@dataclass(frozen=True)
class Slice:
    """A surrogate along one coordinate through x: posterior mean and standard deviation."""

    coordinate: int
    places: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Found:
    """What came of black boxes: where the run stands, and what each party's function is there, where it was asked.

    by_party: (round, value of each party) of evaluations that asked. surrogate: a Gaussian process over the queries
    whose coordinates are on record; `queried` is how many those are.
    """

    x: tuple[float, ...]
    values: tuple[float | None, ...]
    by_party: tuple[tuple[int, tuple[float | None, ...]], ...] = ()
    surrogate: tuple[Slice, ...] = ()
    queried: int = 0
    traffic: int = 0  # bytes to and from services


@dataclass(frozen=True)
class Party:
    """A site, or a client where there are no sites: when it last answered, and what of it was refused."""

    name: str
    clients: int
    turns: int
    answered: int | None  # the last round in which an answer counted
    at: float | None  # when that was, in seconds since 1970
    refused: int
    reason: str  # of the last refusal


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
    earlier_events: int = 0  # how many there were before those that are listed
    facts: dict[str, str] = field(default_factory=dict)  # what the task found out when it was built
    pictures: Pictures | None = None  # of what came out
    said: dict[int, tuple[Sample, ...]] = field(default_factory=dict)  # by a language model, after so many rounds
    found: Found | None = None  # of black boxes: there is a point instead of a model
    diverged: bool = False  # the last loss is far above the first, or not finite
    gradients: bool = False  # queries are gradients, not values
    settings: dict[str, str] = field(default_factory=dict)  # of the recipe with its defaults: `section.key`, value
    planned: int = 0  # rounds of the recipe; 0: not known
    model_sha256: str = ""
    slopes: tuple[tuple[float, float], ...] = ()  # (round, root mean square of its update's scalars)
    parties: tuple[Party, ...] = ()
    refusals: tuple[tuple[str, int], ...] = ()  # (reason, how often), most frequent first
    versions: dict[str, str] = field(default_factory=dict)  # of what the run is repeated with
    runs: int = 1  # how many this is the mean of: they differ in their seed only
    folder: str = ""  # where it is: runs that nothing else tells apart are named after it
    privacy: Promise | None = None

    @property
    def title(self) -> str:
        """The name, and what is to be known before anything else."""
        marks = [mark for mark, true in (("unfinished", not self.complete), ("diverged", self.diverged)) if true]
        return f"{self.name} ({', '.join(marks)})" if marks else self.name

    @property
    def samples(self) -> list[tuple[Sample, str]]:
        """What is said at the end, with what was said there before the first round, where that is on record."""
        before = {(row.prompt, row.right): row.said for row in self.said.get(0, ())}
        rounds = [round for round in self.said if round]
        rows = self.said[max(rounds)] if rounds else ()
        return [(row, before.get((row.prompt, row.right), "")) for row in rows]

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
    def unit(self) -> str:
        """What a query is."""
        return "gradients" if self.gradients else "queries" if self.found is not None else "loss evaluations"

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far, of a run that goes on."""
        if self.complete or not 0 < self.rounds < self.planned:
            return None
        return self.seconds / self.rounds * (self.planned - self.rounds)

    @property
    def model_bytes(self) -> int:
        """One copy of the model in float32, the yardstick for all bytes."""
        return 4 * self.parameters

    @property
    def participations(self) -> float:
        """Rounds in which a client took part, on average, up to the last evaluated one; with [privacy] the expected
        number, since nobody counts."""
        asked = self.cohort if self.privacy is None else self.privacy.asked
        return self.points[-1].round * asked / self.clients if self.points and self.clients else 0.0

    @property
    def reply_bytes(self) -> float | None:
        """What a client sends in a round it takes part in, on average."""
        return self.bytes_up / self.participations if self.participations else None

    @property
    def dense_bytes(self) -> float:
        """What the same rounds cost a client if the float32 model went there and back each time."""
        return 2 * self.model_bytes * self.participations
