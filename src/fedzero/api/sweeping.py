"""The same run with several seeds and settings, and what they come to together.

runs = fedzero.sweep("demo", {"algorithm.rate": [1e-3, 3e-3]}, seeds=range(3), rounds=100, out="runs/sweep")
runs.mean("accuracy")  # a row for each setting: the mean over seeds and its standard error
runs.report("sweep.html")

Instead of a recipe a function may be given, of a setting and of keywords that it passes on to a verb:

runs = fedzero.sweep(
    lambda rate, **run: fedzero.train(make(), clients, loss=loss, method=fedzero.DeComFL(rate=rate), **run),
    {"rate": [0.01, 0.03]}, seeds=[0, 1, 2], out="runs/sweep")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fedzero.api import given
from fedzero.api.options import RunOptions, chosen
from fedzero.api.runs import Run, environment_of, loaded_with, write_page
from fedzero.api.table import Table
from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger.best import Mode, mode_of
from fedzero.ledger.store import ledger_in
from fedzero.runs import grids, sweeping
from fedzero.runs.grids import SEED, Setting
from fedzero.web import serving_if


class Runs(Sequence[Run]):
    """Runs of several settings, in their order."""

    def __init__(self, runs: Sequence[Run], settings: Sequence[Setting]):
        self._runs, self.settings = tuple(runs), tuple(settings)

    def __getitem__(self, number: Any) -> Any:
        return self._runs[number]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def table(self) -> Table:
        """A row for each run: its setting, its last evaluation, what it cost, its folder."""
        rows = []
        for run, setting in zip(self._runs, self.settings, strict=True):
            columns = run.history
            last = {name: column[-1] for name, column in columns.items()} if len(columns["round"]) else {}
            rows.append(setting | last | {"folder": str(run.folder)})
        return Table.of_rows(rows)

    def mean(self, metric: str = "loss", round: int | None = None) -> Table:
        """A row for each setting: how many seeds, the mean of a metric over them, and its standard error s/√n.

        round: of an evaluation that all runs have; default: each run's last.
        """
        groups: dict[str, tuple[Setting, list[float]]] = {}
        for run, setting in zip(self._runs, self.settings, strict=True):
            rest = {key: value for key, value in setting.items() if key != SEED}
            groups.setdefault(repr(rest), (rest, []))[1].append(_value(run, metric, round))
        rows = []
        for rest, values in groups.values():
            n, error = len(values), float("nan")
            if n > 1:
                error = float(np.std(values, ddof=1)) / sqrt(n)
            rows.append(rest | {"runs": n, metric: float(np.mean(values)), "error": error})
        return Table.of_rows(rows)

    def best(self, metric: str = "loss", mode: Mode | None = None) -> Run:
        """The run whose last evaluation is the best."""
        sign = 1 if mode_of(metric, mode) == "min" else -1
        values = [sign * _value(run, metric, None) for run in self._runs]
        return self._runs[min(range(len(values)), key=lambda i: values[i] if isfinite(values[i]) else float("inf"))]

    def report(self, path: str | Path) -> Path:
        """Write the page that compares them; runs that only differ in their seed are one curve, the mean."""
        return write_page(path, [run.folder for run in self._runs])

    def __repr__(self) -> str:
        return f"{len(self)} runs\n{self.table!r}"


def sweep(
    what: str | Path | Mapping[str, Any] | Callable[..., Run],
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: Sequence[int] | None = None,
    set: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    secret: bytes | None = None,
    **options: Unpack[RunOptions],
) -> Runs:
    """Make a run for every combination of values, each in a folder inside `out`; those that have ended are kept.

    what: a recipe as of `fedzero.run`; or a function that makes one run: it is called with a value for each key of the
        grid and with out, seed and the other options, which it passes on to `train`, `finetune` or `run`. It makes its
        model anew each time.
    grid: lists of values by key; of a recipe the keys are paths, such as "algorithm.rate".
    seeds: of each combination; default: the one of the options. set, data, secret: of a recipe, as of `fedzero.run`.
    options: see `fedzero.RunOptions`. engine: with a recipe and "ray" whole runs are spread over the cluster.
    """
    own = chosen(sweep, options, folder=True)
    assert own.folder is not None
    if own.exist != "resume":
        raise Invalid("exist is for one run: a sweep keeps the runs that have ended")
    values: dict[str, Sequence[Any]] = dict(grid or {})
    if seeds is not None:
        seeds = list(seeds)
        given.each(tuple[given.Seed, ...], seeds=tuple(seeds))
        values[SEED] = seeds
    planned = grids.named(grids.combinations({key: listed(key, each) for key, each in values.items()}))
    if callable(what):
        if set is not None or data is not None or secret is not None:
            raise Invalid("set, data and secret are of recipes: pass them on in your function")
        passed = {name: value for name, value in options.items() if name not in ("out", "web")}
        with serving_if(own.folder, own.web, _say, several=True):
            runs = [what(**passed | setting, out=own.folder / name) for name, setting in planned.items()]
        expect_runs(runs)
        expect_same_start([run.folder for run in runs], list(planned.values()))
        return Runs(runs, list(planned.values()))
    loaded = {name: loaded_with(what, {**(set or {}), **each}, own, "fedzero.sweep") for name, each in planned.items()}
    environment = environment_of(data, secret, own.journal)
    with serving_if(own.folder, own.web, _say, several=True):
        sweeping.sweep(loaded, own.folder, environment, ignore if own.progress is False else _say, own.engine)
    return Runs([Run(own.folder / name, environment) for name in planned], list(planned.values()))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def listed(key: str, values: Any) -> list[Any]:
    if isinstance(values, str | Mapping) or not hasattr(values, "__iter__"):
        raise Invalid(f"{key!r}: give a list of values")
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def expect_runs(runs: Sequence[Any]) -> None:
    odd = [type(run).__name__ for run in runs if not isinstance(run, Run)]
    if odd:
        raise Invalid(f"the function returned a {odd[0]}: return the run, such as fedzero.train(…, **run)")


def expect_same_start(folders: Sequence[Path], settings: Sequence[Setting]) -> None:
    """Runs of one seed and one number of parameters must begin with the same model: else the function trains on, in the
    next run, what the one before has trained."""
    begun: dict[Any, tuple[bytes, Path]] = {}
    for folder, setting in zip(folders, settings, strict=True):
        with ledger_in(folder) as ledger:
            start = ledger.start()
        base, other = begun.setdefault((setting.get(SEED), start.parameters), (start.base, folder))
        if base != start.base:
            raise FedzeroError(
                f"{folder} began with another model than {other}: make the model anew in the function, with the same "
                "first weights for the same seed, and remove the folder"
            )


def _value(run: Run, metric: str, round: int | None) -> float:
    columns = run.history
    if metric not in columns:
        raise Invalid(f"metric = {metric!r}: the columns are {', '.join(columns)}")
    places = np.flatnonzero(columns["round"] == round) if round is not None else np.arange(len(columns["round"]))
    if not len(places):
        raise FedzeroError(f"{run.folder} has no evaluation" + ("" if round is None else f" after {round} rounds"))
    return float(columns[metric][places[-1]])
