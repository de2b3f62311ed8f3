"""The prose of a Markdown page: paragraphs, list items, headings and tables, without code and addresses of links."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s")
_CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_TAG = re.compile(r"</?[a-z][^<>]*>")


@dataclass(frozen=True)
class Block:
    """A paragraph, list item, heading or table: lines of prose, code and addresses of links blanked out. `links` has
    those addresses, each with its line."""

    line: int
    text: str
    links: tuple[tuple[int, str], ...]
    section: int

    @property
    def is_table(self) -> bool:
        return self.text.lstrip().startswith("|")


def blocks(markdown: str) -> list[Block]:
    """Prose of a page in order; fenced and indented code left out."""
    found: list[Block] = []
    held: list[tuple[int, str]] = []
    section = 0
    fence = ""
    code = blank = in_list = False

    def close() -> None:
        if held:
            raw = "\n".join(text for _, text in held)
            links = tuple((number, link) for number, text in held for link in _LINK.findall(text))
            found.append(Block(held[0][0], _prose(raw), links, section))
            held.clear()

    for number, text in enumerate(markdown.split("\n"), 1):
        mark = _FENCE.match(text)
        if mark and fence in ("", mark[1]):
            close()
            fence = "" if fence else mark[1]
            continue
        if fence:
            continue
        if not text.strip():
            close()
            blank = True
            continue
        indented = text.startswith("    ")
        code = indented and not in_list and (blank or code or number == 1)
        if not indented and (blank or _ITEM.match(text)):
            in_list = bool(_ITEM.match(text)) or (in_list and text.startswith("  "))
        blank = False
        if code:
            continue
        if text.startswith("#"):
            close()
            section += 1
        elif _ITEM.match(text) or (held and text.startswith("|") != held[-1][1].startswith("|")):
            close()
        held.append((number, text))
        if text.startswith("#"):
            close()
    close()
    return found


def _blank(match: re.Match[str]) -> str:
    """As many lines, no text: a code that stood between number and unit parts them."""
    return "\0" + "\n" * match[0].count("\n")


def _prose(text: str) -> str:
    return _TAG.sub(_blank, _LINK.sub("]", _CODE.sub(_blank, text))).replace("**", "").replace("\\|", "/")
