"""Lines of a terminal or a log: what fits, and never wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """One line as it is: what clients say and paths are neither markup nor wrapped."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def fitting(parts: Sequence[tuple[int, int]], width: int, between: int = 3) -> list[int]:
    """Positions of the parts that fit into `width` columns, in their order.

    parts: (worth, columns) of each. The most worthy are chosen first; one that does not fit ends the choice, so that
    no part is shown where a better one is not. between: columns of what separates two parts.
    """
    chosen: list[int] = []
    left = width + between
    for position in sorted(range(len(parts)), key=lambda position: -parts[position][0]):
        left -= parts[position][1] + between
        if left < 0:
            break
        chosen.append(position)
    return sorted(chosen)
