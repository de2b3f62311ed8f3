"""A recorded session as an animated SVG: `python tools/terminal_recording.py docs/figures/session.json docs/figures`

`tools/terminal_session.py` records. Every letter of the output is what the programs wrote; times are shortened so that
programs run for `RUNNING` seconds in all, pauses end after `LONGEST_PAUSE` seconds, and only the typing of the commands
is made here. Writes session-light.svg and session-dark.svg, and the last screen of each as session-light-still.svg and
session-dark-still.svg, for whoever asks for less motion: browsers do not tell that to a picture in a page.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from theme import MONO, THEMES, Theme

RUNNING, LONGEST_PAUSE = 13.0, 0.6
FRAME = 0.16
"""Screens that last shorter than so many seconds are left out."""
TYPING, READING, LAST = 0.9, 2.6, 7.0
"""Seconds for a command to appear, for its last screen, and for the end."""
PROMPT = "$ "
CELL, LINE, SIZE = 8.43, 20, 14
"""Pixels a column and a row; the letters' size."""
SIDE, TOP, BOTTOM = 18, 46, 16

SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")
Style = tuple[bool, bool]
"""(bold, dim)"""
Row = tuple[tuple[str, Style], ...]
"""Letters of a line with their style."""
PLAIN: Style = (False, False)


@dataclass
class Screen:
    """As much of a terminal as the output of a command line needs; it refuses what it does not know."""

    columns: int
    rows: int
    lines: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = PLAIN

    def feed(self, text: str) -> None:
        at = 0
        for found in SEQUENCE.finditer(text):
            if found.start() != at:
                raise ValueError(f"not a sequence this screen knows: {text[at : at + 20]!r}")
            at = found.end()
            private, numbers, final, move, words = found.groups()
            if words is not None:
                self._write(words)
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self._down()
            elif not (private and numbers == "25" and final in "lh"):  # the cursor is not drawn anyhow
                self._control(numbers, final)
        if at != len(text):
            raise ValueError(f"not a sequence this screen knows: {text[at : at + 20]!r}")

    def _write(self, words: str) -> None:
        for letter in words:
            if self.column == self.columns:
                self.column = 0
                self._down()
            line = self.lines[self.row]
            line.extend([(" ", PLAIN)] * (self.column + 1 - len(line)))
            line[self.column] = (letter, self.style)
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])
        if len(self.lines) > self.rows:
            del self.lines[0]
            self.row -= 1

    def _control(self, numbers: str, final: str) -> None:
        if final == "K" and numbers == "2":
            self.lines[self.row] = []
        elif final == "A":
            self.row = max(0, self.row - int(numbers or 1))
        elif final == "m":
            for number in map(int, (numbers or "0").split(";")):
                bold, dim = self.style
                known = {0: PLAIN, 1: (True, dim), 2: (bold, True), 22: PLAIN}
                if number not in known:
                    raise ValueError(f"not a style this screen knows: {number}")
                self.style = known[number]
        else:
            raise ValueError(f"not a sequence this screen knows: {numbers}{final}")

    def shown(self) -> tuple[Row, ...]:
        return tuple(tuple(line) for line in self.lines)


Frames = list[tuple[float, tuple[Row, ...]]]


def speed_of(session: dict[str, Any]) -> float:
    """How many times as fast as it was."""
    return max(1.0, sum(entry["output"][-1][0] for entry in session["commands"]) / RUNNING)


def frames(session: dict[str, Any]) -> Frames:
    """(when it appears in the film, what is on the screen)."""
    screen = Screen(session["columns"], session["rows"])
    film: Frames = []
    now = 0.0
    speed = speed_of(session)
    for entry in session["commands"]:
        if entry["exit"] != 0:
            raise ValueError(f"{entry['command']} ended with {entry['exit']}")
        for part in range(1, 5):  # the command is typed in four strokes
            shown = PROMPT + entry["command"][: len(entry["command"]) * part // 4]
            screen.feed(("\x1b[2K\r" if part > 1 else "") + shown)
            film.append((now, screen.shown()))
            now += TYPING / 4
        screen.feed("\r\n")
        before = 0.0
        for at, text in entry["output"]:
            now += min((at - before) / speed, LONGEST_PAUSE)
            before = at
            screen.feed(text)
            film.append((now, screen.shown()))
        now += READING
    film.append((now + LAST - READING, film[-1][1]))
    return thinned(film)


def thinned(film: Frames) -> Frames:
    """Without screens that repeat the one before them or are gone at once; the last entry is where the film ends."""
    kept: Frames = []
    for (start, screen), (end, _) in pairwise(film):
        if start == end or (kept and kept[-1][1] == screen):
            continue
        if end - start < FRAME and kept and start - kept[-1][0] < FRAME:
            continue
        kept.append((start, screen))
    if kept[-1][1] != film[-1][1]:
        kept.append(film[-2])
    return [*kept, film[-1]]


def spans(row: Row) -> str:
    """A line as text, with a span where the style changes."""
    text = ""
    runs: list[tuple[Style, str]] = []
    for letter, style in row:
        if runs and runs[-1][0] == style:
            runs[-1] = (style, runs[-1][1] + letter)
        else:
            runs.append((style, letter))
    for (bold, dim), words in runs:
        name = " ".join(word for word, is_so in (("b", bold), ("d", dim)) if is_so)
        text += f'<tspan class="{name}">{escape(words)}</tspan>' if name else escape(words)
    return text


def drawing(session: dict[str, Any], film: Frames, theme: Theme) -> str:
    """The screens below each other in a window that shows one of them at a time."""
    width = round(session["columns"] * CELL + 2 * SIDE)
    inner = session["rows"] * LINE
    height = inner + TOP + BOTTOM
    names: dict[str, str] = {}
    strip = ""
    for number, (_, screen) in enumerate(film[:-1]):
        for row, line in enumerate(screen):
            words = spans(line)
            if words.strip():
                name = names.setdefault(words, f"l{len(names)}")
                strip += f'<use href="#{name}" y="{number * inner + (row + 1) * LINE - 5}"/>'
    ends = film[-1][0]
    moves = ""
    if len(film) > 2:
        steps = "".join(f"{100 * at / ends:.2f}%{{{shifted(n * inner)}}}" for n, (at, _) in enumerate(film[:-1]))
        last = shifted((len(film) - 2) * inner)
        moves = (
            f"#film{{animation:play {ends:.1f}s step-end infinite}}\n@keyframes play{{{steps}100%{{{last}}}}}\n"
            f"@media (prefers-reduced-motion:reduce){{#film{{animation:none;{last}}}}}\n"
        )
    defs = "".join(f'<text id="{name}">{words}</text>' for words, name in names.items())
    dots = "".join(f'<circle cx="{22 + 18 * n}" cy="22" r="5.5" fill="{theme.edge}"/>' for n in range(3))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    commands = "; ".join(entry["command"] for entry in session["commands"])
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t">
<title id="t">A recorded terminal session: {escape(commands)}</title>
<style>
text{{font:{SIZE}px {MONO};fill:{theme.ink};white-space:pre}}
.b{{font-weight:700}}.d{{fill:{theme.muted}}}
{moves}</style>
<defs>{defs}</defs>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="12" fill="{theme.card}" stroke="{theme.edge}"/>{dots}
<text x="{width - SIDE}" y="27" text-anchor="end" class="d">a real run, {speed_of(session):.0f} × as fast</text>
<svg x="{SIDE}" y="{TOP}" width="{width - 2 * SIDE}" height="{inner}"><g id="film">{strip}</g></svg>
</svg>
"""


def shifted(pixels: int) -> str:
    return f"transform:translateY(-{pixels}px)"


def main(session: Path, folder: Path) -> None:
    recorded = json.loads(session.read_text())
    film = frames(recorded)
    for name, theme in THEMES.items():
        (folder / f"session-{name}.svg").write_text(drawing(recorded, film, theme))
        (folder / f"session-{name}-still.svg").write_text(drawing(recorded, film[-2:], theme))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
