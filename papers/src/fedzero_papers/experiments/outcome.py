"""What an experiment shows: tables, figures and sentences, as values that others write and draw."""

from __future__ import annotations

from dataclasses import dataclass

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
