"""The totals, one row a run: the same cells for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedzero.report.history import History
from fedzero.report.text import printable
from fedzero.report.units import DASH, human_bytes, human_loss, human_seconds, percent

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["COLUMNS", "Column", "columns", "human_bytes", "loss_of", "rows", "terminal_table"]


@dataclass(frozen=True)
class Column:
    heading: str
    cell: Callable[[History], str]
    number: bool = True  # right-aligned, digits of equal width
    value: Callable[[History], float | None] = lambda history: None

    def sorts_by(self, history: History) -> float | None:
        """The number behind the cell; None where the cell is text, or says nothing."""
        value = None if self.cell(history) in ("", DASH) else self.value(history)
        return None if value is None or not math.isfinite(value) else float(value)


def loss_of(history: History) -> str:
    """The last loss; ≈ where it is an estimate."""
    if not history.points:
        return DASH
    about = "≈ " if history.points[-1].estimated else ""
    error = history.points[-1].errors.get("loss")
    return f"{about}{human_loss(history.final_loss)}" + ("" if error is None else f" ± {error:.2g}")


def accuracy_of(history: History) -> str:
    """The last accuracy, of a mean of runs with its standard error."""
    error = history.points[-1].errors.get("accuracy") if history.points else None
    text = percent(history.final_accuracy)
    return text if error is None else f"{text.removesuffix(' %')} ± {100 * error:.1f} %"


def counted(unit: str) -> Callable[[History], str]:
    return lambda history: f"{history.queries:,}" if history.unit == unit else DASH


COLUMNS: tuple[Column, ...] = (
    Column("run", lambda h: h.title, number=False),
    Column("method", lambda h: h.algorithm, number=False),
    Column("rounds", lambda h: f"{h.rounds:,}", value=lambda h: h.rounds),
    Column("loss", loss_of, value=lambda h: h.final_loss),
    Column("accuracy", accuracy_of, value=lambda h: h.final_accuracy),
    Column("best", lambda h: percent(h.best_accuracy), value=lambda h: h.best_accuracy),
    Column("up / client", lambda h: human_bytes(h.bytes_up, 3), value=lambda h: h.bytes_up),
    Column("down / client", lambda h: human_bytes(h.bytes_down, 3), value=lambda h: h.bytes_down),
    Column("total / client", lambda h: human_bytes(h.bytes, 3), value=lambda h: h.bytes),
    Column("loss evaluations", counted("loss evaluations"), value=lambda h: h.queries),
    Column("gradients", counted("gradients"), value=lambda h: h.queries),
    Column("queries", counted("queries"), value=lambda h: h.queries),
    Column("privacy", lambda h: str(h.privacy or ""), number=False),
    Column("time", lambda h: human_seconds(h.seconds), value=lambda h: h.seconds),
    Column("model", lambda h: h.model_digest[:16], number=False),
)


def columns(histories: Sequence[History]) -> tuple[Column, ...]:
    """Those that say something of one of the runs."""
    return tuple(column for column in COLUMNS if any(column.cell(h) not in ("", DASH) for h in histories))


def rows(histories: Sequence[History]) -> tuple[tuple[str, ...], ...]:
    """Cells in the order of `columns`, as plain text: whoever prints them escapes them."""
    shown = columns(histories)
    return tuple(tuple(column.cell(history) for column in shown) for history in histories)


def terminal_table(histories: Sequence[History]) -> Table:
    """The same cells for a `rich` console, a column a run so that they fit a narrow one. Names are text, not markup."""
    from rich.table import Table
    from rich.text import Text

    first, *others = columns(histories)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for history in histories:
        table.add_column(Text(printable(first.cell(history))), justify="right")
    for column in others:
        table.add_row(column.heading, *(Text(printable(column.cell(history))) for history in histories))
    return table
