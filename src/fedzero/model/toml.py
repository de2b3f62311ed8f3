"""TOML that somebody else may have written: what would take without bound is refused before it is parsed.

`tomllib` is linear in most of a text, in Python, at about a second a megabyte, so the size is limited. It is quadratic
in the parts of a dotted key, and Python takes ever longer to print an integer of many digits; both are looked for in
the tokens of the text. Nesting that is too deep ends the parser by itself.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.model.decoding import cause_of

LARGEST = 4 << 20
"""Bytes of a text; a graph with a hundred thousand edges has one or two million."""
PARTS = 32
"""Of a dotted key."""
LONGEST = 1_000
"""Characters of a bare key, a number or a date."""

_TOKEN = re.compile(
    r'(?P<long>"""(?:[^"\\]+|\\.|"(?!""))*+"""|\'\'\'(?:[^\']+|\'(?!\'\'))*+\'\'\')'
    r'|(?P<part>"(?:[^"\\\n]+|\\.)*+"|\'[^\'\n]*+\'|[A-Za-z0-9_+-]+)'
    r"|(?P<comment>\#[^\n]*+)|(?P<blank>[ \t]+)|(?P<dot>\.)|(?P<open>[\"'])|(?P<other>.)",
    re.DOTALL,
)


def parsed(text: bytes, where: str) -> dict[str, Any]:
    """The table of a text; `FedzeroError`, which names `where` it is from, for everything that is none."""
    if len(text) > LARGEST:
        raise FedzeroError(f"{where}: more than {LARGEST:,} bytes, which is too much")
    try:
        decoded = text.decode()
        if complaint := _excess(decoded):
            raise FedzeroError(f"{where}: {complaint}")
        return tomllib.loads(decoded)
    except (ValueError, RecursionError, MemoryError) as error:  # tomllib's own errors are ValueErrors
        raise FedzeroError(f"{where}: not valid TOML: {cause_of(error)}") from None


def _excess(text: str) -> str:
    """What there is too much of; empty if nothing. A string that is not closed ends the search: it ends the parser."""
    parts, joined = 0, False
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "part":
                if token.end() - token.start() > LONGEST and text[token.start()] not in "\"'":
                    return f"a key or a number of more than {LONGEST:,} characters"
                parts = parts + 1 if joined else 1
                joined = False
                if parts > PARTS:
                    return f"a key of more than {PARTS} parts"
            case "dot":
                joined = True
            case "blank":
                pass
            case "open":
                return ""
            case _:
                parts, joined = 0, False
    return ""
