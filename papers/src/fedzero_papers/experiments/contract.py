"""What an experiment is: a generator that yields stages of runs, is sent their histories, and returns what to show.

    plan(options) → yields Stage, is sent {folder: History}, returns Outcome

A plan never runs anything itself. Whoever drives it runs what is missing, takes what is already there, and sends the
histories; so a plan that was interrupted is simply driven again. A stage may depend on the one before (a grid search,
then the chosen setting).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, TypeVar

from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.schema import written
from fedzero.report.history import History
from fedzero_papers.experiments.outcome import Outcome

Part = TypeVar("Part")


@dataclass(frozen=True)
class Options:
    """What the command line asks of an experiment."""

    quick: bool = False
    repetitions: int | None = None
    """None: as many as the experiment says"""
    only: str | None = None
    """parts of the experiment to do: shell patterns or pieces of names, commas between them"""
    model: str | None = None
    """another model than the experiment's own, where it has one"""

    def seeds(self, default: int) -> range:
        return range(1, 1 + (self.repetitions or default))

    def chosen(self, names: Sequence[str]) -> list[str]:
        """The parts to do, in the order they are given; every pattern names one at least."""
        if self.only is None:
            return list(names)
        found = {pattern: _matching(pattern.strip(), names) for pattern in self.only.split(",")}
        for pattern, parts in found.items():
            if not parts:
                raise FedzeroError(f"--only {pattern}: no part of that name; there are {', '.join(names)}")
        return [name for name in names if any(name in parts for parts in found.values())]

    def among(self, parts: Sequence[Part]) -> list[Part]:
        """The same, of parts that have a `name`."""
        named = {attrgetter("name")(part): part for part in parts}
        return [named[name] for name in self.chosen(list(named))]


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Without a wildcard a pattern is looked for anywhere in a name."""
    whole = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    return [name for name in names if fnmatchcase(name, whole)]


@dataclass(frozen=True)
class Job:
    """One run: its folder below OUT/runs, its recipe, and about how many seconds it takes on one core."""

    folder: str
    recipe: Recipe
    cost: float = 1.0


def load(name: str, seed: int, rounds: int, every: int | None = None, **tables: Any) -> Recipe:
    """A packaged recipe with other values: `task={"full": True}` is `--set task.full=true`."""
    given = [f"{table}.{key}={written(value)}" for table, values in tables.items() for key, value in values.items()]
    return recipes.load(name, given, seed=seed, rounds=rounds, evaluate_every=every)


@dataclass(frozen=True)
class Stage:
    """Runs that do not depend on each other; `ahead` is how many runs later stages add, and their cost."""

    title: str
    jobs: tuple[Job, ...]
    ahead: tuple[int, float] = (0, 0.0)


Plan = Generator[Stage, Mapping[str, History], Outcome]


def gather(
    title: str, *groups: Mapping[Any, Sequence[Job]], ahead: tuple[int, float] = (0, 0.0)
) -> Generator[Stage, Mapping[str, History], list[dict[Any, tuple[History, ...]]]]:
    """One stage with the jobs of all groups; for every group its histories, arranged as the jobs are."""
    found = yield Stage(title, tuple(job for jobs in groups for each in jobs.values() for job in each), ahead)
    return [{key: tuple(found[job.folder] for job in each) for key, each in jobs.items()} for jobs in groups]


def every_method(
    methods: Iterable[str], seeds: int, options: Options, job: Callable[[str, int], Job]
) -> Generator[Stage, Mapping[str, History], dict[Any, tuple[History, ...]]]:
    """One stage with a job for each chosen method and seed; by method its histories."""
    jobs = {method: [job(method, seed) for seed in options.seeds(seeds)] for method in options.chosen(list(methods))}
    (runs,) = yield from gather("all methods", jobs)
    return runs


@dataclass(frozen=True)
class Experiment:
    """One item of a paper."""

    name: str
    paper: str
    """which item of which paper"""
    about: str
    """one line for the list"""
    times: tuple[str, str]
    """about how long it takes, quick and full"""
    stages: Callable[[Any, Options], Plan]
    """the plan at a scale"""
    full: Any
    """the scale of the paper, as far as two cores allow"""
    quick: Any
    """a scale for a first look"""
    needs_data: bool = True
    """whether the full scale needs --data"""

    def plan(self, options: Options) -> Plan:
        return self.stages(self.quick if options.quick else self.full, options)
