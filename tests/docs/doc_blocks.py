"""The code blocks of a Markdown page, and what comments above them say to a test.

A block is fenced and names its language; one by indentation is what it can be read as. HTML comments directly above it,
which no reader sees, are notes:

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

import ast
import re
import textwrap
import tomllib
from contextlib import suppress
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
    "runs these tests",
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
INDENTED = re.compile(
    r"(?:\A|(?<=\n\n)|(?<=-->\n))(?P<notes>(?:^<!-- [^\n]* -->\n\n?)*)"
    r"(?P<text>(?:^ {4}[^\n]*\n)(?:(?:^ {4}[^\n]*)?\n)*)",
    re.MULTILINE,
)
COMMAND = re.compile(r"(?:fedzero|pip|python|make|pytest|ray) ")


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
    def runs(self) -> bool:
        """Whether a reader sees it and a test does something with it."""
        return self.language in RUN and not self.hidden and (self.language == "toml" or "not run" not in self.notes)

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
    """In their order in the page, hidden ones among them."""
    everywhere = {"slow": ""} if ALL_SLOW.match(page) else {}
    found = []
    for match in BLOCK.finditer(page):
        hidden = match["hidden"] is not None
        text, start = (match["setup"], match.start("setup")) if hidden else (match["text"], match.start("text"))
        notes = everywhere | _notes(match["notes"])
        language = match["hidden"] or match["language"]
        found.append(Block(language, text, _line(page, start), match["title"] or "", notes, hidden))
    rest = BLOCK.sub(lambda match: "\n" * match[0].count("\n"), page)
    for match in INDENTED.finditer(rest):
        text = textwrap.dedent(match["text"])
        language = _language(text)
        if language == "console":
            text = re.sub(r"^(?=\S)", "$ ", text, flags=re.MULTILINE)
        notes = everywhere | _notes(match["notes"])
        found.append(Block(language, text, _line(rest, match.start("text")), "", notes))
    return sorted(found, key=lambda block: block.line)


def _line(page: str, place: int) -> int:
    return page.count("\n", 0, place) + 1


def _notes(comments: str) -> dict[str, str]:
    return {name: text or "" for name, text in NOTE.findall(comments)}


def _language(text: str) -> str:
    """Of a block by indentation, which names none: what it can be read as."""
    if COMMAND.match(text):
        return "console"
    with suppress(tomllib.TOMLDecodeError):
        tomllib.loads(text)
        return "toml"
    with suppress(SyntaxError):
        ast.parse(text)
        return "python"
    return "text"
