"""Black boxes as an objective: one box a client, asked within bounds, logged and budgeted.

The federation minimises F(u) = mean over clients of f_i(low + u (high − low)) over the unit box. A client's box is
asked for that client alone: one that fails fails nobody else, and several may work at the same time.

What is known of F without asking: a client's *nearest* value is the one its box gave, in the last round in which it
gave any, at the point nearest to the model (in the unit box; of equally near ones the first). The loss of an evaluation
is the mean of these over the clients that have one. An evaluation that queries asks every box at the model instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fedzero.directions import Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.blackbox.asking import Conditions, Opened, Wanted, ask
from fedzero.oracles.blackbox.bounds import Bounds
from fedzero.oracles.blackbox.boxes import AnyBox, Functions
from fedzero.oracles.blackbox.contract import EVALUATION, QueryLog, Unmeasured
from fedzero.oracles.blackbox.log import MemoryLog
from fedzero.oracles.contract import F64, Basis, Losses, Metrics
from fedzero.oracles.points import wide_coordinates

Evaluate = Literal["log", "query"]
"""Where an evaluation gets its values: from the log, or from one query of every box."""

Seat = tuple[int, int]
"""(client, round): what stands for a mini-batch where there is no data."""

UNHEARD = "clients unheard"
"""What an evaluation that not all clients are in calls the number of the others."""


class BlackBoxShards:
    """Who is asking, and when."""

    def __init__(self, clients: int):
        self._clients = clients

    @property
    def clients(self) -> int:
        return self._clients

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Seat:
        return client, round


class BlackBoxes:
    """f_i(x), i = 0, 1, …; values only. Numbers its queries by client and round, so it is made anew for every run."""

    def __init__(
        self,
        boxes: Sequence[AnyBox],
        bounds: Bounds,
        keys: Keys,
        conditions: Conditions,
        functions: Functions,
        noise: float = 0.0,
        evaluate: Evaluate = "log",
    ):
        self.boxes, self.bounds, self.keys, self.conditions = boxes, bounds, keys, conditions
        self.functions, self.noise, self.evaluates = functions, noise, evaluate
        self.log: QueryLog = MemoryLog()
        self._opened: list[Opened] = []
        self._asked: dict[int, tuple[int, int]] = {}
        """by client: the round it is in, and how many points it has asked for"""

    def ready(self) -> None:
        self._opened = [Opened(box.open(self.functions), box.label, box.whole) for box in self.boxes]

    def attach(self, log: QueryLog) -> None:
        self.log = log

    def losses(self, base: Params, points: Sequence[Terms], batches: Sequence[Seat], basis: Basis | None = None) -> F64:
        rows = self.answers([(Losses(base, tuple(points), 0, basis), seat) for seat in batches])
        for row in rows:
            if isinstance(row, FedzeroError):
                raise row
        return np.stack(rows)  # type: ignore[arg-type]  # only arrays are left

    def answers(self, asks: Sequence[tuple[Losses, Seat]]) -> list[F64 | FedzeroError]:
        wanted = [self._wanted(losses, seat) for losses, seat in asks]
        given = iter(ask([each for each in wanted if isinstance(each, Wanted)], self.log, self.conditions))
        answers: list[F64 | FedzeroError] = []
        for each in wanted:
            answer = next(given) if isinstance(each, Wanted) else each
            if isinstance(each, Wanted) and not isinstance(answer, FedzeroError):
                answer = answer + self._noise(each)
            answers.append(answer)
        return answers

    def _wanted(self, asked: Losses, seat: Seat) -> Wanted | FedzeroError:
        client, round = seat
        points = self.bounds.from_unit(wide_coordinates(asked.base, asked.points, asked.basis))
        before = self._asked.get(client, (round, 0))
        first = before[1] if before[0] == round else 0
        self._asked[client] = round, first + len(points)
        if not np.isfinite(points).all():
            return FedzeroError(f"client {client} was to ask its box at NaN: the method diverged, lower its rate")
        return Wanted(client, round, first, points, self._box(client))

    def _box(self, client: int) -> Opened:
        if not self._opened:
            self.ready()
        return self._opened[client]

    def _noise(self, wanted: Wanted) -> F64:
        count = len(wanted.points)
        if self.noise == 0:
            return np.zeros(count)
        generator = self.keys.generator("query noise", wanted.round, wanted.client, wanted.first)
        return self.noise * generator.standard_normal(count)

    def gradient(self, base: Params, batch: Seat) -> tuple[float, Tensor]:
        raise FedzeroError("a black box has no gradient: choose a zeroth-order method")

    def unable(self, round: int, needs: Mapping[int, int]) -> dict[int, str]:
        """Measured as at the round's start, so that a round begun before a crash is judged as it was then; except that
        attempts lost in the crash are gone."""
        budget = self.conditions.budget
        if budget is None:
            return {}
        reasons = {}
        for client, need in needs.items():
            kept = sum(row.state in ("done", "failed") for row in self.log.begun(client, round))
            left = budget - (self.log.spent(client) - kept)
            if left < need:
                reasons[client] = f"sat out: {left} of its budget of {budget} queries are left and a turn takes {need}"
        return reasons

    def evaluate(self, params: Params) -> Metrics:
        """What the log knows; never asks."""
        return self._known(params, self._last_round() + 1)

    def measure(self, params: Params, after: int) -> Metrics:
        return self._known(params, after) if self.evaluates == "log" else self._queried(params, after)

    def _last_round(self) -> int:
        return max((round for round, _ in self._asked.values()), default=-1)

    def _known(self, params: Params, before: int) -> Metrics:
        u, values = model_of(params), []
        for client in range(len(self.boxes)):
            pairs = self.log.latest(client, before)
            if pairs:
                distances = [float(np.linalg.norm(self.bounds.to_unit(point) - u)) for point, _ in pairs]
                values.append(pairs[int(np.argmin(distances))][1])
        return self._mean(values)

    def _queried(self, params: Params, after: int) -> Metrics:
        """One query of every box, paid for like any other; a box that fails is left out."""
        point = self.bounds.from_unit(model_of(params))[None]
        if not np.isfinite(point).all():
            raise Unmeasured("the model is not a point: the method diverged")
        wanted = [Wanted(c, after, EVALUATION, point, self._box(c)) for c in range(len(self.boxes))]
        answers = ask(wanted, self.log, self.conditions)
        return self._mean([float(answer[0]) for answer in answers if not isinstance(answer, FedzeroError)])

    def _mean(self, values: Sequence[float]) -> Metrics:
        if not values:
            raise Unmeasured("no box has given a value yet")
        unheard = len(self.boxes) - len(values)
        loss = sum(value / len(values) for value in values)  # so that large values do not overflow
        return Metrics(loss=loss, others={UNHEARD: float(unheard)} if unheard else {})


def model_of(params: Params) -> F64:
    """The model as a point of the unit box, (d,)."""
    u: F64 = params.vector().double().cpu().numpy()
    return np.clip(u, 0.0, 1.0)
