"""How a run is carried out, whatever it trains: the keywords that all verbs share.

options = fedzero.RunOptions(rounds=200, seed=1, engine="ray:4")
fedzero.train(model, clients, loss=loss, out="runs/a", **options)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from fedzero.api import given
from fedzero.api.watching import Shown
from fedzero.errors import Misnamed, did_you_mean
from fedzero.model.numbers import PositiveInt
from fedzero.recipe.engines import Wanted
from fedzero.recipe.report import Report
from fedzero.recipe.stopping import Stop


class RunOptions(TypedDict, total=False):
    """Keywords of `train`, `finetune`, `run` and `minimise`. What is left out, or None, is the verb's default."""

    out: str | Path | None
    """folder of the run. If it holds this run, it is resumed; with another model, data or setting it is refused"""
    rounds: int | None
    """how many"""
    seed: int | None
    """of all that is random; default: 0"""
    evaluate_every: int | None
    """rounds between evaluations"""
    stop: Stop | Mapping[str, Any] | None
    """when to end early, as `[stop]` of a recipe: {"patience": 5}"""
    engine: Wanted
    """where clients are evaluated: this process, or "ray", "ray:16", {"kind": "ray", "workers": 16, "gpus": 0.5}"""
    resume: bool | None
    """False: refuse a folder that holds a run"""
    progress: bool | Shown | None
    """True shows it on standard error; or somebody who shows it in another way"""
    callbacks: Sequence[Any] | None
    """values with some of the methods of `fedzero.Callback`; they may stop or pause the run"""
    report_to: str | Sequence[str] | Report | Mapping[str, Any] | None
    """"tensorboard", "mlflow" or "wandb", a list of these, or a table as `[report]` of a recipe"""
    web: bool | str | None
    """serve the report as a page that follows the run, at 127.0.0.1:8747 or at the "HOST:PORT" that is given; its
    address is printed"""


@dataclass(frozen=True)
class Chosen:
    """The options of a call, looked at."""

    folder: Path | None
    rounds: int | None
    seed: int | None
    evaluate_every: int | None
    stop: Mapping[str, Any] | None
    engine: Wanted
    resume: bool
    progress: bool | Shown
    web: bool | str
    callbacks: tuple[Any, ...]
    report: Report | None

    def table(self, rounds: int, evaluate_every: int) -> dict[str, Any]:
        """Keys of a recipe; rounds and evaluate_every: where nobody has said."""
        stop = {} if self.stop is None else {"stop": self.stop}
        return {
            "rounds": rounds if self.rounds is None else self.rounds,
            "seed": self.seed or 0,
            "evaluate_every": evaluate_every if self.evaluate_every is None else self.evaluate_every,
        } | stop


def chosen(verb: Callable[..., Any], options: Mapping[str, Any], progress: bool = True, folder: bool = False) -> Chosen:
    """The options of a call of `verb`; progress: unless they say; folder: the verb needs `out`."""
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
    (resume,) = given.each(bool, resume=told.get("resume", True))
    (web,) = given.each(bool | str, web=told.get("web", False))
    return Chosen(
        given.folder(options.get("out")) if folder or "out" in told else None,
        rounds,
        seed,
        evaluate_every,
        given.table(told["stop"], "stop", Stop, "{'patience': 5}") if "stop" in told else None,
        told.get("engine"),
        resume,
        given.progress(told.get("progress", progress)),
        web,
        given.callbacks(told.get("callbacks", ())),
        reported(told.get("report_to")),
    )


def reported(value: Any) -> Report | None:
    """`report_to` as a value."""
    if value is None or isinstance(value, Report):
        return value
    (found,) = given.each(Report, report_to={"to": value} if isinstance(value, str | list | tuple) else value)
    assert isinstance(found, Report)
    return found
