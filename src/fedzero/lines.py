"""Lines of a terminal, a log or a page: text from others made harmless, what fits, and never wrapped."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_SAID = 500
"""Characters that are kept of what a site or a client says."""


def visible(text: str) -> str:
    """Only characters that can be seen, and that XML allows.

    Format characters (which could turn the direction of a line) go; other invisible ones become `�`: an escape
    sequence would otherwise steer the terminal it is shown on.
    """
    if text.isascii() and text.isprintable():
        return text
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else "�" for c in whole if unicodedata.category(c) != "Cf")


def printable(text: str, limit: int | None = None) -> str:
    """One line of visible text, cut to `limit` letters."""
    if limit is not None:
        text = text[: 4 * limit]  # what may be megabytes is not looked at in whole
    text = visible(" ".join(text.split()))
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def said_of(error: BaseException, limit: int = 200) -> str:
    """An error of somebody else's code: its type, and what it says."""
    return f"{type(error).__name__}: {printable(str(error), limit)}"


def print_line(console: Console, text: str, style: str | None = None, head: str = "") -> None:
    """One line: what clients say and paths are neither markup nor wrapped, and steer no terminal.

    head: words before it, which stand out.
    """
    from rich.text import Text

    line = Text(visible(text.replace("\n", " ")), style=style or "")
    console.print(Text.assemble((head, "bold red"), line) if head else line, highlight=False, soft_wrap=True)


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
