"""The oracle of one client: answers asks on that client's own data and counts every query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.contract import Answer, Ask, Gradient, Losses, Objective, Points, RowLosses, Separate, Shards
from fedzero.oracles.rows import answer_by_row


class Oracle:
    """Values only. One query is one f_i(point; ξ), however it is batched, and however many rows are in a batch.

    drawn: (round, client) → the keys that batches follow from, where these are not the run's. failures: errors of a
    single row after which its losses are NaN, and no other row is lost.
    """

    def __init__(
        self,
        objective: Objective,
        shards: Shards,
        keys: Keys,
        client: int,
        drawn: Callable[[int, int], Keys] | None = None,
        failures: type[Exception] = FedzeroError,
    ):
        self.objective, self.shards, self.keys, self.client, self._drawn = objective, shards, keys, client, drawn
        self._failures = failures
        self.queries = 0

    def batch(self, round: int, step: int) -> Any:
        keys = self.keys if self._drawn is None else self._drawn(round, self.client)
        return self.shards.batch(keys, round, step, self.client)

    def answer(self, round: int, ask: Ask) -> Answer:
        if isinstance(ask, RowLosses):
            self.queries += len(ask.points)
            private = None if self._drawn is None else self._drawn(round, self.client)
            return answer_by_row(self.objective, self.shards, ask, self.client, private, self._failures)
        if not isinstance(ask, Losses):
            raise FedzeroError("a value-only oracle was asked for a gradient: the method must declare first_order")
        self.queries += len(ask.points)
        batch = self.batch(round, ask.step)
        if ask.gaps and isinstance(self.objective, Separate):
            (answer,) = self.objective.answers([(ask, batch)])
            if isinstance(answer, FedzeroError):
                raise answer
            return answer
        return self.objective.losses(ask.base, ask.points, [batch], ask.basis)[0]


class GradientOracle(Oracle):
    """For first-order baselines only; a gradient counts as one query."""

    def answer(self, round: int, ask: Ask) -> Answer:
        if isinstance(ask, Gradient):
            self.queries += 1
            return self.objective.gradient(ask.base, self.batch(round, ask.step))
        return super().answer(round, ask)


def answer_together(round: int, pairs: Sequence[tuple[Oracle, Ask]]) -> list[Answer | FedzeroError]:
    """The answers to the asks of a cohort; an ask that fails is answered by its error and does not affect others.

    One evaluation answers asks about the same points; clients with separate functions are asked at the same time.
    """
    groups: dict[tuple[Params, Points], list[int]] = defaultdict(list)
    separate: dict[int, tuple[Losses, Any]] = {}
    answers: list[Answer | FedzeroError] = [None] * len(pairs)
    # A look at a protocol, or at all numbers of some points, takes longer than the rest of an ask: once for a cohort.
    objectives = {id(oracle.objective): oracle.objective for oracle, _ in pairs}
    alone = {key: isinstance(objective, Separate) for key, objective in objectives.items()}
    shared: dict[tuple[int, int], list[int]] = {}
    for position, (oracle, ask) in enumerate(pairs):
        if isinstance(ask, Losses) and alone[id(oracle.objective)]:
            oracle.queries += len(ask.points)
            separate[position] = ask, oracle.batch(round, ask.step)
        elif isinstance(ask, Losses) and ask.basis is None and isinstance(ask.points, Points):
            same = id(ask.base), id(ask.points)
            if same not in shared:
                shared[same] = groups[ask.base, ask.points]
            shared[same].append(position)
        else:
            answers[position] = _answer(round, oracle, ask)
    if separate:
        objective = pairs[next(iter(separate))][0].objective
        assert isinstance(objective, Separate)
        for position, answer in zip(separate, objective.answers(list(separate.values())), strict=True):
            answers[position] = answer
    for (base, points), positions in groups.items():
        oracles = [pairs[p][0] for p in positions]
        steps = [pairs[p][1].step for p in positions]  # type: ignore[union-attr]  # these are `Losses`
        batches = [oracle.batch(round, step) for step, oracle in zip(steps, oracles, strict=True)]
        try:
            values = oracles[0].objective.losses(base, points, batches)
        except FedzeroError:  # of one of them: each on its own shows whose
            for position in positions:
                answers[position] = _answer(round, *pairs[position])
            continue
        for position, oracle, row in zip(positions, oracles, values, strict=True):
            oracle.queries += len(points)
            answers[position] = row
    return answers


def _answer(round: int, oracle: Oracle, ask: Ask) -> Answer | FedzeroError:
    try:
        return oracle.answer(round, ask)
    except FedzeroError as error:
        return error
