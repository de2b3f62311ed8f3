"""What a run with black boxes came to, read from its folder: the point found, and what the functions are there.

F(x) is the mean over clients of f_i(x). A value is one of F only where every box was asked at the same x; anything else
is an estimate and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger import query_log, replay, traffic
from fedzero.ledger.folder import MODEL, folder_of
from fedzero.ledger.records import Evaluation
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger, ledger_in
from fedzero.model.checkpoint import load_model
from fedzero.oracles.blackbox import ESTIMATED, mean
from fedzero.recipe.environment import Environment
from fedzero.recipe.in_force import in_force
from fedzero.report import axes
from fedzero.results.surrogate_slices import slices
from fedzero.rounds.silence import patience
from fedzero.runs import recorded
from fedzero.tasks.blackbox import BlackBox


@dataclass(frozen=True)
class Step:
    """An evaluation: rounds and queries (attempts of all clients) so far, and F of the model then, or its estimate."""

    rounds: int
    queries: int
    value: float
    estimated: bool


@dataclass(frozen=True)
class Failures:
    """What a party did not answer.

    party: its number; box: how it is called. failed: attempts that failed; unanswered: points without an answer after
    all attempts; nowhere: points at which it gave inf or NaN, and so said that it has no value there; cause: of the
    last attempt that failed.
    """

    party: int
    box: str
    failed: int
    unanswered: int
    nowhere: int
    cause: str


@dataclass(frozen=True, eq=False)
class Result:
    """What came out.

    x: the point found, within the bounds, (d,). value: F(x), or, where `estimated`, the mean of values that boxes gave
    near x, or that of a model of F, with its standard error as `error`; None if no box ever answered. values: f_i(x),
    one per client, None where it was not asked. start_value: F at the starting point, if it was asked. best_x,
    best_value: the smallest F at any point at which all boxes were asked. queries: attempts of all clients, retries
    included. sent, received: bytes to and from services (HTTP), of all clients. history: all evaluations.
    complete: the run was made to its end, and every party took part. reason: why the run ended before `rounds`, or is
    not complete. failures: of every party.
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
    failures: tuple[Failures, ...] = ()
    sent: int = 0
    received: int = 0

    def plot_history(self, ax: Any = None) -> Any:
        """F of the models against queries, and the best so far, on axes of matplotlib."""
        exact = [(step.queries, step.value) for step in self.history if not step.estimated]
        estimates = [(step.queries, step.value) for step in self.history if step.estimated]
        return axes.values(exact, estimates, self.best_value, ax)

    def plot_slice(self, coordinates: Sequence[int] | None = None, axs: Sequence[Any] | None = None) -> list[Any]:
        """What every party answered along some coordinates, and a model of F through x; a pair of axes for each.

        coordinates: default: the two in which the model of F varies most, or the first ones where there is no model.
        """
        with ledger_in(self.folder) as ledger:
            _, task, _ = _read(ledger)
            asked = query_log.located(ledger)
        odd = next((k for k in coordinates or () if not 0 <= k < len(self.x)), None)
        if odd is not None or (coordinates is not None and not len(coordinates)):
            raise Invalid(f"coordinates = {coordinates} is not valid: give numbers from 0 to {len(self.x) - 1}")
        surrogate = slices(asked, task.bounds, self.x, coordinates)
        found = [line.coordinate for line in surrogate] or [*range(min(2, len(self.x)))]
        return axes.slices(asked, found if coordinates is None else coordinates, surrogate, self.x.tolist(), axs)


def result_of(folder: Path) -> Result:
    """The outcome of the run in a folder, finished or not: of its last model."""
    with ledger_in(folder) as ledger:
        view, task, log = _read(ledger)
        spent, total = query_log.spent_before(ledger), query_log.spent(ledger)
        x, shared = _point(folder, task, view), task.evaluate == "shared"
        if shared and log.best is not None and task.bounds.same_model(log.best.point, x):
            x = log.best.point.copy()  # as it was asked, before it was rounded to float32
        values = log.asked.get(view.outline.done) or (query_log.values_at(ledger, x) if shared else {})

    def estimated(e: Evaluation) -> bool:
        return ESTIMATED in e.metrics.others if shared else e.round not in log.exact

    estimate = None
    if shared and view.evaluations and estimated(view.evaluations[-1]):
        estimate = recorded.replayed(folder, Environment(), None).state.carry.estimate()
    history = {e.round: Step(e.round, spent(e.round), e.metrics.loss, estimated(e)) for e in view.evaluations}
    last = history.get(max(history, default=-1))
    complete, reason = _ending(view, task, log)
    asked = traffic.total(folder_of(folder))
    return Result(
        x=x,
        value=estimate[0] if estimate else None if last is None else last.value,
        error=estimate[1] if estimate else None,
        estimated=last is not None and (last.estimated or last.rounds < view.outline.done),
        values=tuple(map(values.get, range(len(task.boxes)))),
        start_value=log.exact.get(0),
        best_x=None if log.best is None else log.best.point,
        best_value=None if log.best is None else log.best.mean,
        queries=total,
        rounds=view.outline.done,
        history=tuple(history.values()),
        folder=folder,
        complete=complete,
        reason=reason,
        failures=log.failures(task),
        sent=asked.sent,
        received=asked.received,
    )


def best_known(result: Result) -> Result:
    """The same with the best point at which all boxes gave a value in the place of a model that is known to be worse,
    or of which nobody knows how good it is (at the end of a run, and where boxes are asked at the same points).

    Not where a fit to noisy values found the model, which knows more than the smallest of them says; nor where a recipe
    wants estimates only.
    """
    best, value = result.best_x, result.best_value
    if best is None or value is None or result.error is not None:
        return result
    with ledger_in(result.folder) as ledger:
        view, task, _ = _read(ledger)
        unknown = result.estimated or result.value is None
        over = view.end is not None or task.evaluate == "shared"
        better = over if unknown else value < (result.value or 0.0)
        if task.evaluate == "log" or not better:
            return result
        values = query_log.values_at(ledger, best)
    parties = tuple(map(values.get, range(len(task.boxes))))
    return replace(result, x=best.copy(), value=value, estimated=False, values=parties)


def _read(ledger: Ledger) -> tuple[LedgerView, BlackBox, _Log]:
    view = replay.read(ledger)
    recipe = in_force(ledger.start(), view.outline.extended)
    if not isinstance(recipe.task, BlackBox):
        raise FedzeroError(f"{ledger.path.parent} holds no run of black boxes")
    return view, recipe.task, _Log.read(ledger, recipe.task, recipe.federation.clients)


@dataclass(frozen=True)
class _Log:
    """What the log of queries says: the best point at which all boxes gave a value, with F there; F of the models at
    which they were all asked, by number of rounds; values at these models, and what became of everybody's queries."""

    best: query_log.Best | None
    exact: Mapping[int, float]
    asked: Mapping[int, Mapping[int, float]]
    answers: Sequence[query_log.Answers]

    @staticmethod
    def read(ledger: Ledger, task: BlackBox, clients: int) -> _Log:
        asked, everybody = query_log.at_models(ledger), {*range(clients)}
        exact = {round: mean([of[c] for c in range(clients)]) for round, of in asked.items() if of.keys() == everybody}
        if task.evaluate == "shared":
            begun = task.bounds.from_unit(task.bounds.starting_at(task.start).astype(np.float32).astype(np.float64))
            at_start = query_log.values_at(ledger, begun)
            if at_start.keys() == everybody:
                exact.setdefault(0, mean([at_start[c] for c in range(clients)]))
        return _Log(query_log.best(ledger, clients), exact, asked, query_log.answers(ledger, clients))

    def failures(self, task: BlackBox) -> tuple[Failures, ...]:
        return tuple(
            Failures(party, box.label, of.failed, of.unanswered, of.nowhere, of.cause)
            for party, (box, of) in enumerate(zip(task.boxes, self.answers, strict=True))
        )


def _ending(view: LedgerView, task: BlackBox, log: _Log) -> tuple[bool, str]:
    """Whether a run is complete, and why it is not, or ended early."""
    ended = view.end is not None
    reasons = [] if view.end is None or not view.end.reason else [view.end.reason]
    absent = []
    for party, (box, of) in enumerate(zip(task.boxes, log.answers, strict=True)):
        who = f"box {box.label} of client {party}"
        if of.failed + of.nowhere and not of.valued:
            gaps = f"; it gave inf or NaN at {of.nowhere} points" if of.nowhere else ""
            cause = f" in {of.failed} attempts that failed ({of.cause})" if of.failed else ""
            absent.append(f"{who} gave no value{cause}{gaps}")
        elif not ended and task.evaluate == "shared" and of.silent >= patience(bool(of.valued)):
            absent.append(f"{who} gave no value in {of.silent} rounds in a row ({of.cause})")
    if not absent and ended and log.best is None and task.evaluate == "shared" and any(a.failed for a in log.answers):
        absent.append("there is no point at which all boxes gave a value")
    return ended and not absent, "; ".join([*absent, *reasons])


def _point(folder: Path, task: BlackBox, view: LedgerView) -> NDArray[np.float64]:
    """x of the model, of an unfinished run by replay."""
    if view.end is not None and (folder / MODEL).exists():
        (u,) = load_model(folder / MODEL).values()
    else:
        u = recorded.replayed(folder, Environment(), None).state.params.vector()
    return task.bounds.from_unit(u.double().cpu().numpy())
