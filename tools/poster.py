"""The picture of the idea: `python tools/poster.py docs/figures` writes idea-light.svg and idea-dark.svg.

The patterns are directions that fedzero makes from the keys of a round; server and client show the same ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from theme import SANS, THEMES, Theme

from fedzero.directions import Keys
from fedzero.directions.reference import gaussian, rademacher

WIDTH, HEIGHT = 800, 560
CARD_WIDTH, CARD_TOP, CARD_HEIGHT = 252, 116, 268
BEHIND, STEP = 2, 8
"""Cards of more clients behind the first one, and how far they stick out."""
LEFT, RIGHT = 30, WIDTH - 30 - BEHIND * STEP - CARD_WIDTH
MIDDLE = (LEFT + CARD_WIDTH + RIGHT) / 2
CELLS, TILE, GAP = 6, 62, 11
SEED, ROUND = 1, 17
SCALARS = ("−0.42", "+0.17", "+1.08")
"""Stand for what a client would send: their number matters here, not their values."""
KEYS = [Keys.of_seed(SEED).direction(ROUND, 0, number) for number in range(len(SCALARS))]
SERIF = "'Iowan Old Style', Palatino, Georgia, 'Liberation Serif', 'Times New Roman', serif"
MINUS_OPACITY = 0.16


def text(x: float, y: float, size: float, words: str, *, fill: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}" {more}>{words}</text>'


def symbol(x: float, y: float, size: float, words: str, *, fill: str, anchor: str = "middle") -> str:
    """Letters of a formula."""
    return text(x, y, size, words, fill=fill, anchor=anchor, more=f'font-family="{SERIF}" font-style="italic"')


def indexed(letter: str, number: int) -> str:
    """A letter with a subscript from 1, and back to its line."""
    below = f'<tspan dy=".22em" font-size=".62em" font-style="normal">{number + 1}</tspan>'
    return f'{letter}{below}<tspan dy="-.136em">&#8203;</tspan>'


def model(x: float, y: float, theme: Theme) -> str:
    """A strip of weights that has no end on the right."""
    rows, columns, side = 3, 10, 16.6
    shades = 0.14 + 0.5 * np.clip(np.abs(gaussian(7, 0, rows * columns)) / 2.2, 0, 1).reshape(rows, columns)
    fade = np.clip((columns - np.arange(columns)) / 5, 0.15, 1)
    pitch = side + 0.9

    def square(row: int, column: int) -> str:
        return (
            f'<rect x="{x + column * pitch:.1f}" y="{y + row * pitch:.1f}" width="{side}" height="{side}" rx="2" '
            f'fill-opacity="{shades[row, column] * fade[column]:.2f}"/>'
        )

    return grid(rows, columns, square, theme.ink)


def grid(rows: int, columns: int, square: Callable[[int, int], str], colour: str) -> str:
    """Squares of one colour in rows and columns."""
    return f'<g fill="{colour}">{"".join(square(*place) for place in product(range(rows), range(columns)))}</g>'


def tile(x: float, y: float, key: int, colour: str) -> str:
    """The first coordinates of z(key): full where it is +1, pale where it is −1."""
    pitch = TILE / CELLS
    side = pitch - 1.2
    signs = rademacher(key, 0, CELLS * CELLS).reshape(CELLS, CELLS)

    def square(row: int, column: int) -> str:
        pale = "" if signs[row, column] > 0 else f' fill-opacity="{MINUS_OPACITY}" '
        place = f'x="{x + column * pitch:.2f}" y="{y + row * pitch:.2f}"'
        return f'<rect {place} width="{side:.2f}" height="{side:.2f}" rx="1.6"{pale}/>'

    return grid(CELLS, CELLS, square, colour)


def card(left: float, name: str, does: str, theme: Theme, behind: int) -> str:
    """One side: the model x, and the directions it makes from the keys; `behind` are more of the same."""
    size = f'width="{CARD_WIDTH}" height="{CARD_HEIGHT}" rx="16"'
    frame = f'{size} fill="{theme.card}" stroke="{theme.edge}" stroke-width="1.5"'
    parts = [f'<rect x="{left + STEP * n}" y="{CARD_TOP - STEP * n}" {frame}/>' for n in range(behind, -1, -1)]
    inner = left + (CARD_WIDTH - 3 * TILE - 2 * GAP) / 2
    parts += [
        text(inner, CARD_TOP + 38, 24, name, fill=theme.ink, anchor="start", more='font-weight="650"'),
        text(left + CARD_WIDTH - (inner - left), CARD_TOP + 38, 20, does, fill=theme.muted, anchor="end"),
        symbol(inner, CARD_TOP + 92, 32, "x", fill=theme.ink, anchor="start"),
        model(inner + 34, CARD_TOP + 60, theme),
    ]
    for number, key in enumerate(KEYS):
        x, colour = inner + number * (TILE + GAP), theme.series[number]
        parts += [
            tile(x, CARD_TOP + 136, key, colour),
            symbol(x + TILE / 2, CARD_TOP + 232, 30, indexed("z", number), fill=colour),
        ]
    return "".join(parts)


def arrow(y: float, start: float, end: float, theme: Theme, both: bool = False) -> str:
    """A line with its head at `end`, or a head at both ends."""
    back = 9 if end < start else -9
    heads = f"M{end + back:g} {y - 7:g}L{end:g} {y:g}L{end + back:g} {y + 7:g}"
    if both:
        heads += f"M{start - back:g} {y - 7:g}L{start:g} {y:g}L{start - back:g} {y + 7:g}"
    style = f'stroke="{theme.muted}" stroke-width="2" fill="none" stroke-linecap="round" stroke-linejoin="round"'
    return f'<path d="M{start:g} {y:g}H{end:g}{heads}" {style}/>'


def pill(x: float, y: float, width: float, words: str, colour: str, theme: Theme) -> str:
    box = f'<rect x="{x - width / 2:g}" y="{y - 17:g}" width="{width:g}" height="34" rx="17" fill="{theme.paper}"'
    return f'{box} stroke="{colour}" stroke-width="2"/>' + text(
        x, y + 7, 20, words, fill=colour, more='font-weight="600"'
    )


def wire(theme: Theme) -> str:
    near, far = LEFT + CARD_WIDTH + 14, RIGHT - 14
    parts = [
        text(MIDDLE, CARD_TOP + 34, 20, "one key", fill=theme.muted),
        arrow(CARD_TOP + 66, near, far, theme),
        pill(MIDDLE, CARD_TOP + 66, 124, f"round {ROUND}", theme.ink, theme),
        text(MIDDLE, CARD_TOP + 128, 20, "a few scalars", fill=theme.muted),
    ]
    for number, value in enumerate(SCALARS):
        y = CARD_TOP + 160 + number * 42
        parts += [arrow(y, far, near, theme, both=True), pill(MIDDLE, y, 98, value, theme.series[number], theme)]
    return "".join(parts)


def equation(theme: Theme) -> str:
    terms = "".join(
        f' + <tspan fill="{theme.series[number]}">{indexed("c", number)}&#8202;{indexed("z", number)}</tspan>'
        for number in range(len(SCALARS))
    )
    return symbol(WIDTH / 2, 452, 42, f"x ← x{terms}", fill=theme.ink)


def poster(theme: Theme) -> str:
    title = "Federated training by a few scalars"
    described = (
        "Server and clients make the same random directions z from a key. A client evaluates the model along them and "
        "sends one scalar for each. Both sides add the scalars times the directions to x. The bytes do not depend on "
        "the model's size."
    )
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'role="img" aria-labelledby="t d" font-family="{SANS}">\n',
            f'<title id="t">{title}</title><desc id="d">{described}</desc>\n',
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="20" fill="{theme.paper}"/>\n',
            text(
                WIDTH / 2,
                58,
                32,
                "The model never travels",
                fill=theme.ink,
                more='font-weight="700" letter-spacing="-.4"',
            ),
            "\n" + card(LEFT, "Server", "averages", theme, 0),
            "\n" + card(RIGHT, "Clients", "evaluate", theme, BEHIND),
            "\n" + wire(theme),
            "\n" + equation(theme),
            text(WIDTH / 2, 486, 20, "on every machine, to the same bits", fill=theme.muted),
            text(
                WIDTH / 2,
                532,
                25,
                "The bytes do not depend on the model’s size.",
                fill=theme.ink,
                more='font-weight="650"',
            ),
            "\n</svg>\n",
        ]
    )


def main(folder: Path) -> None:
    for name, theme in THEMES.items():
        (folder / f"idea-{name}.svg").write_text(poster(theme))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
