"""The watch of a call: what is shown, the caller's callbacks, and loggers.

Callbacks are asked before a record is written, since their answer is written with it; their exceptions wait until the
record is on disk. Loggers are told afterwards; their exceptions are said once, and end nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from fedzero.callbacks import CheckpointInfo, EndInfo, EvaluationInfo, Pause, RoundInfo, RunInfo, Stop, Totals, Verdict
from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints
from fedzero.ledger.folder import folder_of
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import End, Evaluation, Round, metrics_of, readers_of, time_of
from fedzero.ledger.store import ledger_in
from fedzero.ledger.traffic import Traffic
from fedzero.lines import LONGEST_SAID, printable, said_of
from fedzero.loggers import reporters
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.report import Report
from fedzero.results.settings import settings_of


class Shown(Protocol):
    """What `progress` may be: an observer that shows what happens."""

    def phase(self, what: str) -> None: ...
    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None: ...
    def round(self, record: Round) -> None: ...
    def evaluation(self, record: Evaluation) -> None: ...
    def warn(self, text: str) -> None: ...
    def end(self) -> None: ...


class Watching:
    """A `rounds.loop.Watch` made of these. callbacks: values with some of the methods of `fedzero.Callback`."""

    def __init__(self, shown: Shown, folder: Path, callbacks: Sequence[Any] = (), report: Report | None = None):
        self.shown, self.folder = shown, folder_of(folder)
        self.phase, self.warn = shown.phase, shown.warn
        self._callbacks, self._observers = list(callbacks), [*reporters(report, shown.warn)]
        self._begun: list[Any] = []
        self._raised: BaseException | None = None
        self._ended: End | None = None
        self._rounds, self._totals, self._before, self._began = 0, Totals(), 0.0, 0.0

    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None:
        self.shown.begin(recipe, parameters, done)
        self._ended, self._rounds, self._before, self._began = done.end, done.done, done.seconds, time.perf_counter()
        self._totals = Totals(done.bytes_up, done.bytes_down, done.queries, done.seconds)
        entries, folder = done.entries, self.folder
        info = RunInfo(
            folder=self.folder,
            name=recipe.name,
            method=recipe.algorithm.name,
            planned=recipe.rounds,
            rounds=done.done,
            clients=recipe.federation.clients,
            parameters=parameters,
            totals=self._totals,
            config=MappingProxyType(settings_of(recipe)),
            entries=entries,
            evaluations=lambda: _evaluations(folder, entries),
        )
        self._observe("begin", info)
        for each in self._callbacks:
            self._begun.append(each)
            _tell(each, "begin", info)

    def decide(self, record: Round | Evaluation) -> Verdict:
        """`Stop` before `Pause`, and the first reason that is given."""
        name, info = ("round", self._of(record)) if isinstance(record, Round) else ("evaluation", _result(record))
        verdicts = [self._asked(each, name, info) for each in self._callbacks]
        stops = [verdict for verdict in verdicts if isinstance(verdict, Stop)]
        return stops[0] if stops else next((verdict for verdict in verdicts if verdict), None)

    def traffic(self, total: Traffic) -> None:
        if (tell := getattr(self.shown, "traffic", None)) is not None:  # what a caller gives may not have it
            tell(total)

    def round(self, record: Round) -> None:
        info = self._of(record)
        self._rounds, self._totals = info.rounds, info.totals
        self.shown.round(record)
        self._observe("round", info)
        self._raise()

    def evaluation(self, record: Evaluation) -> None:
        self.shown.evaluation(record)
        self._observe("evaluation", _result(record))
        self._raise()

    def checkpoint(self, done: int) -> None:
        for each in self._callbacks:
            _tell(each, "checkpoint", CheckpointInfo(done, self.folder / checkpoints.FILE))

    def ended(self, record: End) -> None:
        self._ended = record

    def end(self) -> None:
        self.shown.end()
        begun, self._begun = self._begun, []
        reason = "" if self._ended is None else self._ended.reason
        info = EndInfo(self._rounds, self._ended is not None, reason, self._totals)
        failing, first = sys.exc_info()[1], None
        for each in begun:
            try:
                _tell(each, "end", info)
            except Exception as error:  # the others are told, too
                first = first or error
        self._observe("end", info)
        self._observers = []
        if first is not None and failing is None:
            raise first
        if first is not None:  # another exception ends the call already
            self.warn(f"a callback failed at the end, too: {said_of(first, LONGEST_SAID)}")

    def _of(self, record: Round) -> RoundInfo:
        before = self._totals
        return RoundInfo(
            rounds=record.round + 1,
            loss=record.loss,
            bytes_up=record.bytes_up,
            bytes_down=record.bytes_down,
            queries=record.queries,
            cohort=record.cohort,
            refused=record.refused,
            totals=Totals(
                before.bytes_up + record.bytes_up,
                before.bytes_down + record.bytes_down,
                before.queries + record.queries,
                self._before + time.perf_counter() - self._began,
            ),
            epsilon=readers_of(record),
            time=time_of(record),
        )

    def _asked(self, callback: Any, name: str, info: object) -> Verdict:
        try:
            verdict = _tell(callback, name, info)
            if verdict is None or isinstance(verdict, Stop | Pause):
                return verdict
            raise FedzeroError(
                f"{type(callback).__name__}.{name} returned {printable(repr(verdict), 80)}: return "
                "fedzero.Stop(reason), fedzero.Pause() or None"
            )
        except BaseException as error:
            self._raised = self._raised or error
            return None

    def _raise(self) -> None:
        """What a callback raised, now that the record is on disk."""
        error, self._raised = self._raised, None
        if error is not None:
            raise error

    def _observe(self, name: str, info: object) -> None:
        for each in list(self._observers):
            try:
                _tell(each, name, info)
            except Exception as error:
                self._observers.remove(each)
                self.warn(f"{each.name} gets no more of this run, which goes on ({said_of(error, LONGEST_SAID)})")


def _tell(callback: Any, name: str, info: object) -> Any:
    method: Callable[[object], Any] | None = getattr(callback, name, None)
    return None if method is None else method(info)


def _result(record: Evaluation) -> EvaluationInfo:
    return EvaluationInfo(record.round, metrics_of(record))


def _evaluations(folder: Path, upto: int) -> tuple[EvaluationInfo, ...]:
    with ledger_in(folder) as ledger:
        return tuple(_result(entry.record) for entry in ledger.entries(0, upto) if isinstance(entry.record, Evaluation))
