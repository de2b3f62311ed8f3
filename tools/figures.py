"""Measured figures in Markdown: a number with a unit of measurement, outside of code.

A figure is compared by its value in the base unit of its kind (bytes, seconds), so 0.28 MB is 280 KB. The unit may
follow a list or a range ("29 → 78 %", "1.5 to 2.5 minutes"); in a table it may stand in the header of the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from prose import Block


@dataclass(frozen=True)
class Figure:
    """`value` in the base unit of `kind`; `text` and `line` say where it stands."""

    value: Decimal
    kind: str
    text: str
    line: int

    @property
    def measure(self) -> tuple[Decimal, str]:
        return self.value, self.kind


# kind, size in the base unit, spelling. The first that matches counts.
UNITS = tuple(
    (kind, Decimal(size), re.compile(spelling))
    for kind, size, spelling in (
        ("%", "1", r"%|per ?cent\b"),
        ("a second", "1", r"[a-z]+/s\b|(?:[a-z]+\s+){0,2}(?:a|per)\s+second\b"),
        ("byte", "1", r"(?:bytes?|B)\b"),
        ("byte", "1e3", r"(?:KB|kB|kilobytes?)\b"),
        ("byte", "1e6", r"(?:MB|megabytes?)\b"),
        ("byte", "1e9", r"(?:GB|gigabytes?)\b"),
        ("byte", "1e12", r"(?:TB|terabytes?)\b"),
        ("byte", "1024", r"KiB\b"),
        ("byte", "1048576", r"MiB\b"),
        ("byte", "1073741824", r"GiB\b"),
        ("second", "1e-9", r"(?:ns|nanoseconds?)\b"),
        ("second", "1e-6", r"(?:[µμ]s|microseconds?)\b"),
        ("second", "1e-3", r"(?:ms|milliseconds?)\b"),
        ("second", "1", r"(?:s|seconds?)\b"),
        ("second", "60", r"(?:min|minutes?)\b"),
        ("second", "3600", r"(?:h|hours?)\b"),
        ("second", "86400", r"days?\b"),
        # A product (2 × 32 prompts) is no ratio.
        ("evaluation", "1", r"(?:(?:loss|function)\s+)?evaluations\b"),
        ("gradient", "1", r"gradients\b"),
        ("times", "1", r"×(?!\s*\d)|times\b|-fold\b"),
        # The other points are those at which an objective is evaluated.
        ("point", "1", r"points?\b(?=\s+(?:above|below|behind|ahead|apart|better|worse|lower|higher|less|more)\b)"),
    )
)
_POINTS = re.compile(r"points?\b")
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d.]*(?:e[-+]?\d|[·⁰¹²³⁴-⁹]))"
_JOIN = r"\s*(?:±|–|—|→|/|;|\bto\b|\band\b|\bor\b|\bagainst\b|\binstead of\b|,\s*(?:and\b|or\b)?)\s*"
_LIST = re.compile(rf"(?<![\w.,])(?<!\de[-+]){_NUMBER}(?:{_JOIN}{_NUMBER})*")
_CLOCK = re.compile(r"(?<![\w.:])(\d{1,2}):([0-5]\d)(?![\w:])")
_ONE = re.compile(_NUMBER)


def _unit(text: str, any_points: bool) -> tuple[str, Decimal] | None:
    for kind, size, spelling in UNITS:
        if spelling.match(text):
            return kind, size
    return ("point", Decimal(1)) if any_points and _POINTS.match(text) else None


def _value(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def in_text(text: str, line: int = 1, lenient: bool = False) -> Iterator[Figure]:
    """Figures with a unit of their own. A bare comma joins numbers to a list only if they are decimals, if "and" or
    "or" ends the list, or if the reader is `lenient`."""
    for _, figure in _spanned(text, line, lenient):
        yield figure


def _spanned(text: str, line: int, lenient: bool) -> Iterator[tuple[int, Figure]]:
    """Figures, each with where its number begins."""

    def at(start: int) -> int:
        return line + text.count("\n", 0, start)

    for found in _CLOCK.finditer(text):
        yield found.start(), Figure(Decimal(60 * int(found[1]) + int(found[2])), "second", found[0], at(found.start()))
    for found in _LIST.finditer(text):
        after = text[found.end() :].lstrip()
        numbers = list(_ONE.finditer(found[0]))
        # Points of an objective come in whole numbers.
        unit = _unit(after, any_points=lenient or "." in numbers[-1][0])
        if unit is None:
            continue
        kind, size = unit
        joins = [found[0][a.end() : b.start()].strip() for a, b in pairwise(numbers)]
        listed = lenient or (bool(joins) and joins[-1].removeprefix(",").strip() in {"and", "or"})
        first = len(numbers) - 1
        while first > 0:
            decimals = "." in numbers[first - 1][0] and "." in numbers[first][0]
            if joins[first - 1] in {",", ";"} and not (listed or decimals):
                break
            first -= 1
        for each in numbers[first:]:
            start = found.start() + each.start()
            shown = f"{each[0]} {after.split(maxsplit=1)[0]}".rstrip(".,;:)(|]")
            yield start, Figure(_value(each[0]) * size, kind, shown, at(start))


def _units_named(text: str) -> set[tuple[str, Decimal]]:
    """Units that stand without a number: "accuracy, %", "ms a round", "× torch"."""
    words = re.finditer(r"(?<![\w.'’-])(?<!\d )(?:%|×|[A-Za-zµμ]+)", text)
    named = {_unit(text[word.start() :], any_points=False) for word in words}
    return {unit for unit in named if unit is not None}


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def in_table(text: str, line: int = 1, lenient: bool = False, caption: str = "") -> Iterator[Figure]:
    """Figures of a table. A number without a unit has that of its column's header if the cell is a number alone. To a
    `lenient` reader every such number has the units of the header, else of the row's name, else of the caption."""
    rows = text.split("\n")
    header = _cells(rows[0])
    yield from in_text(rows[0], line, lenient)
    for number, row in enumerate(rows[1:], line + 1):
        cells = _cells(row)
        for column, cell in enumerate(cells):
            own = dict(_spanned(cell, number, lenient))
            yield from own.values()
            units = _units_named(header[column]) if column < len(header) else set()
            if lenient and column:
                units = units or _units_named(cells[0]) or _units_named(caption)
            elif not lenient and (len(units) != 1 or not _ONE.fullmatch(cell)):
                continue
            for each in _ONE.finditer(cell):
                if each.start() not in own:
                    for kind, size in units:
                        yield Figure(_value(each[0]) * size, kind, f"{each[0]} ({header[column]})", number)


def figures(block: Block, lenient: bool = False, caption: str = "") -> Iterator[Figure]:
    if block.is_table:
        yield from in_table(block.text, block.line, lenient, caption)
    else:
        yield from in_text(block.text, block.line, lenient)
