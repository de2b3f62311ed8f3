"""How a run is carried out, whatever it trains: the keywords that all verbs share.

options = fedzero.RunOptions(rounds=200, seed=1, engine="ray:4")
fedzero.train(model, clients, loss=loss, out="runs/a", **options)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import UNSET

from fedzero.api import given
from fedzero.api.validation import share_of
from fedzero.api.watching import Shown
from fedzero.errors import Invalid, Misnamed, did_you_mean
from fedzero.ledger.folder import LEDGER
from fedzero.model.numbers import PositiveInt
from fedzero.model.value import checked, quoted
from fedzero.recipe.engines import Wanted
from fedzero.recipe.privacy import Privacy
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.report import LOGGERS, Report
from fedzero.recipe.stopping import Stop
from fedzero.runs import recorded
from fedzero.runs.growing import Growth

Exist = Literal["resume", "overwrite", "error"]


class RunOptions(TypedDict, total=False):
    """Keywords of `train`, `finetune`, `run` and `minimise`. What is left out, or None, is as in the run that is in the
    folder; of a new run, the verb's default."""

    out: str | Path | None
    """folder of the run. If it holds this run, it is resumed; with another model, data or setting it is refused"""
    rounds: int | None
    """how many. A run that is there and has fewer is extended: it ends as a run of so many rounds would"""
    seed: int | None
    """of all that is random; default: 0"""
    evaluate_every: int | None
    """rounds between evaluations"""
    stop: Stop | Mapping[str, Any] | None
    """when to end early, as `[stop]` of a recipe: {"patience": 5}"""
    engine: Wanted
    """where clients are evaluated: this process, or "ray", "ray:16", {"kind": "ray", "workers": 16, "gpus": 0.5}"""
    exist: Exist | None
    """what to do if the folder holds a run: "resume" (default), "overwrite" or "error" are the words"""
    resume: bool | None
    """True is short for exist = "resume", False for exist = "error": the form of 0.2"""
    progress: bool | Shown | None
    """True shows it on standard error; or somebody who shows it in another way"""
    privacy: Privacy | Mapping[str, Any] | None
    """differential privacy: `fedzero.Privacy(epsilon=2)`, or a table as `[privacy]` of a recipe; not for `minimise`"""
    journal: str | Path | None
    """folder with the journal of what differential privacy was spent on each data set, by all runs that name it;
    default: FEDZERO_JOURNAL. A run goes on in the journal in which it began"""
    callbacks: Sequence[Any] | None
    """values with some of the methods of `fedzero.Callback`; they may stop or pause the run"""
    report_to: str | Sequence[str] | Report | Mapping[str, Any] | None
    """"tensorboard", "mlflow" or "wandb", a list of these, or a table as `[report]` of a recipe"""
    web: bool | str | None
    """serve the report as a page that follows the run, at 127.0.0.1:8747 or at the "HOST:PORT" that is given; its
    address is printed"""


@dataclass(frozen=True)
class Chosen:
    """The options of a call, looked at.

    said: what the caller said of the fields that an extension changes; before: the recipe of the run in the folder, if
    it is to be resumed.
    """

    folder: Path | None
    rounds: int | None
    seed: int | None
    evaluate_every: int | None
    stop: Mapping[str, Any] | None
    privacy: Mapping[str, Any] | None
    engine: Wanted
    exist: Exist
    progress: bool | Shown
    web: bool | str
    callbacks: tuple[Any, ...]
    report: Report | None
    said: Growth
    journal: Path | None = None
    before: Recipe | None = None

    def of_the_run(self) -> Chosen:
        """With the values of the run in the folder where the caller said nothing, if it is to be resumed."""
        if self.folder is None or self.exist != "resume" or not (self.folder / LEDGER).exists():
            return self
        before, unsaid = recorded.recipe_in(self.folder), dict[str, Any]()
        for name in ("rounds", "seed", "evaluate_every", "stop", "privacy"):
            if getattr(self, name) is None and getattr(before, name) is not UNSET:
                unsaid[name] = msgspec.to_builtins(getattr(before, name))
        return replace(self, before=before, **unsaid)

    def table(self, rounds: int, evaluate_every: int) -> dict[str, Any]:
        """Keys of a recipe; rounds and evaluate_every: where nobody has said."""
        said = given.told(stop=self.stop, privacy=self.privacy)
        return {
            "rounds": rounds if self.rounds is None else self.rounds,
            "seed": self.seed or 0,
            "evaluate_every": evaluate_every if self.evaluate_every is None else self.evaluate_every,
        } | said

    def on_public(self, test: Any, validation: Any) -> Chosen:
        """The same, after refusing evaluations on the clients' own data: they would show more of them than [privacy]
        accounts for."""
        if self.privacy is not None and share_of(validation) is not None:
            raise Invalid("privacy protects the clients' data, and validation is a share of the clients' data")
        if self.privacy is not None and test is None:
            raise Invalid("privacy needs `test`, public data: evaluations show what is evaluated on")
        return self


def chosen(verb: Callable[..., Any], options: Mapping[str, Any], progress: bool = True, folder: bool = False) -> Chosen:
    """The options of a call of `verb`; progress: unless they say; folder: the verb needs `out`. A verb that gets no
    recipe goes on with those `of_the_run`."""
    name = f"fedzero.{verb.__name__}"
    odd = next((each for each in options if each not in RunOptions.__annotations__), None)
    if odd is not None:
        advice = did_you_mean(odd, [*inspect.signature(verb).parameters, *RunOptions.__annotations__])
        raise Misnamed(f"{name} has no argument {odd!r}" + (f": {advice}" if advice else ""))
    if folder and "out" not in options:
        raise Misnamed(f"{name}: missing required argument 'out', the folder of the run")
    told = {name: value for name, value in options.items() if value is not None}
    counts = {name: told.get(name) for name in ("rounds", "evaluate_every")}
    rounds, evaluate_every = given.each(PositiveInt | None, **counts)
    (seed,) = given.each(given.Seed | None, seed=told.get("seed"))
    stop = given.table(told["stop"], "stop", Stop, "{'patience': 5}") if "stop" in told else None
    (web,) = given.each(bool | str, web=told.get("web", False))
    return Chosen(
        given.folder(options.get("out")) if folder or "out" in told else None,
        rounds,
        seed,
        evaluate_every,
        stop,
        given.table(told["privacy"], "privacy", Privacy, "fedzero.Privacy(epsilon=2)") if "privacy" in told else None,
        told.get("engine"),
        _exist(told),
        given.progress(told.get("progress", progress)),
        web,
        given.callbacks(told.get("callbacks", ())),
        reported(told.get("report_to")),
        Growth(rounds, evaluate_every, None if stop is None else _stop(stop)),
        given.folder(told["journal"], "journal") if "journal" in told else None,
    )


def _exist(told: Mapping[str, Any]) -> Exist:
    (exist,) = given.each(Exist | None, exist=told.get("exist"))
    (resume,) = given.each(bool, resume=told.get("resume", True))
    found: Exist = exist or ("resume" if resume else "error")
    if "resume" in told and found != ("resume" if resume else "error"):
        raise Invalid(f"exist = {exist!r} and resume = {resume} contradict each other: leave out resume")
    return found


def _stop(table: Mapping[str, Any]) -> Stop:
    found: Stop = checked(table, Stop, "stop")
    return found


def reported(value: Any) -> Report | None:
    """`report_to` as a value."""
    if value is None or isinstance(value, Report):
        return value
    if isinstance(value, str | list | tuple):
        for word in [value] if isinstance(value, str) else value:
            if word not in LOGGERS:
                meant = did_you_mean(word, LOGGERS) if isinstance(word, str) else ""
                raise Invalid(f"report_to = {quoted(word)} is not valid: {meant or 'use ' + ', '.join(LOGGERS)}")
        value = {"to": value}
    (found,) = given.each(Report, report_to=value)
    assert isinstance(found, Report)
    return found
