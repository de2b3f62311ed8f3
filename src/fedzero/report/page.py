"""One page, one file: it asks the network for nothing, and is the same for the same runs.

`page.html.j2` has the words and the markup. Whatever it prints is one line of visible text (`printable`) and escaped;
only the drawings are markup, and they are made here.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from fedzero import __version__
from fedzero.errors import FedzeroError
from fedzero.model import files
from fedzero.report import units
from fedzero.report.compare import compare, phrases
from fedzero.report.figures import black_boxes, grid, metrics, panel, view
from fedzero.report.history import History
from fedzero.report.pictures import images
from fedzero.report.svg import SERIES
from fedzero.report.tables import COLUMNS, loss_of, rows
from fedzero.report.text import lines, printable

AMOUNT = re.compile(r"(\d) (B|KB|MB|GB|TB|PB|%|times|×|million|billion|trillion)(?!\w)")
SEEDED_SHARE = 0.25
"""Replies shorter than this share of the model are scalars of directions, not numbers of the model."""


def page(histories: Sequence[History], title: str) -> str:
    """The whole page for one run, or for several side by side."""
    if not histories:
        raise FedzeroError("A report needs at least one run.")
    histories = distinct(histories)
    comparison, shown = compare(histories), metrics(histories)
    shares = [reply / h.model_bytes for h in histories if (reply := h.reply_bytes) and h.model_bytes]
    drawings = []
    boxes = black_boxes(histories)
    if any(h.queries if boxes else h.bytes > 0 for h in histories):
        sizes = {"wide": (960, 400), "tall": (390, 360)}
        drawings = [(name, Markup(view(histories, comparison, size, f"story-{name}"))) for name, size in sizes.items()]
    return template().render(
        title=title,
        version=__version__,
        histories=histories,
        comparison=comparison,
        sentence=phrases(histories),
        same=len({(h.task, h.parameters, h.clients, h.cohort) for h in histories}) == 1,
        metrics=shown,
        boxes=boxes,
        estimates=any(p.estimated for h in histories for p in h.points),
        drawings=drawings,
        grid=[Markup(drawing) for drawing in grid(histories)],
        lost=any(not isfinite(p.loss) for h in histories for p in h.points),
        columns=COLUMNS,
        rows=rows(histories),
        measures=list(dict.fromkeys(name for h in histories for name in h.others)),
        facts=shared_facts(histories),
        longest=max(max(h.model_bytes, h.reply_bytes or 0) for h in histories) or 1,
        seeded=any(share < SEEDED_SHARE for share in shares),
        dense=any(share >= SEEDED_SHARE for share in shares),
    )


@cache
def template() -> Template:
    environment = Environment(
        loader=PackageLoader("fedzero.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "amounts": amounts,
        "bytes": units.human_bytes,
        "images": images,
        "lines": lambda text: escape(lines(text)),
        "loss": units.human_loss,
        "percent": units.percent,
        "printable": printable,
        "seconds": units.human_seconds,
        "times": units.times,
        "words": units.human_words,
    }
    environment.globals |= {"DASH": units.DASH, "SERIES": len(SERIES), "loss_of": loss_of}
    return environment.get_template("page.html.j2")


def amounts(text: str) -> Markup:
    """Text in which a number and its unit stay on one line, and spaces at its ends stay."""
    edges = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return escape(edges[0] + AMOUNT.sub("\\1\N{NO-BREAK SPACE}\\2", printable(text)) + edges[1])


def shared_facts(histories: Sequence[History]) -> list[tuple[dict[str, str], list[str]]]:
    """What the tasks found out when they were built, and the names of the runs that found the same."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for h in histories:
        groups.setdefault(tuple(h.facts.items()), []).append(h.name)
    return [(dict(items), names) for items, names in groups.items()]


def distinct(histories: Sequence[History]) -> tuple[History, ...]:
    """Runs of the same name get a number, so that a reader can tell them apart."""
    seen: Counter[str] = Counter()
    named = []
    for history in histories:
        seen[history.name] += 1
        count = seen[history.name]
        named.append(history if count == 1 else replace(history, name=f"{history.name} ({count})"))
    return tuple(named)


def card(history: History) -> str:
    """One run as a small picture and a table, for a notebook: styles are inline, since there is no page around it."""
    (metric, *_) = metrics([history])
    drawing = panel([history], metric, "bytes") if history.bytes > 0 else ""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(column.heading)}</th><td {left}>{escape(value)}</td></tr>"
        for column, value in zip(COLUMNS, rows([history])[0], strict=True)
    )
    picture = f"<div style='width:380px;background:#fff'>{drawing}</div>"
    return f"<div style='display:flex;flex-wrap:wrap;gap:2em;align-items:start'>{picture}<table>{cells}</table></div>"


def title_of(histories: Sequence[History]) -> str:
    return " against ".join(h.name for h in histories) if len(histories) < 4 else f"{len(histories)} runs"


def write(histories: Sequence[History], path: str | os.PathLike[str], title: str | None = None) -> Path:
    """The page as a file: all of it or, if anything goes wrong, the file that was there before."""
    target = Path(path)
    files.write(target, page(histories, title_of(histories) if title is None else title))
    return target
