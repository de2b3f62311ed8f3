"""Text that came from people: names, recipes, events. It may hold anything, and ends up in XML and HTML."""

from __future__ import annotations

from fedzero.lines import printable, visible

__all__ = ["lines", "printable", "visible"]


def lines(text: str) -> str:
    """Visible text with its line breaks and indents."""
    return "\n".join(visible(line.expandtabs(4).rstrip()) for line in text.strip("\n").splitlines())
