"""Searches from Python: over a recipe, or over whatever a function runs, in one field or several at once.

found = fedzero.tune("demo", {"algorithm.rate": [1e-3, 3e-3, 1e-2], "algorithm.directions": [5, 20]}, out="runs/tune")
found.best      # {"algorithm.rate": 0.01, "algorithm.directions": 20}
found.table     # a row for each setting, best first

found = fedzero.tune(
    lambda rate, directions, **run: fedzero.train(
        make(), clients, loss=loss, method=fedzero.DeComFL(rate=rate, directions=directions), **run),
    {"rate": (1e-3, 1e-1), "directions": [5, 20]}, rounds=100, trials=20, study=optuna.create_study(), out="runs/tune")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import msgspec

from fedzero.api import given
from fedzero.api.options import Chosen, RunOptions, chosen
from fedzero.api.runs import Run, environment_of, loaded_with, write_page
from fedzero.api.sweeping import expect_same_start, listed
from fedzero.api.table import Table
from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError, Invalid
from fedzero.model.numbers import PositiveInt
from fedzero.runs import grids, searching, tuning
from fedzero.runs.grids import SEED, Setting
from fedzero.runs.searching import Found, Made
from fedzero.runs.tuning import Told, Trial

TRIALS = {False: 8, True: 20}
"""Of a search without a study, and with one."""


class Search:
    """The result of a search. best: the values to set, none where the recipe as it is was the best."""

    def __init__(self, found: Found, folder: Path):
        self.best, self.note, self.trials, self.folder = found.best, found.note, found.trials, folder

    @property
    def table(self) -> Table:
        """A row for each setting, best first: its values, rounds made, training loss, folder."""
        return Table.of_rows(
            [each.setting | {"rounds": each.rounds, "loss": each.loss, "folder": each.folder} for each in self.trials]
        )

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def report(self, path: str | Path) -> Path:
        """Write the page that compares the runs of the search."""
        return write_page(path, [Path(each.folder) for each in self.trials])

    def __repr__(self) -> str:
        return f"best: {self.best}" + (f" ({self.note})" if self.note else "") + f"\n{self.table!r}"


def tune(
    what: str | Path | Mapping[str, Any] | Callable[..., Run],
    search: Mapping[str, Any] | None = None,
    *,
    trials: int | None = None,
    study: Any = None,
    set: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    secret: bytes | None = None,
    **options: Unpack[RunOptions],
) -> Search:
    """Find values by short runs, judged by their training loss, never by test data. The same call continues a search.

    what: a recipe as of `fedzero.run`; or a function that makes one run: it is called with a value for each field and
        with out, rounds, progress, … as `**run`, which it passes on to `train` or `finetune`. It makes its model anew.
    search: lists of values by field: every combination runs, and the better half goes on to twice as many rounds, as in
        `fedzero tune`. Of one field of a recipe also (low, high), or None. With a study also (low, high) of any.
    study: an optuna.Study (pip install 'fedzero[tune]'), which proposes settings and prunes runs.
    trials: values of one range (default: 8), or finished trials of the study (20).
    options: see `fedzero.RunOptions`. rounds: of the longest runs; default: half of the recipe's. engine: with a recipe
        and "ray" whole runs are spread over the cluster.
    """
    own = chosen(tune, options, folder=True)
    (count,) = given.each(PositiveInt | None, trials=trials)
    count, fields = count or TRIALS[study is not None], {tuning.RATE: None} if search is None else dict(search)
    assert own.folder is not None
    if not fields:
        raise Invalid('search = {} has no field: give one, such as {"algorithm.rate": [1e-3, 1e-2]}')
    if own.web or own.exist != "resume" or own.stop:
        raise Invalid("web, exist and stop are for one run: a search ends its runs, and continues them")
    if callable(what):
        if set is not None or data is not None or secret is not None:
            raise Invalid("set, data and secret are of recipes: pass them on in your function")
        if own.rounds is None:
            raise Invalid("rounds: say how many the longest runs have")
        made, told = _made_by(what, own.rounds, options), _checked(own, fields)
        if study is not None:
            return Search(_asked(study, fields, count, own.rounds, made, own.folder, told), own.folder)
        return Search(searching.search_runs(made, _grid(fields), own.rounds, own.folder, told), own.folder)
    recipe = loaded_with(what, set, replace(own, rounds=None), "fedzero.tune")
    environment = environment_of(data, secret, own.journal)
    if study is not None:
        longest = own.rounds or max(recipe.rounds // 2, tuning.LEAST)
        recipe = msgspec.structs.replace(recipe, rounds=longest, evaluate_every=longest)
        made = searching.make_recipe(recipe, environment)
        return Search(_asked(study, fields, count, longest, made, own.folder, _told(own)), own.folder)
    (key, bounds), *more = fields.items()
    if not more and (bounds is None or isinstance(bounds, tuple)):
        found = tuning.tune(recipe, own.folder, environment, key, count, own.rounds, bounds, _told(own), own.engine)
        return Search(searching.of_one(found), own.folder)
    settings = _grid(fields)
    return Search(
        searching.search_recipe(recipe, settings, own.rounds, own.folder, environment, _told(own), own.engine),
        own.folder,
    )


def _grid(fields: Mapping[str, Any]) -> dict[str, Setting]:
    for key, values in fields.items():
        if values is None or isinstance(values, tuple):
            raise Invalid(f"{key!r}: several fields, and those of a function, take lists of values, or a study")
    return grids.named(grids.combinations({key: listed(key, values) for key, values in fields.items()}))


def _made_by(call: Callable[..., Any], rounds: int, options: Mapping[str, Any]) -> Made:
    passed = {name: value for name, value in options.items() if name not in ("out", "progress")}

    def made(setting: Setting, folder: Path, watch: Any) -> None:
        given = passed | {"rounds": max(rounds, tuning.LEAST), "evaluate_every": max(rounds, tuning.LEAST)}
        call(**given | setting, out=folder, progress=watch)

    return made


def _asked(study: Any, fields: Any, trials: int, rounds: int, made: Made, folder: Path, told: Told) -> Found:
    if find_spec("optuna") is None:
        raise FedzeroError("a study needs optuna: pip install 'fedzero[tune]'")
    from fedzero.runs import studies

    return studies.search(study, fields, trials, rounds, made, folder, told)


def _told(own: Chosen) -> Told:
    return ignore if own.progress is False else partial(print, file=sys.stderr)


def _checked(own: Chosen, fields: Mapping[str, Any]) -> Told:
    """Says what came of a trial, after a check that its run began as the others did."""
    tell, folders = _told(own), list[Path]()

    def told(trial: Trial) -> None:
        folders.append(Path(trial.folder))
        if SEED not in fields:
            expect_same_start(folders, [{} for _ in folders])
        tell(trial)

    return told
