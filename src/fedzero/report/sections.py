"""The parts of the page, each a function from histories to HTML. Every text of a run goes through `safe`."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from math import isfinite

from fedzero.report.compare import Comparison, Phrase, afterword, phrases
from fedzero.report.figures import grid, metrics, view
from fedzero.report.history import History
from fedzero.report.plot import MARKERS
from fedzero.report.tables import COLUMNS, loss_of, rows
from fedzero.report.text import lines, printable
from fedzero.report.units import DASH, human_bytes, human_loss, human_seconds, human_words, percent, times

AMOUNT = re.compile(r"(\d) (B|KB|MB|GB|TB|PB|%|times|×)(?!\w)")
SHAPES = {
    "o": '<circle cx="14" cy="6" r="3.6"/>',
    "s": '<rect x="10.8" y="2.8" width="6.4" height="6.4"/>',
    "D": '<path d="M14 1.4 18.6 6 14 10.6 9.4 6Z"/>',
    "^": '<path d="M14 1.8 18.4 9.6H9.6Z"/>',
    "v": '<path d="M14 10.2 9.6 2.4h8.8Z"/>',
    "P": '<path d="M12.6 1.8h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8V7.4H9.8V4.6h2.8Z"/>',
}


def safe(text: str) -> str:
    """One line of text, harmless in HTML, in attributes and between tags alike."""
    return html.escape(printable(text))


def headline(histories: Sequence[History]) -> str:
    """The sentence, its amounts set off; below it, what was trained and where both runs ended."""
    words = "".join(emphasis(phrase, histories) for phrase in phrases(histories))
    return f'<h1>{words}</h1>\n<p class="lede">{lede(histories)}</p>'


def emphasis(phrase: Phrase, histories: Sequence[History]) -> str:
    if phrase.run is None:
        return keep_amounts(phrase.text)
    return f'<b class="{series(histories.index(phrase.run))}">{keep_amounts(phrase.text)}</b>'


def keep_amounts(text: str) -> str:
    """Safe text in which a number and its unit stay on one line."""
    edges = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return edges[0] + AMOUNT.sub("\\1&nbsp;\\2", safe(text)) + edges[1]


def series(index: int) -> str:
    """The class that gives an element the colour of the n-th run."""
    return f"series-{index % len(MARKERS)}"


def lede(histories: Sequence[History]) -> str:
    first = histories[0]
    facts = [safe(first.task), f"{human_words(first.parameters)} parameters"]
    facts += [f"{human_words(first.clients)} clients", f"{human_words(first.cohort)} of them in each round"]
    unfinished = "" if all(h.complete for h in histories) else "Not finished yet."
    same = len({(h.task, h.parameters, h.clients, h.cohort) for h in histories}) == 1
    setting = f"{', '.join(facts)}." if same else ""
    return " ".join(part for part in (safe(afterword(histories)), setting, unfinished) if part)


def tiles(histories: Sequence[History], comparison: Comparison | None) -> str:
    found = single(histories[0]) if len(histories) == 1 else several(histories, comparison)
    cells = (
        f'<div class="tile"><dt>{label}</dt><dd>{figure.replace(" ", "&nbsp;")}</dd><dd class="note">{note}</dd></div>'
        for label, figure, note in found
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def single(h: History) -> list[tuple[str, str, str]]:
    """(label, figure, note) of the tiles of one run."""
    if h.measured:
        result = ("accuracy", percent(h.final_accuracy), f"best {percent(h.best_accuracy)}")
    else:
        result = ("loss", loss_of(h), f"from {human_loss(h.first_loss)}" if len(h.points) > 1 else "")
    up, down = human_bytes(h.bytes_up), human_bytes(h.bytes_down)
    return [
        result,
        ("exchanged per client", human_bytes(h.bytes), f"{up} up, {down} down"),
        model_tile(h),
        ("queries", human_words(h.queries), f"{human_words(h.rounds)} rounds in {human_seconds(h.seconds)}"),
    ]


def several(histories: Sequence[History], comparison: Comparison | None) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if comparison is not None and comparison.ratio is not None:
        note = f"{safe(comparison.frugal.name)} against {safe(comparison.lavish.name)}, at {comparison.goal_text}"
        found.append(("fewer bytes", f"{times(comparison.ratio)} ×", note))
    least = min(histories, key=lambda h: h.bytes)
    ended = percent(least.final_accuracy) if least.measured else f"loss {loss_of(least)}"
    found.append(("least exchanged per client", human_bytes(least.bytes), f"{safe(least.name)}, ended at {ended}"))
    able = [h for h in histories if h.measured]
    if able:
        best = max(able, key=lambda h: h.final_accuracy or 0.0)
        note = f"{safe(best.name)}, with {human_bytes(best.bytes)} per client"
        found.append(("highest final accuracy", percent(best.final_accuracy), note))
    return [*found, model_tile(max(histories, key=lambda h: h.parameters))]


def model_tile(h: History) -> tuple[str, str, str]:
    return ("parameters", human_words(h.parameters), f"{human_bytes(h.model_bytes)} for one copy, in float32")


def legend(histories: Sequence[History]) -> str:
    """Colour and shape of every run, for all small figures at once; a single run needs none."""
    if len(histories) == 1:
        return ""
    items = []
    for index, history in enumerate(histories):
        shape = SHAPES[MARKERS[index % len(MARKERS)]]
        dash = ' stroke-dasharray="4 2"' if index >= len(MARKERS) else ""
        swatch = f'<svg viewBox="0 0 28 12" aria-hidden="true"><path d="M1 6H27"{dash}/>{shape}</svg>'
        items.append(f'<li class="{series(index)}">{swatch}{safe(history.name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def figures(histories: Sequence[History], comparison: Comparison | None) -> str:
    """The wide figure, in two shapes for two widths of a window, and the grid."""
    both = " both" if len(metrics(histories)) > 1 else ""
    small = "".join(f"<figure>{drawing}</figure>" for drawing in grid(histories))
    notes = ["On a logarithmic axis a curve begins at the first round evaluated after the start."]
    if any(h.train_loss for h in histories):
        notes.append("Thin lines: mean training loss of the cohort.")
    if any(not isfinite(p.loss) for h in histories for p in h.points):
        notes.append("A cross marks the first round whose loss was not finite.")
    return (
        f"{main_figure(histories, comparison)}<section><h2>By rounds, by bytes, by queries</h2>{legend(histories)}"
        f'<div class="grid{both}">{small}</div><p class="note">{" ".join(notes)}</p></section>'
    )


def main_figure(histories: Sequence[History], comparison: Comparison | None) -> str:
    """Left out where nothing was exchanged: there would be nothing on it."""
    if not any(h.bytes > 0 for h in histories):
        return ""
    metric = comparison.metric if comparison else metrics(histories)[0]
    wide = view(histories, comparison, (960, 400), "story-wide")
    tall = view(histories, comparison, (390, 360), "story-tall")
    return (
        "<section><h2>What a client exchanged, and what the model learned from it</h2>"
        f'<p class="note">{metric.capitalize()} of the shared model against the bytes a client had sent and received '
        "by then, on a logarithmic axis.</p>"
        f'<figure class="story wide">{wide}</figure><figure class="story tall">{tall}</figure></section>'
    )


def totals(histories: Sequence[History]) -> str:
    head = "".join(f'<th scope="col"{number(c.number)}>{c.heading}</th>' for c in COLUMNS)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{column.heading}"{number(column.number)}>{safe(cell) or DASH}</td>'
            for column, cell in zip(COLUMNS, row, strict=True)
        )
        + "</tr>"
        for row in rows(histories)
    )
    return (
        '<section><h2>Totals</h2><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        '<p class="note">Bytes are averages over all clients. Queries are evaluations of the objective by all '
        "clients together. The last column is the digest of the final model: equal digests, equal models, bit for bit."
        "</p></section>"
    )


def number(yes: bool) -> str:
    return ' class="number"' if yes else ""


def measures(histories: Sequence[History]) -> str:
    """What else the tasks measure, at the end of every run; nothing if they measure nothing else."""
    last = [(h, h.points[-1].others if h.points else {}) for h in histories]
    names = list(dict.fromkeys(name for _, others in last for name in others))
    if not names:
        return ""
    head = "".join(f'<th scope="col"{number(at > 0)}>{safe(name)}</th>' for at, name in enumerate(["run", *names]))
    body = ""
    for h, others in last:
        cells = [(name, human_loss(others[name]) if name in others else DASH) for name in names]
        body += f'<tr><td data-label="run">{safe(h.name)}</td>' + "".join(
            f'<td data-label="{safe(name)}"{number(True)}>{cell}</td>' for name, cell in cells
        )
        body += "</tr>"
    return (
        '<section><h2>What else was measured, at the end</h2><div class="scroll plain">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def facts(histories: Sequence[History]) -> str:
    """What the tasks found out when they were built; runs that found the same share a list."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for h in histories:
        groups.setdefault(tuple(h.facts.items()), []).append(h.name)
    blocks = []
    for items, names in groups.items():
        who = f'<p class="note">{safe(", ".join(names))}</p>' if len(groups) > 1 else ""
        pairs = "".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in items)
        blocks.append(f'{who}<dl class="facts">{pairs}</dl>' if items else "")
    return f"<section><h2>What the runs began with</h2>{''.join(blocks)}</section>" if any(blocks) else ""


def wire(histories: Sequence[History]) -> str:
    """What crossed the wire: one reply of every run, to scale, beside one copy of the model."""
    replies = [(h, h.reply_bytes) for h in histories]
    copy = max(h.model_bytes for h in histories)
    longest = max([copy, *(size or 0 for _, size in replies)]) or 1
    bars = [bar(f"{safe(h.name)}, one reply", size, longest, series(index)) for index, (h, size) in enumerate(replies)]
    bars.append(bar("one copy of the model", copy, longest, "copy"))
    shares = [size / h.model_bytes for h, size in replies if size and h.model_bytes]
    prose = []
    if any(share < 0.25 for share in shares):
        prose.append(
            "A seeded method sends no model. Every client holds the same one, evaluates it a small step along random "
            "directions, and replies with how much its loss changed: a few scalars. The directions themselves never "
            "travel. They follow from the key of the run and the number of the round, so that everybody rebuilds them "
            "bit for bit and takes the same step. A client that sat rounds out catches up on their scalars. None of "
            "this grows with the model."
        )
    if any(share >= 0.25 for share in shares):
        prose.append(
            "A dense method sends the parameters themselves, or as many numbers: its bytes grow with the model."
        )
    prose.append(
        "Every figure is the length of encoded messages, the same in a simulation as on a network; what TCP and TLS "
        "add is not in it."
    )
    text = "".join(f"<p>{p}</p>" for p in prose)
    return (
        f'<section><h2>What crossed the wire</h2><div class="wire"><div>{text}</div>'
        f'<div><p class="note">To scale, on average:</p>{"".join(bars)}</div></div></section>'
    )


def bar(label: str, size: float | None, longest: float, kind: str) -> str:
    text = DASH if size is None else human_bytes(size)
    fill = f'<div style="width:{100 * size / longest:.4f}%"></div>' if size else ""
    return (
        f'<div class="bar {kind}"><span>{label}</span><span class="number">{text}</span>'
        f'<div class="track">{fill}</div></div>'
    )


def events(histories: Sequence[History]) -> str:
    """What did not go as planned, run by run; nothing at all if everything did."""
    blocks = []
    for history in histories:
        if history.events:
            items = "".join(f"<li>{safe(event)}</li>" for event in history.events)
            count = f"{safe(history.name)}: {len(history.events):,} event{'s' if len(history.events) > 1 else ''}"
            open_ = " open" if len(history.events) <= 8 else ""
            blocks.append(f"<details{open_}><summary>{count}</summary><ul>{items}</ul></details>")
    return f"<section><h2>Events</h2>{''.join(blocks)}</section>" if blocks else ""


def recipes(histories: Sequence[History]) -> str:
    blocks = [
        f"<details><summary>Recipe of {safe(h.name)}</summary><pre>{html.escape(lines(h.recipe))}</pre>"
        f'<p class="note">Model digest <code>{safe(h.model_digest) or DASH}</code></p></details>'
        for h in histories
    ]
    return f"<section><h2>To repeat it</h2>{''.join(blocks)}</section>"
