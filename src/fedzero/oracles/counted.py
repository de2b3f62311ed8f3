"""The oracle of one client: answers asks on that client's own data and counts every query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.oracles.contract import F64, Answer, Ask, Gradient, Losses, Objective, Points, Separate, Shards


class Oracle:
    """Values only. One query is one f_i(point; ξ), however it is batched."""

    def __init__(self, objective: Objective, shards: Shards, keys: Keys, client: int):
        self.objective, self.shards, self.keys, self.client = objective, shards, keys, client
        self.queries = 0

    def batch(self, round: int, step: int) -> Any:
        return self.shards.batch(self.keys, round, step, self.client)

    def answer(self, round: int, ask: Ask) -> Answer:
        if not isinstance(ask, Losses):
            raise FedzeroError("a value-only oracle was asked for a gradient: the method must declare first_order")
        self.queries += len(ask.points)
        return self.objective.losses(ask.base, ask.points, [self.batch(round, ask.step)], ask.basis)[0]


class GradientOracle(Oracle):
    """For first-order baselines only; a gradient counts as one query."""

    def answer(self, round: int, ask: Ask) -> Answer:
        if isinstance(ask, Gradient):
            self.queries += 1
            return self.objective.gradient(ask.base, self.batch(round, ask.step))
        return super().answer(round, ask)


def answer_together(round: int, pairs: Sequence[tuple[Oracle, Ask]]) -> list[Answer | FedzeroError]:
    """Answer the asks of a cohort, those about the same points in one evaluation; an ask that fails is answered by its
    error, and fails nobody else.

    Where every client has a function of its own, all of them are asked at the same time.
    """
    groups: dict[tuple[int, Points], list[int]] = defaultdict(list)
    apart: list[int] = []
    answers: list[Answer | FedzeroError] = [None] * len(pairs)
    for position, (oracle, ask) in enumerate(pairs):
        if isinstance(ask, Losses) and isinstance(oracle.objective, Separate):
            apart.append(position)
        elif isinstance(ask, Losses) and ask.basis is None and isinstance(ask.points, Points):
            groups[id(ask.base), ask.points].append(position)
        else:
            answers[position] = _answer(round, oracle, ask)
    for position, answer in zip(apart, _answers(round, [pairs[p] for p in apart]), strict=True):
        answers[position] = answer
    for positions in groups.values():
        oracle, first = pairs[positions[0]]
        assert isinstance(first, Losses)
        batches = [pairs[p][0].batch(round, first.step) for p in positions]
        try:
            values = oracle.objective.losses(first.base, first.points, batches)
        except FedzeroError:  # of one of them: who fails alone is the one
            for position in positions:
                answers[position] = _answer(round, *pairs[position])
            continue
        for position, row in zip(positions, values, strict=True):
            pairs[position][0].queries += len(first.points)
            answers[position] = row
    return answers


def _answer(round: int, oracle: Oracle, ask: Ask) -> Answer | FedzeroError:
    try:
        return oracle.answer(round, ask)
    except FedzeroError as error:
        return error


def _answers(round: int, pairs: Sequence[tuple[Oracle, Ask]]) -> list[F64 | FedzeroError]:
    """Of an objective whose clients are separate."""
    asks = []
    for oracle, ask in pairs:
        assert isinstance(ask, Losses)
        oracle.queries += len(ask.points)
        asks.append((ask, oracle.batch(round, ask.step)))
    if not pairs:
        return []
    objective = pairs[0][0].objective
    assert isinstance(objective, Separate)
    return objective.answers(asks)
