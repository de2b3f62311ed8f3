"""The rounds of a run, from the end of its ledger to the end of the run, wherever its clients are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fedzero.callbacks import Pause, Stop, Verdict, ignore
from fedzero.errors import FedzeroError
from fedzero.ledger.outline import EvaluationHistory, LedgerSummary
from fedzero.ledger.records import Asked, End, Evaluation, Record, Round, sha256_of
from fedzero.ledger.traffic import Traffic
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.engine import Clients, Tied
from fedzero.recipe.recipe import Recipe
from fedzero.rounds.server import Server
from fedzero.rounds.silence import Listener

T = TypeVar("T")
MOST_TIES = 3
"""The number of attempts at work on which replicas do not agree."""


class Watch(Protocol):
    """An observer of a run.

    phase: the activity between rounds until the next call; empty: none. decide: is told a record before it is written;
    `Stop` ends the run with it, `Pause` this call. traffic: to and from black boxes, so far. round,
    evaluation, checkpoint, ended: of what is on disk. `end` may be called twice.
    """

    def phase(self, what: str) -> None: ...
    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None: ...
    def decide(self, record: Round | Evaluation) -> Verdict: ...
    def traffic(self, total: Traffic) -> None: ...
    def round(self, record: Round) -> None: ...
    def evaluation(self, record: Evaluation) -> None: ...
    def checkpoint(self, done: int) -> None: ...
    def ended(self, record: End) -> None: ...
    def warn(self, text: str) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class _Run:
    """A run in progress. history: its evaluations so far; tied: is told of ties; pictures: those to record after so
    many rounds; waiting: reasons to stop, until a round after which the run can end."""

    recipe: Recipe
    server: Server
    clients: Clients
    watch: Watch
    seconds: Callable[[], float]
    tied: Callable[[Tied], None]
    history: EvaluationHistory
    pictures: Callable[[int], list[Record]]
    waiting: list[str] = field(default_factory=list)

    def persist(self, work: Callable[[], T]) -> T:
        """Do work on which replicas may disagree; on a tie they are told to rebuild, and the work is repeated."""
        ties = 0
        while True:
            try:
                return work()
            except Tied as reason:
                self.tied(reason)
                ties += 1
                if ties == MOST_TIES:
                    raise FedzeroError(_undecided(reason)) from reason

    def play(self, round: int) -> tuple[Round, bool]:
        """The record of a round, and whether to pause after it."""
        verdict: Verdict = None

        def stopped(record: Round) -> str:
            nonlocal verdict
            verdict = self.watch.decide(record)
            if isinstance(verdict, Stop):
                self.waiting.append(verdict.reason)
            # Sites of a server without a model evaluate it only where their recipe says so.
            can = self.server.replica is not None or _due(self.recipe, round + 1)
            return self.waiting[0] if self.waiting and can and round + 1 < self.recipe.rounds else ""

        record = self.persist(lambda: self.server.play(round, self.clients, self.seconds(), stopped))
        return record, isinstance(verdict, Pause)

    def evaluate(self, after: int, reason: str = "") -> Verdict:
        """Evaluate the model and write it. If the watch wants to stop here, the end is part of the same transaction.
        reason: the run ends here anyway; the watch is not asked."""
        records: list[Record] = []
        last = after == self.recipe.rounds or bool(reason) or bool(self.exhausted(after))
        verdict: Verdict = None
        self.watch.phase("evaluating")
        with suppress(Unmeasured):
            model, metrics = self.persist(lambda: self.clients.evaluate(after, last))
            record = Evaluation(after, model.digest, metrics, sha256_of(model))
            records, verdict = [record], self.watch.decide(record)
            if reason or after == self.recipe.rounds:
                verdict = None
            if isinstance(verdict, Stop):
                records += [*self.pictures(after), End(after, model.digest, verdict.reason, sha256_of(model))]
        meter = self.server.meter
        if meter is not None and (asked := meter.log.asked(after)):
            records.insert(0, Asked(after, asked))
        if records:
            self.server.ledger.append(records, self.seconds())
        for each in records:
            if isinstance(each, Evaluation):
                self._note(each)
            elif isinstance(each, End):
                self.watch.ended(each)
        return verdict

    def end(self, done: int, reason: str) -> None:
        model = self.persist(lambda: self.clients.identity(done))
        record = End(done, model.digest, reason, sha256_of(model))
        self.server.ledger.append([*self.pictures(done), record], self.seconds())
        self.watch.ended(record)

    def _note(self, record: Evaluation) -> None:
        before = self.recipe.stop.diverged(self.history)
        self.history.note(record)
        self.watch.evaluation(record)
        if self.recipe.stop.diverged(self.history) and not before:
            self.watch.warn(_warning(self.history))

    def exhausted(self, round: int) -> str:
        return _exhausted(self.server, range(self.recipe.federation.clients), round)


def run_rounds(
    recipe: Recipe,
    outline: LedgerSummary,
    server: Server,
    clients: Clients,
    watch: Watch,
    seconds: Callable[[], float],
    pictures: Callable[[int], list[Record]] = lambda after: [],
    tied: Callable[[Tied], None] = ignore,
    between: Callable[[int, int], bool] = lambda done, evaluated: False,
    samples: Callable[[int], list[Record]] = lambda after: [],
) -> bool:
    """Play the remaining rounds of a run, with its evaluations, and end it. Work that ends in a tie is repeated.
    Returns whether the run has ended: False if the watch paused it.

    outline: of the ledger so far. pictures: the pictures to record after so many rounds. between: is called after a
    round and its evaluation with the number of rounds so far, and the number of rounds before the last evaluation;
    whether it wrote a checkpoint. samples: of what a model says, to record before the first round and after the last.
    """

    def at_end(after: int) -> list[Record]:
        return [*pictures(after), *samples(after)]

    run = _Run(recipe, server, clients, watch, seconds, tied, copy.deepcopy(outline.evaluations), at_end)
    listener = Listener(server, [box.label for box in getattr(recipe.task, "boxes", ())])
    watch.begin(recipe, server.plan.size, outline)
    if outline.end is not None:
        return True
    done, evaluated, stopped = outline.done, outline.evaluated, outline.stopped
    server.save_if_due(done, seconds())
    if _due(recipe, done) and evaluated < done:
        if verdict := run.evaluate(done, stopped):
            return isinstance(verdict, Stop)
        evaluated = done
        if done == 0 and (said := samples(0)):
            server.ledger.append(said, seconds())
    reason = stopped
    watch.phase("first round")
    while done < recipe.rounds and not (reason := stopped or recipe.stop.reason(run.history) or run.exhausted(done)):
        record, pausing = run.play(done)
        if server.meter is not None:
            watch.traffic(server.meter.log.traffic.total)
        watch.round(record)
        for warning in listener.after(done):
            watch.warn(warning)
        done, stopped = done + 1, record.stopped or ""
        if pausing:
            return False
        if _due(recipe, done):
            if verdict := run.evaluate(done, stopped):
                return isinstance(verdict, Stop)
            evaluated = done
        if between(done, evaluated):
            watch.checkpoint(done)
    if evaluated < done:  # a run that ends early also ends with an evaluation
        run.evaluate(done, reason)
    run.end(done, reason)
    return True


def _exhausted(server: Server, everybody: range, round: int) -> str:
    """The reason why a round can no longer be paid for, if any. A round that has begun is played, so that its queries
    are on record."""
    log = None if server.meter is None else server.meter.log
    if log is None:
        return ""
    unable = dict[int, str]()
    for client in everybody:
        unable |= server.unable(round, [client])
        if client not in unable and not server.plan.traits.unanimous:
            return ""
    if not unable or any(log.begun(client, round) for client in everybody):
        return ""
    if len(unable) == len(everybody):
        return f"no client can pay for round {round}: client 0 {unable[0]}"
    client, reason = next(iter(unable.items()))
    return f"client {client} cannot pay for round {round}, which needs all clients: it {reason}"


def _warning(evaluations: EvaluationHistory) -> str:
    first, last = evaluations.first, evaluations.last
    assert first is not None and last is not None
    if not math.isfinite(first.metrics.loss):
        return (
            f"the loss is {first.metrics.loss:.4g} after round {first.round}, so there is nothing to go down from: "
            "look for NaN or infinite numbers in the data and in the base model; the rate is not the reason"
        )
    return (
        f"the run diverges: the loss is {last.metrics.loss:.4g} after round {last.round}, and was "
        f"{first.metrics.loss:.4g} after round {first.round}; a lower algorithm.rate may help, and "
        "stop = { above = … } ends such a run"
    )


def _undecided(reason: Tied) -> str:
    return (
        f"{reason}: the replicas are tied, even after {MOST_TIES} attempts and rebuilding from the ledger; "
        "nothing of it was written. `fedzero replay`, where the base model is, shows which model is right: take the "
        "other site out, or add one; then the run can be resumed"
    )


def _due(recipe: Recipe, after: int) -> bool:
    return after % recipe.evaluate_every == 0 or after == recipe.rounds
