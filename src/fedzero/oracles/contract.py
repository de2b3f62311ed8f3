"""What a method may ask of a client's data, and what an objective must answer.

A method yields an `Ask` and is sent the answer, so one forward pass may answer the asks of a whole cohort.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from msgspec import Struct
from torch import Tensor

from fedzero.directions import Keys, Terms
from fedzero.directions.terms import F32 as F32
from fedzero.directions.terms import F64 as F64
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.poisson import Places, Poisson

ALL_DATA = -1
"""As the `step` of an ask: not a mini-batch but all of the client's samples."""


@dataclass(frozen=True, eq=False)
class Basis:
    """Columns that points may use as well as seeded directions: point p is x + Σ c z + Σ_j weights[p, j] columns[j].

    Without weights, point p is x + Σ c z + columns[p].
    """

    columns: Tensor  # (τ, d), float32
    weights: F64 | None = None  # (points, τ)

    def offset(self, point: int) -> Tensor:
        """Σ_j weights[point, j] columns[j], (d,): one product and one sum at a time, the same bits on every device."""
        if self.weights is None:
            return self.columns[point]
        total = torch.zeros_like(self.columns[0])
        for weight, column in zip(self.weights[point], self.columns, strict=True):
            total += column * float(weight)
        return total

    def offsets(self, points: Sequence[int]) -> Tensor:
        """The offsets of some points, (points, d)."""
        return torch.stack([self.offset(point) for point in points])


@dataclass(frozen=True)
class Points(Sequence[Terms]):
    """Points around a base, equal if `made_from` is: one evaluation serves a cohort that shares directions."""

    made_from: Hashable
    terms: tuple[Terms, ...] = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.terms)

    def __getitem__(self, index: Any) -> Any:
        return self.terms[index]


class Losses(Struct, frozen=True, eq=False):
    """f_i(x + Σ c z; ξ) at each of `points`, all on the mini-batch ξ of local step `step`.

    With a `basis` the points also move along its columns. Asks with one base and equal points may be answered together.
    gaps: the answer of a separate function has +inf at points where it has no value, and NaN where it did not answer;
    without gaps the whole ask fails.
    """

    base: Params
    points: Sequence[Terms]
    step: int
    basis: Basis | None = None
    gaps: bool = False


class RowLosses(Struct, frozen=True, eq=False):
    """ℓ_u(x + Σ c z) of every unit u of a Poisson batch, at each of `points`: the losses of single rows, and with
    `drawn.persons` their sums by person. No unit of the batch, then no column of the answer.

    What each row contributes can be bounded only if the loss of a row depends on no other row: `rows.why_no_rows`.
    """

    base: Params
    points: Sequence[Terms]
    drawn: Poisson


@dataclass(frozen=True, eq=False)
class Gradient:
    """f_i(x; ξ) and ∇f_i(x; ξ): what first-order baselines ask, and zeroth-order methods are never given."""

    base: Params
    step: int


Ask = Losses | RowLosses | Gradient
Answer = Any
"""float64 (points,) for `Losses`, (points, units) for `RowLosses`; (float, Tensor of d) for `Gradient`."""


class Metrics(Struct, frozen=True):
    """Of a model on held-out data; `accuracy` where the task has one, `others` by name (success rate of an attack)."""

    loss: float
    accuracy: float | None = None
    others: dict[str, float] = {}


class Pictures(Struct, frozen=True):
    """A grid of images; `pixels` are bytes (rows, columns, height, width, channels), 1 or 3 channels."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    height: int
    width: int
    channels: int
    pixels: bytes


class Sample(Struct, frozen=True, array_like=True):
    """What a language model says after a prompt, and a right answer."""

    prompt: str
    said: str
    right: str


class DependentRows(FedzeroError):
    """The loss of a row depends on other rows, whatever the rows are: nothing bounds what a row contributes."""


@runtime_checkable
class Separate(Protocol):
    """An objective with a function of its own for each client, which may fail without the others.

    Asks are never merged into one evaluation; where possible they are answered at the same time.
    """

    def answers(self, asks: Sequence[tuple[Losses, Any]]) -> list[F64 | FedzeroError]:
        """The values of every (ask, mini-batch), (points,), or the error."""
        ...


@runtime_checkable
class Readied(Protocol):
    """An objective that calls what a recipe names: functions, programs, services."""

    def ready(self) -> None:
        """Find all of it, or raise `FedzeroError`."""
        ...


@runtime_checkable
class ByRow(Protocol):
    """An objective that is a mean over rows, and gives the loss of each."""

    @property
    def no_rows(self) -> str:
        """Why it cannot after all; empty: it can."""
        ...

    def row_losses(self, base: Params, points: Sequence[Terms], batch: Any) -> F64:
        """The loss of every row of a batch at every point, (points, rows): what `losses` takes the mean of."""
        ...


@runtime_checkable
class RowShards(Protocol):
    """Data whose rows can be taken one by one."""

    @property
    def no_rows(self) -> str:
        """Why that is not what the objective of the run is of; empty: it is."""
        ...

    def held(self, client: int) -> int:
        """How many rows a client has."""
        ...

    def taken(self, client: int, places: Places) -> Any:
        """The batch of a client's rows at these places, one at least, all of the same weight."""
        ...


@runtime_checkable
class PersonShards(Protocol):
    """Data of which it is known whose each row is."""

    def persons(self, client: int) -> Any:
        """The person of every row of a client, (rows,): numbers or words."""
        ...


class Shards(Protocol):
    """The data of each client."""

    @property
    def clients(self) -> int: ...

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Any:
        """The mini-batch ξ of a client's local step, a function of the keys; all of its data for step `ALL_DATA`."""
        ...


class Objective(Protocol):
    """A function of the parameters and a mini-batch, evaluated at many points at once."""

    def losses(self, base: Params, points: Sequence[Terms], batches: Sequence[Any], basis: Basis | None = None) -> F64:
        """Mean loss of every batch at every point, (batches, points)."""
        ...

    def gradient(self, base: Params, batch: Any) -> tuple[float, Tensor]:
        """Loss and gradient (float32, d) at the base."""
        ...

    def evaluate(self, params: Params) -> Metrics: ...
