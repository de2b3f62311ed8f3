"""Text that came from people: names, recipes, events. It may hold anything, and ends up in XML and HTML."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """Only characters that can be seen, and that XML allows.

    Format characters (which could turn the direction of a line) go; other invisible ones become `�`.
    """
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else "�" for c in whole if unicodedata.category(c) != "Cf")


def printable(text: str, limit: int | None = None) -> str:
    """One line of visible text, cut to `limit` letters."""
    text = visible(" ".join(text.split()))
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def lines(text: str) -> str:
    """Visible text with its line breaks and indents."""
    return "\n".join(visible(line.expandtabs(4).rstrip()) for line in text.strip("\n").splitlines())
