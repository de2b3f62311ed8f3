"""The figure and the table of accuracy by bytes: `python tools/accuracy_by_bytes.py` draws what
bench/methods/peers.py kept.

Writes docs/figures/accuracy-by-bytes-light.svg and -dark.svg, and the table of docs/results/accuracy-by-bytes.md.
"""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray
from theme import SANS, THEMES, Theme

from fedzero.report.units import human_bytes, human_count

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "figures" / "accuracy-by-bytes.json"
PAGE = DOCS / "results" / "accuracy-by-bytes.md"
BETWEEN = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.DOTALL)
LEVEL = 0.8
"""An accuracy whose price the table names."""
MARKERS = "osD^vPX"
MEASURED_WITH = "DejaVu Sans"
"""matplotlib's own and a wide one: the layout is the same everywhere, and has room for the reader's letters."""


@dataclass(frozen=True)
class Curve:
    """A method: means over its seeds at the rounds that were evaluated."""

    name: str
    first_order: bool
    rate: str
    seeds: int
    rounds: int
    bytes: NDArray[np.float64]
    queries: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    error: NDArray[np.float64]
    """Standard error of the mean accuracy; 0 with one seed."""

    @property
    def price(self) -> str:
        return f"{self.queries[-1]:,.0f} {'gradients' if self.first_order else 'evaluations'}"

    def until(self, level: float) -> int | None:
        """The first evaluation at or above an accuracy."""
        above = np.flatnonzero(self.accuracy >= level)
        return int(above[0]) if len(above) else None


def curves(kept: dict[str, Any]) -> list[Curve]:
    return [curve(name, entry) for name, entry in kept["methods"].items()]


def curve(name: str, entry: dict[str, Any]) -> Curve:
    runs = entry["runs"]

    def stacked(key: str) -> NDArray[np.float64]:
        return np.array([run[key] for run in runs], dtype=np.float64)

    accuracy = stacked("accuracy")
    spread = accuracy.std(axis=0, ddof=1) / math.sqrt(len(runs)) if len(runs) > 1 else np.zeros(accuracy.shape[1])
    return Curve(
        name=name,
        first_order=entry["recipe"]["algorithm"]["kind"] == "fedavg",
        rate=rate_of(entry),
        seeds=len(runs),
        rounds=runs[0]["round"][-1],
        bytes=stacked("bytes").mean(axis=0),
        queries=stacked("queries").mean(axis=0),
        accuracy=accuracy.mean(axis=0),
        error=spread,
    )


def rate_of(entry: dict[str, Any]) -> str:
    """The learning rate, and among which it was searched."""
    if entry["search"]:
        tried = ", ".join(f"{rate:g}" for rate in sorted(map(float, entry["search"])))
        return f"{entry['runs'][0]['rate']:g} of {tried}"
    rate = entry["recipe"]["algorithm"]["rate"]
    return f"{rate['points'][0][1] if isinstance(rate, dict) else rate:g}"


def drawn(found: list[Curve], theme: Theme) -> str:
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fedzero",
        "font.family": MEASURED_WITH,
        "font.size": 11.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": theme.muted,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "grid.color": theme.grid,
    }
    with matplotlib.rc_context(settings):
        canvas = Figure(
            figsize=(6.4, 4.9), facecolor=theme.paper, layout=ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.07)
        )
        FigureCanvasSVG(canvas)
        axes = canvas.add_subplot(facecolor=theme.paper)
        colours = [*theme.series, theme.ink]
        for number, each in enumerate(found):
            sent = each.bytes > 0
            x, y = each.bytes[sent], 100 * each.accuracy[sent]
            dashed = "--" if each.first_order else "-"
            width = 2.6 if number == 0 else 1.7
            axes.plot(x, y, dashed, color=colours[number], linewidth=width, zorder=3 + (number == 0))
            axes.plot(x[-1:], y[-1:], MARKERS[number], color=colours[number], markersize=7, zorder=5)
            axes.plot(
                [], [], dashed, marker=MARKERS[number], color=colours[number], label=f"{each.name} · {each.price}"
            )
            if each.seeds > 1:
                band = 100 * each.error[sent]
                axes.fill_between(x, y - band, y + band, color=colours[number], alpha=0.18, linewidth=0)
        axes.set_xscale("log")
        axes.set_ylim(0, 100)
        axes.set_xlabel("bytes a client sent and received (logarithmic)")
        axes.set_ylabel("test accuracy, %")
        axes.xaxis.set_major_locator(LogLocator(numticks=12))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))
        axes.grid(True, linewidth=0.8)
        axes.tick_params(length=0)
        legend = canvas.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10.2, handlelength=2.2)
        for words in legend.get_texts():
            words.set_color(theme.ink)
        text = io.StringIO()
        canvas.savefig(text, format="svg", facecolor=theme.paper, metadata={"Date": None, "Creator": None})
    plain = re.sub(r"<metadata>.*?</metadata>\s*", "", text.getvalue(), flags=re.DOTALL)
    return plain.replace(f"'{MEASURED_WITH}'", SANS)


def table(found: list[Curve]) -> str:
    header = (
        "method",
        "learning rate",
        "rounds",
        "test accuracy, %",
        "bytes a client",
        "price, all clients",
        f"bytes a client until {LEVEL:.0%}",
        f"price until {LEVEL:.0%}",
    )
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for each in found:
        at = each.until(LEVEL)
        spread = f" ± {100 * each.error[-1]:.1f}" if each.seeds > 1 else ""
        unit = "gradients" if each.first_order else "evaluations"
        cells = (
            each.name,
            each.rate,
            str(each.rounds),
            f"{100 * each.accuracy[-1]:.1f}{spread}",
            human_bytes(each.bytes[-1]),
            each.price,
            "not reached" if at is None else human_bytes(each.bytes[at]),
            "" if at is None else f"{human_count(each.queries[at])} {unit}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    found = curves(json.loads(KEPT.read_text()))
    for name, theme in THEMES.items():
        (DOCS / "figures" / f"accuracy-by-bytes-{name}.svg").write_text(drawn(found, theme))
    PAGE.write_text(BETWEEN.sub(lambda match: match[1] + table(found) + match[2], PAGE.read_text()))


if __name__ == "__main__":
    main()
