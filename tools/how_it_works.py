"""The pictures of docs/how-it-works.md: `python tools/how_it_works.py docs/figures` writes four SVG files.

Numbers of bytes are lengths of real messages, encoded here. Colours follow the reader's scheme, light or dark.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np

from fedzero.model.updates import Seeded, encode_update, pack
from fedzero.protocol.messages import MODEL_DIGEST, Reply, encode_reply, encode_work

WIDTH = 760
DIRECTIONS = 10
"""P of the messages that are drawn, K = 1."""
STYLE = """
svg { --paper: #ffffff; --ink: #16181d; --muted: #5b6270; --edge: #c9cbd2; --soft: #eef0f4;
  --one: #0b6fb8; --two: #c8500a; --three: #0a8a66; }
@media (prefers-color-scheme: dark) { svg { --paper: #181b20; --ink: #eceef2; --muted: #a3abba; --edge: #454b58;
  --soft: #262b33; --one: #5cb3f0; --two: #ff9152; --three: #41cfa2; } }
text { fill: var(--ink); font: 14px system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif; }
.title { font-weight: 600; font-size: 15px; } .small { font-size: 12.5px; } .muted { fill: var(--muted); }
.mono { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: 12.5px; }
.one { fill: var(--one); } .two { fill: var(--two); } .three { fill: var(--three); }
.box { fill: var(--soft); stroke: var(--edge); } .open { fill: none; stroke: var(--edge); stroke-dasharray: 4 3; }
.line { fill: none; stroke: var(--muted); stroke-width: 1.5; } .thin { fill: none; stroke: var(--edge); }
""".strip()


@dataclass
class Picture:
    """Parts of one SVG, from back to front."""

    name: str
    height: int
    says: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, look: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{look}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, look: str = "box", more: str = "") -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" class="{look}" {more}/>'
        )

    def line(self, points: str, look: str = "line", arrow: bool = True) -> None:
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.parts.append(f'<path d="{points}" class="{look}"{end}/>')

    def svg(self) -> str:
        arrow = (
            '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 8 4 0 8z" class="muted"/></marker>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'aria-labelledby="says"><title id="says">{escape(self.says)}</title><style>{STYLE}</style>'
            f'<defs>{arrow}</defs><rect width="100%" height="100%" rx="8" fill="var(--paper)"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def update_of(round: int) -> bytes:
    """The update of a round as it is sent and stored: P scalars."""
    return encode_update(Seeded(round, pack(np.zeros(DIRECTIONS, np.float32))))


def work_of(round: int, since: int) -> bytes:
    """What a client is sent that knows the model before round `since`."""
    return encode_work(round, 0, [update_of(missed) for missed in range(since, round)])


def reply_of(round: int) -> bytes:
    values = pack(np.zeros(DIRECTIONS, np.float32))
    return encode_reply(Reply(round, 0, bytes(MODEL_DIGEST), values, bytes(4), DIRECTIONS + 1))


def view_and_fold() -> Picture:
    says = "A view makes one layer of the moved model at a time in a scratch buffer; a fold adds all terms to x at once"
    picture = Picture("view-and-fold", 300, says)
    layers, wide, high, gap = 4, 74, 34, 6

    def row(x: float, y: float, look: str, opacities: tuple[float, ...]) -> None:
        for place, opacity in enumerate(opacities):
            picture.box(x + place * (wide + gap), y, wide, high, "box")
            picture.box(x + place * (wide + gap), y, wide, high, look, f'fill-opacity="{opacity}"')

    for left, title, formula in (
        (24, "view: evaluate somewhere else", "params.view([(k₁, c₁), (k₂, c₂)])"),
        (404, "fold: move there", "params.fold([(k₁, c₁), (k₂, c₂)])"),
    ):
        picture.text(left, 34, title, "title")
        picture.text(left, 56, formula, "mono muted")
    x, right = 24, 404
    picture.text(x, 92, "x, the weights: only read", "small")
    row(x, 102, "one", (0.35,) * layers)
    for place in range(layers):
        picture.text(x + place * (wide + gap) + wide / 2, 124, f"layer {place + 1}", "small", "middle")
    place = x + 2 * (wide + gap)
    picture.line(f"M{place + wide / 2} 140V176")
    picture.text(x, 163, "+ c₁ z(k₁) + c₂ z(k₂)", "mono two")
    for ordinal in range(layers):
        if ordinal != 2:
            picture.box(x + ordinal * (wide + gap), 180, wide, high, "open")
    picture.box(place, 180, wide, high, "box")
    picture.box(place, 180, wide, high, "two", 'fill-opacity="0.4"')
    picture.text(place + wide / 2, 202, "layer 3", "small", "middle")
    picture.text(x, 240, "A scratch buffer of one layer, made as the forward", "small muted")
    picture.text(x, 258, "pass reaches it, then overwritten by the next.", "small muted")
    picture.text(x, 280, "Forgetting the terms is the way back.", "small muted")
    picture.line("M382 24V276", "thin", arrow=False)
    picture.text(right, 92, "x before", "small")
    row(right, 102, "one", (0.35,) * layers)
    row(right, 180, "three", (0.35,) * layers)
    for ordinal in range(layers):
        middle = right + ordinal * (wide + gap) + wide / 2
        picture.line(f"M{middle} 140V176")
    picture.text(right + 4 * wide + 3 * gap, 92, "+ c₁ z(k₁) + c₂ z(k₂)", "mono two", "end")
    picture.text(right, 240, "x ← x + Σ c z, all terms in one pass over memory:", "small muted")
    picture.text(right, 258, "directions are made from their keys on the way,", "small muted")
    picture.text(right, 280, "the same bits on every CPU and GPU.", "small muted")
    return picture


def the_ledger() -> Picture:
    says = "Entries of a ledger form a hash chain; base model and updates give the model of any round; a checkpoint"
    picture = Picture("ledger", 330, says)
    entries = (
        ("start", "recipe, digest"),
        ("round 0", "cohort, update"),
        ("round 1", "cohort, update"),
        ("evaluation", "digest, metrics"),
        ("round 2", "cohort, update"),
        ("end", "digest"),
    )
    wide, gap, top = 106, 15.2, 52
    picture.text(24, 32, "ledger.db: one entry after the other, each bound to all before it", "title")
    for number, (name, body) in enumerate(entries):
        x = 24 + number * (wide + gap)
        look = "one" if name.startswith("round") else "three" if name in ("evaluation", "end") else "muted"
        picture.box(x, top, wide, 74)
        picture.box(x, top, wide, 6, look)
        picture.text(x + wide / 2, top + 28, name, "small", "middle")
        picture.text(x + wide / 2, top + 46, body, "small muted", "middle")
        picture.text(x + wide / 2, top + 64, f"chain({number})", "mono two", "middle")
        if number:
            picture.line(f"M{x - gap} {top + 60}H{x - 1}")
    picture.text(
        24,
        152,
        "chain(n) = SHA-256(chain(n − 1) ‖ n ‖ body).  The last one, the head, stands for all of them.",
        "small muted",
    )
    third = 24 + 3 * (wide + gap)
    picture.box(24, 180, 150, 46)
    picture.text(99, 200, "base model", "small", "middle")
    picture.text(99, 217, "digest as in start", "small muted", "middle")
    picture.text(184, 196, "replay: fold the updates of rounds 0, 1, …", "small")
    picture.line(f"M174 204H{third + wide + 34}")
    picture.box(third + wide + 36, 180, 150, 46)
    picture.text(third + wide + 111, 200, "model, any round", "small", "middle")
    picture.text(third + wide + 111, 217, "digest as recorded", "small muted", "middle")
    picture.box(third - 20, 256, 150, 46, "open")
    picture.text(third + 55, 276, "checkpoint.bin", "small", "middle")
    picture.text(third + 55, 293, "state, chain(3)", "small muted", "middle")
    picture.line(f"M{third + wide / 2} 254V{228}", "thin", arrow=False)
    picture.text(24, 276, "Beside the ledger, for speed: named by no entry,", "small muted")
    picture.text(24, 293, "used only if it fits, removed at the end.", "small muted")
    picture.text(third + 140, 276, "resume: from here on, or from", "small")
    picture.text(third + 140, 293, "the start without it; same bits", "small")
    picture.line(f"M{third + wide / 2} 228V208", "thin", arrow=False)
    return picture


def catch_up() -> Picture:
    says = "A client that was away in three rounds is sent the four updates that it has not folded"
    picture = Picture("catch-up", 318, says)
    picture.text(24, 32, "A client that was away", "title")
    left, step, rows = 150, 116, {"server": 74, "client A": 136, "client B": 198}
    for round in range(5):
        picture.text(left + round * step + 44, 54, f"round {round}", "small muted", "middle")
    turns = {"client A": (0, 1, 2, 3, 4), "client B": (0, 4)}
    for name, y in rows.items():
        picture.text(24, y + 20, name)
        picture.line(f"M{left - 20} {y + 15}H{left + 4 * step + 84}", "thin", arrow=False)
    for round in range(5):
        x = left + round * step
        picture.box(x + 14, rows["server"], 60, 30)
        picture.box(x + 14, rows["server"], 60, 30, "one", 'fill-opacity="0.3"')
        picture.text(x + 44, rows["server"] + 20, f"u{round}", "mono", "middle")
        for name, there in turns.items():
            if round in there:
                picture.box(x + 14, rows[name], 60, 30)
                picture.box(x + 14, rows[name], 60, 30, "three", 'fill-opacity="0.35"')
                picture.text(x + 44, rows[name] + 20, "turn", "small", "middle")
            else:
                picture.text(x + 44, rows[name] + 11, "away", "small muted", "middle")
    at = left + 4 * step + 44
    one, four = len(work_of(1, 0)), len(work_of(4, 0))
    picture.line(f"M{at} 228V250", "thin", arrow=False)
    sent = (
        f"In round 4 B is sent [1, 4, 0, [u0, u1, u2, u3]], {four} bytes for P = {DIRECTIONS}, and A u3, {one} bytes."
    )
    picture.text(24, 266, sent, "small")
    then = "B folds u0 … u3 in one pass and works on the same model as A; the digest in its reply shows it."
    picture.text(24, 286, then, "small muted")
    update = "An update is the P scalars of its round; the keys of their directions follow from the round's number."
    picture.text(24, 304, update, "small muted")
    return picture


def a_round() -> Picture:
    says = "A round over the network: updates down, scalars up, an entry on the ledger, then the fold"
    picture = Picture("round", 430, says)
    server, client = 150, 600
    picture.text(server, 34, "server", "title", "middle")
    picture.text(client, 34, "each client of the cohort", "title", "middle")
    for x, end in ((server, 400), (client, 334)):
        picture.line(f"M{x} 46V{end}", "thin", arrow=False)
    down, up = len(work_of(9, 8)), len(reply_of(9))

    def note(x: float, y: float, lines: tuple[str, ...], width: float) -> None:
        picture.box(x - width / 2, y, width, 12 + 18 * len(lines))
        for number, words in enumerate(lines):
            picture.text(x, y + 20 + 18 * number, words, "small", "middle")

    note(server, 56, ("draws the cohort from", "the run's key and r"), 200)
    picture.text(375, 116, f"work: r, the updates it has not folded · {down} bytes", "small one", "middle")
    picture.line(f"M{server} 126H{client - 3}")
    note(
        client,
        138,
        ("folds the updates", f"P = {DIRECTIONS} directions from keys of r", f"{DIRECTIONS + 1} losses at views of x"),
        232,
    )
    picture.text(375, 232, f"reply: digest, P slopes, loss, queries · {up} bytes", "small two", "middle")
    picture.line(f"M{client} 242H{server + 3}")
    note(server, 254, ("checks: round, digest, finite", "bounds each norm", "means of the slopes"), 220)
    picture.line(f"M{server} 320V336")
    note(server, 338, ("entry on the ledger, synced", "then the fold: x ← x − (η/P) Σ g z"), 252)
    picture.text(client, 352, "the next work message", "small muted", "middle")
    picture.text(client, 370, "brings this update", "small muted", "middle")
    picture.text(375, 412, "No weights, no gradients, no seeds, no data.", "small muted", "middle")
    return picture


def main(folder: Path) -> None:
    for picture in (view_and_fold(), the_ledger(), catch_up(), a_round()):
        (folder / f"how-{picture.name}.svg").write_text(picture.svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
