"""Tables and curves as text: Markdown for people (rounded), CSV for programs (every digit)."""

from __future__ import annotations

import csv
import io
import math

from fedzero_papers.experiments.outcome import Cell, Figure, Table


def markdown(table: Table) -> str:
    heads = [head.replace("|", "\\|") for head in table.columns]
    numeric = [all(isinstance(row[i], int | float | None) for row in table.rows) for i in range(len(heads))]
    rows = [
        heads,
        ["---:" if number else "---" for number in numeric],
        *([shown(cell).replace("|", "\\|") for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def shown(cell: Cell) -> str:
    """Four significant digits, whole numbers in full, an en dash for what is not there."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        if not math.isfinite(cell):
            return "not finite"
        return f"{cell:,.0f}" if abs(cell) >= 1e4 else f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def table_csv(table: Table) -> str:
    return _csv([table.columns, *table.rows])


def figure_csv(figure: Figure) -> str:
    """Every point that is drawn."""
    rows: list[tuple[Cell, ...]] = [("panel", "line", "x", "y", "low", "high")]
    for panel in figure.panels:
        for line in panel.lines:
            low, high = line.low or [None] * len(line.x), line.high or [None] * len(line.x)
            rows += [(panel.title, line.label, *point) for point in zip(line.x, line.y, low, high, strict=True)]
    return _csv(rows)


def _csv(rows: list[tuple[Cell, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([repr(cell) if isinstance(cell, float) else cell for cell in row] for row in rows)
    return out.getvalue()
