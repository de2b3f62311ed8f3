"""What an experiment is: a generator that yields stages of runs, is sent their histories, and returns what to show.

    plan(setting) → yields Stage, is sent {folder: History}, returns Outcome

A plan never runs anything itself. Whoever drives it runs what is missing, takes what is already there, and sends the
histories; so a plan that was interrupted is simply driven again. A stage may depend on the one before (a grid search,
then the chosen setting).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from fedzero.errors import FedzeroError
from fedzero.report.history import History
from fedzero.run.recipe import Recipe


@dataclass(frozen=True)
class Setting:
    """How an experiment is asked for on the command line."""

    quick: bool = False
    seeds: int | None = None
    """how many repetitions; None: as many as the experiment says"""
    only: str | None = None
    """parts of the experiment to do: shell patterns or pieces of names, commas between them"""
    model: str | None = None
    """another model than the experiment's own, where it has one"""

    def chosen(self, names: Sequence[str]) -> list[str]:
        """The parts to do, in the order they are given; every pattern names one at least."""
        if self.only is None:
            return list(names)
        found = {pattern: _matching(pattern.strip(), names) for pattern in self.only.split(",")}
        for pattern, parts in found.items():
            if not parts:
                raise FedzeroError(f"--only {pattern}: no part of that name; there are {', '.join(names)}")
        return [name for name in names if any(name in parts for parts in found.values())]


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


@dataclass(frozen=True)
class Stage:
    """Runs that do not depend on each other; `ahead` is how many runs later stages add, and their cost."""

    title: str
    jobs: tuple[Job, ...]
    ahead: tuple[int, float] = (0, 0.0)


Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table of the paper, ours beside it. Numbers stay numbers: Markdown rounds them, CSV does not."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Line:
    """A curve. `low` and `high` are a band around it; `style` numbers its colour and marker (the paper's own is −1)."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: int = 0
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    lines: tuple[Line, ...]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels row by row, `columns` of them in a row; the title says which figure of which paper it is."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    columns: int = 1
    setting: str = ""
    """one line below the title"""


@dataclass(frozen=True)
class Outcome:
    """What an experiment shows, and what it found: sentences, also where the paper's claim does not come out."""

    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    findings: tuple[str, ...] = ()


Plan = Generator[Stage, Mapping[str, History], Outcome]


class Experiment(Protocol):
    """One item of a paper."""

    @property
    def name(self) -> str: ...
    @property
    def paper(self) -> str:
        """Which item of which paper."""
        ...

    @property
    def about(self) -> str:
        """One line for the list."""
        ...

    @property
    def times(self) -> tuple[str, str]:
        """About how long it takes, quick and full."""
        ...

    @property
    def needs_data(self) -> bool:
        """Whether the full setting needs --data."""
        ...

    def plan(self, setting: Setting) -> Plan: ...
