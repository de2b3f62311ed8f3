"""What a run with black boxes came to, read from its folder: the point found, and what the functions are there.

F(x) is the mean over clients of f_i(x). A value is one of F only where every box was asked at the same x; anything else
is an estimate and says so.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import FedzeroError
from fedzero.ledger import query_log, replay
from fedzero.ledger.records import Evaluation
from fedzero.ledger.store import Ledger
from fedzero.model.checkpoint import load_model
from fedzero.oracles.blackbox import ESTIMATED, mean
from fedzero.runs import recipe as recipes
from fedzero.runs import session
from fedzero.runs.session import LEDGER, MODEL, Environment
from fedzero.tasks.blackbox import BlackBox


@dataclass(frozen=True)
class Step:
    """An evaluation: rounds and queries (attempts of all clients) so far, and F of the model then, or its estimate."""

    rounds: int
    queries: int
    value: float
    estimated: bool


@dataclass(frozen=True, eq=False)
class Result:
    """What came out.

    x: the point found, within the bounds, (d,). value: F(x), or, where `estimated`, the mean of values that boxes gave
    near x, or that of a model of F, with its standard error as `error`; None if no box ever answered. values: f_i(x),
    one per client, None where it was not asked. start_value: F at the starting point, if it was asked. best_x,
    best_value: the smallest F at any point at which all boxes were asked. queries: attempts of all clients, retries
    included. history: all evaluations. reason: why the run ended before `rounds`, if it did.
    """

    x: NDArray[np.float64]
    value: float | None
    error: float | None
    estimated: bool
    values: tuple[float | None, ...]
    start_value: float | None
    best_x: NDArray[np.float64] | None
    best_value: float | None
    queries: int
    rounds: int
    history: tuple[Step, ...]
    folder: Path
    complete: bool
    reason: str


def result_of(folder: Path) -> Result:
    """The outcome of the run in a folder, finished or not."""
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        view, start, asked = replay.read(ledger), ledger.start(), query_log.at_models(ledger)
        recipe = recipes.from_canonical(start.recipe, start.needs)
        task, clients, done = recipe.task, recipe.federation.clients, view.outline.done
        spent, total = query_log.spent_before(ledger), query_log.spent(ledger)
        if not isinstance(task, BlackBox):
            raise FedzeroError(f"{folder} holds no run of black boxes")
        best, x = query_log.best(ledger, clients), _point(folder, task)
        at_start, at_x = dict[int, float](), dict[int, float]()
        if task.evaluate == "shared":
            if best is not None and task.bounds.same_model(best[0], x):
                x = best[0].copy()  # as it was asked, before it was rounded to float32
            begun = task.bounds.from_unit(task.bounds.starting_at(task.start).astype(np.float32).astype(np.float64))
            at_start, at_x = query_log.values_at(ledger, begun), query_log.values_at(ledger, x)
    everybody = {*range(clients)}
    exact = {round: mean([of[c] for c in range(clients)]) for round, of in asked.items() if of.keys() == everybody}
    if at_start.keys() == everybody:
        exact.setdefault(0, mean([at_start[c] for c in range(clients)]))

    def estimated(e: Evaluation) -> bool:
        return ESTIMATED in e.metrics.others if task.evaluate == "shared" else e.round not in exact

    estimate = None
    if task.evaluate == "shared" and view.evaluations and estimated(view.evaluations[-1]):
        estimate = session.replayed(folder, Environment(), None).state.carry.estimate()
    history = {e.round: Step(e.round, spent(e.round), e.metrics.loss, estimated(e)) for e in view.evaluations}
    last = history.get(max(history, default=-1))
    return Result(
        x=x,
        value=estimate[0] if estimate else None if last is None else last.value,
        error=estimate[1] if estimate else None,
        estimated=last is not None and (last.estimated or last.rounds < done),
        values=tuple(asked.get(done, at_x).get(client) for client in range(clients)),
        start_value=exact.get(0),
        best_x=None if best is None else best[0],
        best_value=None if best is None else best[1],
        queries=total,
        rounds=done,
        history=tuple(history.values()),
        folder=folder,
        complete=view.end is not None,
        reason="" if view.end is None else view.end.reason,
    )


def _point(folder: Path, task: BlackBox) -> NDArray[np.float64]:
    """x of the model, of an unfinished run by replay."""
    if (folder / MODEL).exists():
        (u,) = load_model(folder / MODEL).values()
    else:
        u = session.replayed(folder, Environment(), None).state.params.vector()
    return task.bounds.from_unit(u.double().cpu().numpy())
