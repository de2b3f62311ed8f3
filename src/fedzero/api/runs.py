"""Runs as values: start one from a recipe, open one from its folder.

run = fedzero.Run.open("runs/mine")
run.history["loss"], run.summary.queries, run.bytes_per_client
run.verify(); run.replay(100); run.report("page.html"); run.patch("mine.patch"); run.resume()
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from rich.console import Console
from torch import Tensor, nn

from fedzero.api import evaluating, given, in_place
from fedzero.api.options import Chosen, RunOptions, chosen, reported
from fedzero.api.table import Table
from fedzero.api.watching import Shown, Watching
from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger.best import Mode
from fedzero.ledger.folder import LEDGER, MODEL, folder_of
from fedzero.ledger.patch import is_private
from fedzero.ledger.store import Ledger
from fedzero.model import files
from fedzero.model.numbers import Natural
from fedzero.model.value import quoted
from fedzero.oracles.reported import named
from fedzero.privacy.statement import Statement
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Wanted
from fedzero.recipe.environment import Environment, data_folder
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.report import Report
from fedzero.recipe.secret import secret_of
from fedzero.recipe.stopping import Stop
from fedzero.report import axes, page
from fedzero.report.curves import Axis
from fedzero.report.differences import told_apart
from fedzero.report.units import human_bytes
from fedzero.results import history as histories
from fedzero.results import who_has_what, whole
from fedzero.rounds.loop import Watch
from fedzero.runs import growing, recorded, session, statement, summary
from fedzero.runs.patches import export_patch
from fedzero.runs.progress import Replaying, Silent, watch_on
from fedzero.runs.summary import Summary
from fedzero.web import serving_if


class History(Table):
    """Columns of the evaluations of a run, by name: round, loss, accuracy (where the task has one), what else it
    measures, bytes_up and bytes_down (of a client, since the start), queries (of all clients)."""

    def __repr__(self) -> str:
        return f"History of {len(self['round'])} evaluations: {', '.join(self)}"


@dataclass(frozen=True)
class Best:
    """The best evaluation: after how many rounds, of which metric, its value, and all metrics there."""

    round: int
    metric: str
    value: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Run:
    """A run in a folder. What it says is read from the ledger when it is asked."""

    folder: Path
    environment: Environment
    trained: nn.Module | None = None
    """the module that this process trained, in place"""
    factory: nn.Module | Callable[[], nn.Module] | None = None
    """of a run that was opened: the module before training, or a function that makes it"""

    @staticmethod
    def open(
        folder: str | Path,
        data: str | Path | None = None,
        secret: bytes | None = None,
        model: nn.Module | Callable[[], nn.Module] | None = None,
        trust: bool = False,
    ) -> Run:
        """A run of any process. data: folder with the datasets, where the task needs one; secret: of a private run.

        model: of a run of `train` or of an object of `finetune`: the module as it was given to them, or a function that
        makes it; `run.model` is that one, with the trained parameters. Its own values of these do not matter.
        trust: also of a run that this user has not started here, whatever its ledger names may be imported, run and
        fetched.
        """
        if callable(data):
            raise Invalid("data is a module or a function: give it as model, Run.open(folder, model=…)")
        if model is not None and not callable(model):
            raise Invalid(f"model = {quoted(model)} is not valid: give a torch.nn.Module, or a function that makes it")
        place = folder_of(given.path(folder, "folder"))
        Ledger.open(place / LEDGER).close()
        return Run(place, replace(environment_of(data, secret), vouched=trust), factory=model)

    @cached_property
    def model(self) -> Any:
        """The trained module: the one that was trained in place, or that of a finished run, made again, in eval mode.
        None of a run that trains no module; an error says what is missing where it cannot be made."""
        return whole.module_of(self.folder, self.environment, self.factory) if self.trained is None else self.trained

    @cached_property
    def recipe(self) -> Recipe:
        return recorded.recipe_in(self.folder)

    @property
    def summary(self) -> Summary:
        return summary.summary_of(self.folder)

    @property
    def history(self) -> History:
        points = histories.history(self.folder).points
        others = list(dict.fromkeys(name for point in points for name in point.others))
        columns: dict[str, list[Any]] = {"round": [p.round for p in points], "loss": [p.loss for p in points]}
        if any(p.accuracy is not None for p in points):
            columns["accuracy"] = [np.nan if p.accuracy is None else p.accuracy for p in points]
        columns = {name: [p.others.get(name, np.nan) for p in points] for name in others} | columns  # ours count
        columns |= {name: [getattr(p, name) for p in points] for name in ("bytes_up", "bytes_down", "queries")}
        return History({name: np.array(column) for name, column in columns.items()})

    @property
    def bytes_per_client(self) -> float:
        """Up and down, averaged over all clients."""
        totals = self.summary
        return totals.bytes_up_per_client + totals.bytes_down_per_client

    @property
    def queries(self) -> int:
        """Evaluations of the objective by all clients."""
        return self.summary.queries

    @property
    def privacy(self) -> Statement:
        """What a run with [privacy] promises: unit, δ, ε against readers and the server, and what they assume."""
        return statement.statement_in(self.folder)

    def resume(
        self,
        progress: bool | Shown = True,
        trust: bool = False,
        engine: Wanted = None,
        *,
        rounds: int | None = None,
        evaluate_every: int | None = None,
        stop: Stop | Mapping[str, Any] | None = None,
        callbacks: Sequence[Any] = (),
        report_to: str | Sequence[str] | Report | Mapping[str, Any] | None = None,
        journal: str | Path | None = None,
    ) -> Run:
        """Continue a run that was stopped or killed; it ends in the same bits as if it had not been.

        rounds: extend it to so many rounds; it has the updates and the model of a run of so many from the start.
        evaluate_every, stop: from the extension on; a run that ended early goes on with another `stop`.
        trust: also one that this user did not start and that names programs, modules or services to be called.
        engine: "ray", "ray:16" or a table as in a recipe; default: this process.
        callbacks, report_to: as of `fedzero.RunOptions`; they are not part of a run, so give them again. journal: for a
        run that no journal has counted so far; its earlier rounds are counted, too.
        """
        progress, (trust,) = given.progress(progress), given.each(bool, trust=trust)
        named = {"rounds": rounds, "evaluate_every": evaluate_every, "stop": stop}
        growth = chosen(Run.resume, named).said
        watch = watch_of(progress, self.folder, given.callbacks(callbacks), reported(report_to))
        with in_place.training(self.trained, self.folder):
            environment = self._environment(progress)
            if journal is not None:
                environment = replace(environment, journal=given.folder(journal, "journal"))
            session.resume(self.folder, environment, watch, trust, engine, growth)
        in_place.load_result(self.trained, self.folder)
        return self

    def verify(self) -> None:
        """Check hash chain, updates, digests and model file; raises `fedzero.Tampered` with the first bad round."""
        recorded.verified(self.folder, self._reading)

    def replay(self, round: int | None = None) -> dict[str, Tensor]:
        """The trained parameters before round `round` (default: after the last) as a state dict, from the ledger."""
        (round,) = given.each(Natural | None, round=round)
        return dict(recorded.replayed(self.folder, self._reading, round).state.params.tensors)

    def state_dict(self) -> dict[str, Tensor]:
        """All that `run.model.state_dict()` has, at the end of the run: trained parameters, from the model file, frozen
        weights, buffers, and every name of tied ones; for `load_state_dict(…, strict=True)`. Adapters stay adapters."""
        return whole.state_dict_of(self.folder, lambda: self.model, self.trained is not None)

    def generate(self, rows: Sequence[Mapping[str, Any]], tokenizer: Any = None) -> list[str]:
        """What the trained language model says after the prompts of rows, by the recipe's `[task.generate]`.

        rows: with the fields of the prompt. tokenizer: of a run with a model object that another process began.
        """
        return whole.said_of(self.folder, self.environment, self.model, tokenizer, given.rows(rows, "rows"))

    def report(self, path: str | Path) -> Path:
        """Write the page about the run."""
        return write_page(path, [self.folder])

    def patch(self, path: str | Path, which: Any = "last", open: bool = False) -> Path:
        """Write the fine-tune as a small file: "last", "best", or the number of an evaluated round,
        such as `run.best("f1").round`. That of a private
        run is applied with the secret, unless it is `open`: then whoever has it knows the run's directions."""
        place, (open,) = given.file(path, "path"), given.each(bool, open=open)
        (which,) = given.each(Natural | Literal["last", "best"], which=which)
        content = export_patch(self.folder, self._reading, which, open)
        with given.writing(place):
            files.write(place, content, private=is_private(content))
        return place

    def plot(self, *others: Run, metric: str | None = None, axis: Axis = "rounds", ax: Any = None) -> Any:
        """A metric (default: accuracy, or loss) against rounds, bytes or queries, with that of other runs, on axes of
        matplotlib: those given, or new ones."""
        for run in others:
            if not isinstance(run, Run):
                raise Invalid(f"{quoted(run)} is not a run: open it, fedzero.Run.open(folder)")
        found = told_apart([histories.history(run.folder) for run in (self, *others)])
        return axes.curves(found, metric, axis, ax)

    def plot_clients(self, ax: Any = None) -> Any:
        """Who has what: samples by client and class, on axes of matplotlib. The data must be here, for no ledger has
        them: those that this process trained on, or those that the recipe names."""
        text = getattr(self.recipe.task, "text", None)
        found = who_has_what.holdings(self.folder, self.environment, getattr(text, "label", "label"))
        return axes.clients(found.counts, found.classes, ax)

    def best(self, metric: str | None = None, mode: Mode | None = None) -> Best:
        """The evaluation with the best value of a metric: its round, the value, and all metrics there.

        metric: any column of `run.history` that is measured; default: accuracy, or the loss where there is none.
        mode: "min" or "max", where the metric's name does not say which is better.
        """
        found = recorded.best_in(self.folder, metric, mode)
        metrics = named(found.metrics)
        name = metric or ("loss" if found.metrics.accuracy is None else "accuracy")
        return Best(found.round, name, metrics[name], metrics)

    def load_best(self, metric: str | None = None, mode: Mode | None = None) -> Best:
        """Give `run.model` the parameters of the best evaluation, in place. The ledger and the run's model file, which
        is that of the end, stay as they are."""
        found, module = self.best(metric, mode), self.model
        if module is None:
            raise FedzeroError("this run trains no module: run.replay(run.best().round) gives its parameters")
        in_place.load(module, self.replay(found.round))
        return found

    def evaluate(self, data: Any, round: int | Literal["best"] | None = None, collate: Any = None) -> dict[str, float]:
        """The task's metrics of this run's model on any data, given as `test` of `train` or `finetune`.

        round: the model before this round, or of the best evaluation; default: the last.
        """
        return evaluating.evaluate(self.environment.functions, self._parameters(round), data, collate)

    def evaluate_clients(
        self, data: Sequence[Any] | None = None, round: int | Literal["best"] | None = None
    ) -> evaluating.ByClient:
        """The same client by client: a table with `mean`, `spread` and `worst` of a metric. data: of each client;
        default: what it trains on."""
        return evaluating.evaluate_clients(self.environment.functions, self._parameters(round), data)

    def _parameters(self, round: int | Literal["best"] | None) -> Mapping[str, Tensor]:
        """The trained parameters before a round; of a finished run the last are in its model file."""
        names = evaluating.names(self.environment.functions)
        (round,) = given.each(Natural | Literal["best"] | None, round=round)
        if round is None and (self.folder / MODEL).exists():
            ended = whole.Ended.of(self.folder)
            ended.check(names)
            return ended.trained
        return self.replay(self.best().round if round == "best" else round)

    @property
    def _reading(self) -> Environment:
        """Without the objects of the run: reading a ledger must not change the module that was trained."""
        return replace(self.environment, functions={})

    def _environment(self, progress: bool | Shown) -> Environment:
        return replace(self.environment, replaying=Replaying(Console(stderr=True))) if progress else self.environment

    def __repr__(self) -> str:
        s = self.summary
        ended = "" if s.complete else ", not finished"
        loss = "" if s.final_loss is None else f", loss {s.final_loss:.4g}"
        right = "" if s.final_accuracy is None else f", accuracy {s.final_accuracy:.1%}"
        traffic = human_bytes(self.bytes_per_client)
        return f"Run {self.folder}: {s.algorithm}, {s.rounds} rounds{ended}{loss}{right}, {traffic} per client"

    def _repr_html_(self) -> str:
        return page.card(histories.history(self.folder))


def write_page(path: str | Path, folders: Sequence[Path]) -> Path:
    """Write the page about a run, or a comparison of runs."""
    place = given.file(path, "path")
    with given.writing(place):
        page.write([histories.history(folder) for folder in folders], place)
    return place


def watch_of(
    progress: bool | Shown, folder: Path, callbacks: Sequence[Any] = (), report: Report | None = None
) -> Watch:
    """progress: True shows it on standard error; or somebody who shows it in another way."""
    if isinstance(progress, bool):
        progress = watch_on(Console(stderr=True)) if progress else Silent()
    if getattr(progress, "alone", False):
        return Watching(progress, folder)
    return Watching(progress, folder, callbacks, report)


def environment_of(data: str | Path | None, secret: bytes | None, journal: Path | None = None) -> Environment:
    """Where a run finds its data, its secret, and the journal of privacy budgets."""
    if not isinstance(secret, bytes | None):
        raise Invalid(f"secret is a {type(secret).__name__}: give bytes")
    place = data_folder(None if data is None else given.path(data, "data"))
    return Environment(place, secret_of(secret), journal=journal)


def carry_out(recipe: Recipe, folder: Path, environment: Environment, options: Chosen) -> None:
    """A new run; or, where the folder holds one of the same recipe, that one from where it stands."""
    recipe = recipes.with_engine(recipe, options.engine)
    environment = replace(environment, journal=options.journal or environment.journal)
    watch = watch_of(options.progress, folder, options.callbacks, options.report)
    begun = (folder / LEDGER).exists()
    if begun and options.exist == "error":
        why = "exist = 'error' (resume = False)"
        raise FedzeroError(f"out = {str(folder)!r} already holds a run, and {why}: choose another folder")
    with serving_if(folder, options.web, lambda text: print(text, file=sys.stderr)):
        if begun and options.exist == "resume":
            growth = growing.asked(folder, recipe, options.said)
            # Whoever calls names the same boxes.
            session.resume(folder, environment, watch, trusted=True, engine=recipe.engine, growth=growth)
        else:
            session.start(recipe, folder, environment, watch, overwrite=options.exist == "overwrite")


def run(
    recipe: str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    secret: bytes | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Run a recipe: a file, the name of a packaged one, or a table. If `out` holds a run of it, that is resumed, and
    extended if the recipe has more rounds.

    set: values to change, such as {"algorithm.directions": 20}.
    options: see `fedzero.RunOptions`; those that are left out are what the recipe says. out: default: runs/NAME.
    """
    own = chosen(run, options)
    table = table_with(recipe, set, own, "fedzero.run")
    loaded = recipes.decode(table, "fedzero.run" if isinstance(recipe, Mapping) else str(recipe))
    folder = own.folder or given.folder(Path("runs") / loaded.name)
    if own.exist == "resume" and (folder / LEDGER).exists():
        loaded = growing.completed(folder, loaded, table)
    environment = environment_of(data, secret)
    carry_out(loaded, folder, environment, replace(own, report=own.report or loaded.report or None))
    return Run(folder, environment)


def loaded_with(recipe: Any, set: Mapping[str, Any] | None, own: Chosen, verb: str = "fedzero.run") -> Recipe:
    """The recipe of a call: a file, the name of a packaged one, or a table; with the call's values."""
    return recipes.decode(table_with(recipe, set, own, verb), verb if isinstance(recipe, Mapping) else str(recipe))


def table_with(recipe: Any, set: Mapping[str, Any] | None, own: Chosen, verb: str) -> dict[str, Any]:
    """The same as a table."""
    if not isinstance(recipe, Mapping):
        recipe = given.path(recipe, "recipe")
    changes = {} if set is None else set
    if not isinstance(changes, Mapping) or not all(isinstance(key, str) and key for key in changes):
        raise Invalid(f"set = {quoted(set)} is not valid: give a dictionary such as {{'algorithm.directions': 20}}")
    table = copy.deepcopy(dict(recipe)) if isinstance(recipe, Mapping) else recipes.read(recipes.find(recipe))
    named = {name: getattr(own, name) for name in ("rounds", "seed", "evaluate_every", "stop", "privacy")}
    for path, value in {**given.told(**named), **changes}.items():
        recipes.put(table, path, copy.deepcopy(value), verb)
    return table
