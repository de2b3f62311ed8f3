"""A search whose settings an optuna study proposes: ask, run, tell. Storage, sampler and pruner are the study's own.

A run reports its training loss (the mean over the last quarter of its rounds so far) ten times, and ends where the
study's pruner says so. Several processes may work on one study with a common storage, each in its own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from fedzero.errors import Invalid
from fedzero.ledger.records import Round
from fedzero.runs import grids, tuning
from fedzero.runs.grids import Setting
from fedzero.runs.searching import Found, Made, found_of, play_until
from fedzero.runs.tuning import Enough, StopAfter, Told, Trial

REPORTS = 10


class _Pruning(StopAfter):
    """Ends a run after so many rounds, or where the study would prune it."""

    def __init__(self, rounds: int, trial: optuna.Trial):
        super().__init__(rounds)
        self.trial, self.losses, self.pruned = trial, list[float | None](), False

    def round(self, record: Round) -> None:
        self.losses.append(record.loss)
        done = record.round + 1
        loss = tuning.judged(self.losses)
        if done % max(1, self.rounds // REPORTS) == 0 and done < self.rounds and loss is not None:
            self.trial.report(loss, done)
            if self.trial.should_prune():
                self.pruned = True
                raise Enough
        super().round(record)


def search(
    study: Any, fields: Mapping[str, Any], trials: int, rounds: int, made: Made, folder: Path, told: Told
) -> Found:
    """Make runs until so many trials of the study are complete or pruned, as are those without a finite loss. fields:
    see `distribution`."""
    if not isinstance(study, optuna.Study):
        raise Invalid(f"study is a {type(study).__name__}: give an optuna.Study, such as optuna.create_study()")
    if study.directions != [optuna.study.StudyDirection.MINIMIZE]:
        raise Invalid("study: a training loss is minimised, so its one direction is 'minimize'")
    wanted = {key: distribution(key, values) for key, values in fields.items()}
    found: list[Trial] = []
    settings: dict[str, dict[str, Any]] = {}
    ended = (TrialState.COMPLETE, TrialState.PRUNED)  # one that failed was killed
    while len(study.get_trials(deepcopy=False, states=ended)) < trials:
        asked = study.ask(dict(wanted))
        name, watch = name_of(asked.params), _Pruning(rounds, asked)
        settings[name] = dict(asked.params)
        try:
            one = play_until(made, settings[name], folder / name, watch, name)
        except BaseException:
            study.tell(asked, state=TrialState.FAIL)
            raise
        if watch.pruned or one.loss is None:
            study.tell(asked, state=TrialState.PRUNED)
        else:
            study.tell(asked, one.loss)
        found.append(one)
        told(one)
    earlier, known = _finished(study, folder, settings, rounds)
    ranked = sorted(
        [*{one.value: one for one in found}.values(), *earlier], key=lambda trial: (-trial.rounds, tuning.merit(trial))
    )
    return found_of(ranked, settings | known)


def _finished(
    study: optuna.Study, folder: Path, own: Mapping[str, Any], rounds: int
) -> tuple[list[Trial], dict[str, dict[str, Any]]]:
    """Completed trials of earlier calls, or of other processes."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    others = {name: trial for trial in complete if (name := name_of(trial.params)) not in own}
    trials = [
        Trial(value=name, rounds=rounds, loss=trial.value, folder=str(folder / name)) for name, trial in others.items()
    ]
    return trials, {name: dict(trial.params) for name, trial in others.items()}


def name_of(setting: Setting) -> str:
    """Of the folder of its run: a setting that is proposed again has been run."""
    (name,) = grids.named([setting])
    return name


def distribution(key: str, values: Any) -> BaseDistribution:
    """(low, high): numbers between, on a logarithmic scale if they are fractions above 0; a list: one of its values; or
    a distribution of optuna."""
    if isinstance(values, BaseDistribution):
        return values
    if isinstance(values, tuple) and len(values) == 2 and all(isinstance(each, int | float) for each in values):
        low, high = values
        if not low < high:
            raise Invalid(f"{key!r}: ({low:g}, {high:g}) is not valid: give (low, high), the smaller number first")
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high)
        return FloatDistribution(low, high, log=low > 0)
    if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or not len(values):
        raise Invalid(f"{key!r}: give a list of values, (low, high), or a distribution of optuna")
    return CategoricalDistribution(list(values))
