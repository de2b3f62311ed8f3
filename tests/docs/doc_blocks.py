"""The code blocks of a Markdown page, and what comments above them say to a test.

A block is fenced and names its language. HTML comments directly above it, which no reader sees, are notes:

    <!-- not run: needs a GPU -->      left out, for one of REASONS; a recipe is decoded all the same
    <!-- run with: --rounds 2 -->      added to the block's commands that make rounds (where none does: to all of
                                       fedzero), and to the run of a recipe; with & at its end: in the background
    <!-- ends background -->           what was started in the background is stopped before this block
    <!-- slow -->                      takes more than some ten seconds; below the page's title: all of the page
    <!-- interrupt after: 8 -->        each command runs until Ctrl-C, which it gets after so many seconds
    <!-- each line in: task -->        lines are alternatives, each a key of that table of the page's recipe

A comment that begins with a language and a line break is a block that only the test sees:

    <!-- python
    f = len
    -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("console", "python", "toml", "json", "sql")
LANGUAGES = (*RUN, "text")
"""`text` is what no program reads: equations, layouts, what a command prints."""
REASONS = (
    "needs a GPU",
    "needs a hub model",
    "needs data to be downloaded",
    "needs several machines",
    "needs a service elsewhere",
    "needs another user's files",
    "changes the user's own settings",
    "takes hours",
)
NOTES = ("not run", "run with", "slow", "interrupt after", "ends background", "each line in")
BLOCK = re.compile(
    r"(?P<notes>(?:^<!-- [^\n]* -->\n)*)"
    r'^(?:```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$'
    r"|<!-- (?P<hidden>python|console)\n(?P<setup>.*?)^-->$)",
    re.DOTALL | re.MULTILINE,
)
NOTE = re.compile(r"<!-- ([a-z ]+?)(?:: (.*?))? -->")
ALL_SLOW = re.compile(r"\A# [^\n]*\n\n<!-- slow -->\n\n")
INDENTED = re.compile(r"(?:\A|\n)\n {4}\S[^\n]*")
LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """`title` is the file that it is, if it is one; `line` that of its first line in the page."""

    language: str
    text: str
    line: int
    title: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    hidden: bool = False

    @property
    def slow(self) -> bool:
        return "slow" in self.notes


def pages() -> dict[str, Path]:
    """All pages with code, by name; results/ has records of what was measured, commands included."""
    found = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]
    named = {str(path.relative_to(ROOT).with_suffix("")).removeprefix("docs/"): path for path in sorted(found)}
    named.pop("results", None)
    return named


def blocks(page: str) -> list[Block]:
    found = []
    everywhere = {"slow": ""} if ALL_SLOW.match(page) else {}
    for match in BLOCK.finditer(page):
        notes = {name: text or "" for name, text in NOTE.findall(match["notes"])}
        text = match["text"] if match["hidden"] is None else match["setup"]
        line = page.count("\n", 0, match.start("text" if match["hidden"] is None else "setup")) + 1
        found.append(
            Block(
                match["hidden"] or match["language"],
                text,
                line,
                match["title"] or "",
                everywhere | notes,
                match["hidden"] is not None,
            )
        )
    return found


def indented(page: str) -> list[str]:
    """Code blocks by indentation, which name no language."""
    prose = BLOCK.sub("", page)
    return [found.strip() for found in INDENTED.findall(prose) if not LIST_ITEM.match(found.strip())]
