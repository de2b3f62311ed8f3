"""The rounds of a run, from where its ledger stands to its end, whatever engine reaches the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.records import Asked, End, Evaluation, Record, Round
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.engine import Engine, Interrupted, Tied
from fedzero.runs.recipe import Recipe
from fedzero.runs.server import Server

T = TypeVar("T")
MOST_TIES = 3
"""How often something is tried on which replicas do not agree."""


class Watch(Protocol):
    """Somebody who looks on while a run goes.

    phase: what goes on that is no round, until the next call; empty: nothing. `end` may be called twice.
    """

    def phase(self, what: str) -> None: ...
    def begin(self, recipe: Recipe, parameters: int, done: Sequence[Round]) -> None: ...
    def round(self, record: Round) -> None: ...
    def evaluation(self, record: Evaluation) -> None: ...
    def warn(self, text: str) -> None: ...
    def end(self) -> None: ...


def play(
    recipe: Recipe,
    view: replay.LedgerView,
    server: Server,
    engine: Engine,
    watch: Watch,
    seconds: Callable[[], float],
    pictures: Callable[[int], list[Record]] = lambda after: [],
    interrupted: Callable[[Interrupted], None] = lambda reason: None,
) -> None:
    """All rounds that are left of a run, with its evaluations, and its end. What an engine interrupts is done again."""
    ledger, log, done = server.ledger, None if server.meter is None else server.meter.log, len(view.rounds)
    evaluations = list(view.evaluations)

    def persist(work: Callable[[], T]) -> T:
        broken, ties = False, 0
        while True:
            try:
                if broken:
                    engine.renew()
                return work()
            except Tied as reason:  # the epoch goes on: what differs was told to rebuild
                interrupted(reason)
                broken, ties = False, ties + 1
                if ties == MOST_TIES:
                    raise FedzeroError(_undecided(reason)) from reason
            except Interrupted as reason:
                interrupted(reason)
                broken = True

    def evaluate(after: int) -> None:
        records: list[Record] = []
        last = after == recipe.rounds or bool(exhausted(after))
        watch.phase("evaluating")
        with suppress(Unmeasured):
            records = [Evaluation(after, *persist(lambda: engine.evaluate(after, last)))]
        if log is not None and (asked := log.asked(after)):
            records.insert(0, Asked(after, asked))
        if records:
            ledger.append(records, seconds())
        for record in records:
            if isinstance(record, Evaluation):
                before = recipe.stop.diverged(evaluations)
                evaluations.append(record)
                watch.evaluation(record)
                if recipe.stop.diverged(evaluations) and not before:
                    watch.warn(_warning(evaluations))

    def exhausted(round: int) -> str:
        """Why nobody can play a round any more, if so. A round that was begun is played, to be on record."""
        everybody = range(recipe.federation.clients)
        if log is None or any(log.begun(client, round) for client in everybody):
            return ""
        unable = server.unable(round, everybody)
        return f"no client can pay for round {round}: client 0 {unable[0]}" if len(unable) == len(everybody) else ""

    def play_round(round: int) -> Round:
        return server.play(round, engine, seconds())

    watch.begin(recipe, server.plan.size, view.rounds)
    if view.end is not None:
        return
    server.save_if_due(done, seconds())
    evaluated = max([e.round for e in view.evaluations] + [a.round for a in view.asked], default=-1)
    if _due(recipe, done) and evaluated < done:
        evaluate(done)
        evaluated = done
    reason = ""
    watch.phase("first round: kernels are compiled or loaded")
    while done < recipe.rounds and not (reason := recipe.stop.reason(evaluations) or exhausted(done)):
        watch.round(persist(partial(play_round, done)))
        done += 1
        if _due(recipe, done):
            evaluate(done)
            evaluated = done
    if evaluated < done:  # a run that ends early ends with an evaluation, too
        evaluate(done)
    ledger.append([*pictures(done), End(done, persist(lambda: engine.digest(done)), reason)], seconds())


def _warning(evaluations: Sequence[Evaluation]) -> str:
    first, last = evaluations[0], evaluations[-1]
    return (
        f"the run diverges: the loss is {last.metrics.loss:.4g} after round {last.round}, and was "
        f"{first.metrics.loss:.4g} after round {first.round}; a lower algorithm.rate may help, and "
        "stop = { above = … } ends such a run"
    )


def _undecided(reason: Tied) -> str:
    return (
        f"{reason}: as many have the one as the other, also after {MOST_TIES} attempts and rebuilding from the ledger; "
        "nothing of it was written. `fedzero replay`, where the base model is, shows which model is right: take the "
        "other site out, or add one; then the run can be resumed"
    )


def _due(recipe: Recipe, after: int) -> bool:
    return after % recipe.evaluate_every == 0 or after == recipe.rounds
