"""One page, one file: it asks the network for nothing, and is the same for the same runs.

`page.html.j2` has the words and the markup. Whatever it prints is one line of visible text (`printable`) and escaped;
only the drawings are markup, and they are made here. The script draws charts from a block of JSON and sets all words as
text; the policy of the page names its hash, so that the browser runs it and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from fedzero import __version__
from fedzero.errors import FedzeroError
from fedzero.model import files
from fedzero.report import units
from fedzero.report.compare import compare, phrases
from fedzero.report.data import block, page_data
from fedzero.report.differences import differences, merged, title_of, told_apart
from fedzero.report.figures import black_boxes, metrics, panel, view
from fedzero.report.history import History
from fedzero.report.pictures import images
from fedzero.report.sizes import to_scale
from fedzero.report.svg import SERIES
from fedzero.report.tables import columns, loss_of, rows
from fedzero.report.text import lines, printable

AMOUNT = re.compile(r"(\d) (B|KB|MB|GB|TB|PB|%|times|×|million|billion|trillion)(?!\w)")
SEEDED_SHARE = 0.25
"""Replies shorter than this share of the model are scalars of directions, not numbers of the model."""
SCRIPTS = ("scales.js", "chart.js", "explorer.js", "sorting.js", "downloads.js", "live.js")
MOST_EVENTS = 200
"""Events that a page lists; how many there are of each kind stands above them."""
MOST_COORDINATES = 1000
FILTERED = 5
"""Runs from which on a page has a filter."""

Mode = Literal["saved", "live", "update"]
"""A file; a page that follows its run; what such a page is sent while it does, without style and script."""


def page(histories: Sequence[History], title: str, mode: Mode = "saved") -> str:
    """The whole page for one run, or for several side by side. Runs that only differ in their seed are one."""
    if not histories:
        raise FedzeroError("A report needs at least one run.")
    single, histories = told_apart(histories), told_apart(merged(histories))
    comparison, shown = compare(histories), metrics(histories)
    shares = [reply / h.model_bytes for h in histories if (reply := h.reply_bytes) and h.model_bytes]
    boxes = black_boxes(histories)
    drawing = ""
    if mode == "saved" and any(h.queries if boxes else h.bytes > 0 for h in histories):
        drawing = Markup(view(histories, comparison, (960, 400), "story"))
    return template().render(
        title=title,
        version=__version__,
        mode=mode,
        script=script(),
        policy=policy(mode),
        data=block(page_data(histories, comparison, boxes)),
        histories=histories,
        single=single if len(single) > len(histories) else (),
        comparison=comparison,
        sentence=phrases(histories),
        sizes=to_scale(histories, comparison) if not boxes else (),
        same=len({(h.task, h.parameters, h.clients, h.cohort, h.privacy and h.privacy.unit) for h in histories}) == 1,
        differences=differences(histories) if len(histories) > 1 else (),
        metrics=shown,
        boxes=boxes,
        estimates=any(p.estimated for h in histories for p in h.points),
        drawing=drawing,
        columns=columns,
        rows=rows,
        measures=list(dict.fromkeys(name for h in histories for name in h.others)),
        facts=shared_facts(histories),
        longest=max(max(h.model_bytes, h.reply_bytes or 0) for h in histories) or 1,
        seeded=any(share < SEEDED_SHARE for share in shares),
        dense=any(share >= SEEDED_SHARE for share in shares),
    )


@cache
def script() -> Markup:
    """The page's script: small files, one after the other, in one scope of their own."""
    parts = [resources.files("fedzero.report").joinpath(name).read_text("utf-8") for name in SCRIPTS]
    return Markup("(() => {\n" + "\n".join(parts) + "})();")


def policy(mode: Mode) -> str:
    """What the browser may load and run, whatever a name or a recipe contains: this script, and pictures in the page;
    of a page that follows its run, also what its own server sends."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    rules = ["default-src 'none'", f"script-src 'sha256-{digest}'", "style-src 'unsafe-inline'", "img-src data:"]
    own = [] if mode == "saved" else ["connect-src 'self'"]
    return "; ".join([*rules, *own, "base-uri 'none'", "form-action 'none'"])


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
        "clock": clock,
        "filename": filename,
        "images": images,
        "lines": lambda text: escape(lines(text)),
        "loss": units.human_loss,
        "percent": units.percent,
        "printable": printable,
        "seconds": units.human_seconds,
        "times": units.times,
        "words": units.human_words,
    }
    environment.globals |= {
        "DASH": units.DASH,
        "SERIES": len(SERIES),
        "FILTERED": FILTERED,
        "loss_of": loss_of,
        "MOST_EVENTS": MOST_EVENTS,
        "MOST_COORDINATES": MOST_COORDINATES,
    }
    return environment.get_template("page.html.j2")


def clock(at: float) -> str:
    """UTC; a ledger may hold any number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
    except (ValueError, OverflowError, OSError):
        return units.DASH


def filename(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._").lower()[:60] or "run"


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


def card(history: History) -> str:
    """One run as a small picture and a table, for a notebook: styles are inline, since there is no page around it."""
    (metric, *_) = metrics([history])
    drawing = panel([history], metric, "bytes") if history.bytes > 0 else ""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(column.heading)}</th><td {left}>{escape(value)}</td></tr>"
        for column, value in zip(columns([history]), rows([history])[0], strict=True)
    )
    picture = f"<div style='width:380px;background:#fff'>{drawing}</div>"
    return f"<div style='display:flex;flex-wrap:wrap;gap:2em;align-items:start'>{picture}<table>{cells}</table></div>"


def write(histories: Sequence[History], path: str | os.PathLike[str], title: str | None = None) -> Path:
    """The page as a file: all of it or, if anything goes wrong, the file that was there before."""
    target = Path(path)
    files.write(target, page(histories, title_of(histories) if title is None else title))
    return target
