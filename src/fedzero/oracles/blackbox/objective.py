"""Black boxes as an objective: one box for each client, queried within bounds, logged and budgeted.

The federation minimises F(u) = mean over clients of f_i(low + u (high − low)) over the unit box. A box that fails
affects its own client only, and several are queried at the same time.

An estimate of F without queries: a client's *nearest* value is that at the point nearest to the model (in the unit box;
of equally near ones the first) in the last round in which its box gave any. It is not f_i at the model. The loss of an
evaluation is the mean over the clients that have a value:

    evaluate = "ends"     at the start and at the end one query of every box at the model, in between nearest values
    evaluate = "log"      nearest values always
    evaluate = "query"    one query of every box at the model always
    evaluate = "shared"   where the model is the best point at which all were asked (to float32), the values there;
                          elsewhere nearest values: for methods that ask all boxes at the same points
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from torch import Tensor

from fedzero.directions import Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.blackbox.bounds import Bounds
from fedzero.oracles.blackbox.boxes import AnyBox, Functions
from fedzero.oracles.blackbox.constraints import NO_LIMITS, Limits
from fedzero.oracles.blackbox.contract import EVALUATION, MemoryLog, QueryLog, Unmeasured
from fedzero.oracles.blackbox.queries import Conditions, OpenBox, Request, query
from fedzero.oracles.combination import wide_coordinates
from fedzero.oracles.contract import F64, Basis, Losses, Metrics

Evaluate = Literal["ends", "log", "query", "shared"]
"""Where an evaluation gets its values: see above."""

ClientRound = tuple[int, int]
"""(client, round): in the place of a mini-batch, where there is no data."""

UNHEARD = "clients unheard"
"""The name, in ledgers, of the number of clients without a value in an evaluation."""
ESTIMATED = "clients estimated"
"""With evaluate = "ends" and "shared": the number of clients whose value in an evaluation is not that at the model."""


class BlackBoxShards:
    """There are no data: a batch says who queries, and when."""

    def __init__(self, clients: int):
        self.clients = clients

    def batch(self, keys: Keys, round: int, step: int, client: int) -> ClientRound:
        return client, round


class BlackBoxes:
    """f_i(x), i = 0, 1, …; values only. Numbers its queries by client and round, so every run needs a new one."""

    no_rows = "a black box is one function for each client, and has no rows"

    def __init__(
        self,
        boxes: Sequence[AnyBox],
        bounds: Bounds,
        keys: Keys,
        conditions: Conditions,
        functions: Functions,
        noise: float = 0.0,
        evaluate: Evaluate = "log",
        limits: Limits = NO_LIMITS,
        refused: Sequence[str] = (),
    ):
        """refused: boxes that must not be called here, because a ledger that nobody vouches for names them."""
        self.boxes, self.bounds, self.keys, self.conditions = boxes, bounds, keys, conditions
        self.functions, self.noise, self.evaluates, self.limits = functions, noise, evaluate, limits
        self.refused = refused
        self.log: QueryLog = MemoryLog()
        self._opened: list[OpenBox] = []
        self._asked: dict[int, tuple[int, int]] = {}
        """by client: its round, and the number of points so far"""

    def ready(self) -> None:
        if self.refused:
            raise FedzeroError(f"{self.refused[0]} is named by a ledger of others and is not called")
        self._opened = [
            OpenBox(
                self.limits.added_to(box.open(self.functions), self.functions),
                box.label,
                box.batched,
                box.told(self.functions),
            )
            for box in self.boxes
        ]

    def attach(self, log: QueryLog) -> None:
        self.log = log

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[ClientRound], basis: Basis | None = None
    ) -> F64:
        rows = self.answers([(Losses(base, tuple(points), 0, basis), batch) for batch in batches])
        for row in rows:
            if isinstance(row, FedzeroError):
                raise row
        return np.stack(rows)  # type: ignore[arg-type]  # only arrays are left

    def answers(self, asks: Sequence[tuple[Losses, ClientRound]]) -> list[F64 | FedzeroError]:
        requests = [self._request(losses, batch) for losses, batch in asks]
        results = iter(query([each for each in requests if isinstance(each, Request)], self.log, self.conditions))
        return [self._noisy(each, next(results)) if isinstance(each, Request) else each for each in requests]

    def _request(self, asked: Losses, batch: ClientRound) -> Request | FedzeroError:
        client, round = batch
        points = self.bounds.from_unit(wide_coordinates(asked.base, asked.points, asked.basis))
        before = self._asked.get(client, (round, 0))
        first = before[1] if before[0] == round else 0
        self._asked[client] = round, first + len(points)
        if not np.isfinite(points).all():
            return FedzeroError(f"client {client} was to ask its box at NaN: the method diverged, lower its rate")
        return Request(client, round, first, points, self._box(client), asked.gaps)

    def _box(self, client: int) -> OpenBox:
        if not self._opened:
            self.ready()
        return self._opened[client]

    def _noisy(self, request: Request, values: F64 | FedzeroError) -> F64 | FedzeroError:
        if self.noise == 0 or isinstance(values, FedzeroError):
            return values
        generator = self.keys.generator("query noise", request.round, request.client, request.first)
        return values + self.noise * generator.standard_normal(len(values))

    def gradient(self, base: Params, batch: ClientRound) -> tuple[float, Tensor]:
        raise FedzeroError("a black box has no gradient: choose a zeroth-order method")

    def unable(self, round: int, needs: Mapping[int, int]) -> dict[int, str]:
        """As of the round's start, also for a round begun before a crash; attempts lost in the crash are spent."""
        budget = self.conditions.budget
        if budget is None:
            return {}
        reasons = {}
        for client, need in needs.items():
            kept = sum(row.state in ("done", "failed", "absent") for row in self.log.begun(client, round))
            left = budget - self.conditions.kept - (self.log.spent(client) - kept)
            if left < need:
                left_of = f"{max(left, 0)} of its budget of {budget} queries are left{self.conditions.but_kept}"
                reasons[client] = f"sat out: {left_of} and a turn takes {need}"
        return reasons

    def evaluate(self, params: Params) -> Metrics:
        """From the log, without queries."""
        return self._mean(self._nearest(params, 1 + max((round for round, _ in self._asked.values()), default=-1)))

    def measure(self, params: Params, after: int, last: bool = False) -> Metrics:
        if self.evaluates == "log":
            return self._mean(self._nearest(params, after))
        if self.evaluates == "query":
            return self._mean(self._queried(params, after, last))
        if self.evaluates == "shared":
            asked = self._known(params, after)
        else:
            asked = self._queried(params, after, last) if last or after == 0 else {}
        values = self._nearest(params, after) | asked
        return self._mean(values, len(values) - len(asked))

    def _nearest(self, params: Params, before: int) -> dict[int, float]:
        """By client, from the log."""
        u, values = model_of(params), {}
        for client in range(len(self.boxes)):
            pairs = self.log.latest(client, before)
            if pairs:
                distances = [float(np.linalg.norm(self.bounds.to_unit(point) - u)) for point, _ in pairs]
                values[client] = pairs[int(np.argmin(distances))][1]
        return values

    def _known(self, params: Params, before: int) -> dict[int, float]:
        """By client, at the best point at which all were asked, if that is the model."""
        found = self.log.best(len(self.boxes), before)
        here = self.bounds.from_unit(model_of(params))
        return {} if found is None or not self.bounds.same_model(found[0], here) else found[1]

    def _queried(self, params: Params, after: int, last: bool) -> dict[int, float]:
        """By client, from one query of every box, counted like any other; a box that fails is left out."""
        point = self.bounds.from_unit(model_of(params))[None]
        if not np.isfinite(point).all():
            raise Unmeasured("the model is not a point: the method diverged")
        requests = [Request(c, after, EVALUATION, point, self._box(c)) for c in range(len(self.boxes))]
        conditions = replace(self.conditions, kept=0) if last else self.conditions
        answers = query(requests, self.log, conditions)
        return {c: float(each[0]) for c, each in enumerate(answers) if not isinstance(each, FedzeroError)}

    def _mean(self, values: Mapping[int, float], estimated: int = 0) -> Metrics:
        if not values:
            raise Unmeasured("no box has given a value yet")
        loss = mean(list(values.values()))
        counts = {UNHEARD: len(self.boxes) - len(values), ESTIMATED: estimated}
        return Metrics(loss=loss, others={name: float(count) for name, count in counts.items() if count})


def mean(values: Sequence[float]) -> float:
    """Divided before it is summed, so that large values do not overflow."""
    return sum(value / len(values) for value in values)


def model_of(params: Params) -> F64:
    """The model as a point of the unit box, (d,)."""
    u: F64 = params.vector().double().cpu().numpy()
    return np.clip(u, 0.0, 1.0)
