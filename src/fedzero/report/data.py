"""The numbers behind a page's charts, as the script of the page reads them: JSON, long curves thinned out.

Every curve has the places of its points on all axes, so that a reader can switch between them. Training losses and
slopes are of single rounds: their bytes, evaluations and times are interpolated between the evaluated rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup

from fedzero.report.compare import Comparison
from fedzero.report.curves import F64, HUGE, queries_logarithmic, wide
from fedzero.report.downsample import kept
from fedzero.report.history import Found, History, Point
from fedzero.report.text import printable
from fedzero.report.units import times

EPSILON = "ε against readers of model and ledger"
SIMULATED = "simulated time"
AXES = {
    "bytes": "bytes per client",
    "rounds": "rounds",
    "queries": "",
    "seconds": "time",
    "time": SIMULATED,
    "epsilon": EPSILON,
}
NAMES = {"accuracy": "Accuracy", "loss": "Loss", "train": "Training loss", "slopes": "Slopes"}
MOST_PARTIES = 12
"""Black boxes whose values are drawn one by one."""
DIGITS = 6
"""Significant digits of what is drawn."""


def block(data: object) -> Markup:
    """JSON that can stand in a `<script>` of data: without a character that could end it."""
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # made of escapes above


def page_data(histories: Sequence[History], comparison: Comparison | None, boxes: bool) -> dict[str, Any]:
    """All that is drawn. `start`: what the large chart shows first; `panels`: the small ones, (metric, axis)."""
    curves = [curve_of(h, index) for index, h in enumerate(histories)]
    present = [m for m in NAMES if any(m in c["metrics"] for c in curves)]
    others = list(dict.fromkeys(m for c in curves for m in c["metrics"] if m not in NAMES))
    metric = comparison.metric if comparison else present[0] if present else "loss"
    axis = "queries" if boxes else "bytes" if any(h.bytes > 0 for h in histories) else "rounds"
    order = ("rounds", "epsilon", "time", "bytes", "queries", "seconds")
    small = [a for a in order if a != axis and measured(curves, a)]
    shown = [m for m in ("accuracy", "loss") if m in present]
    sizes = {h.model_bytes for h in histories if h.model_bytes} if not boxes else set()
    return {
        "ended": all(h.complete for h in histories),
        "curves": curves,
        "metrics": [{"id": m, "name": name_of(m, boxes), "percent": m == "accuracy"} for m in [*present, *others]],
        "axes": [{"id": a, "name": axis_name(a, histories)} for a in AXES if measured(curves, a)],
        "start": {"metric": metric, "axis": axis},
        "logarithmic": {
            "x": ["bytes", *(["queries", "seconds"] if queries_logarithmic(histories) else [])],
            "y": [m for m in present if m != "accuracy" and wide(pooled(curves, m), 50)],
        },
        "panels": panels(shown, small, "slopes" in present),
        "copy": sizes.pop() if len(sizes) == 1 else None,
        "gap": gap_of(comparison) if comparison and not boxes else None,
        "parts": [part for h in histories if h.found is not None for part in parts_of(h.found, h.name, len(histories))],
    }


def panels(metrics: Sequence[str], axes: Sequence[str], slopes: bool) -> list[tuple[str, str]]:
    """The small charts, (metric, axis): rows of three, the last place for slopes where there are any."""
    found = [(metric, axis) for metric in metrics for axis in axes[:3]]
    return [*found[: -1 if len(found) % 3 == 0 else None], ("slopes", "rounds")] if slopes else found


def curve_of(history: History, index: int) -> dict[str, Any]:
    """One run: its metrics, each with places on all axes, values, and standard errors where it is a mean of runs."""
    points = history.points
    metrics: dict[str, Any] = {"loss": evaluated(points, [p.loss for p in points], errors_of(points, "loss"))}
    if history.measured:
        some = [p for p in points if p.accuracy is not None]
        metrics["accuracy"] = evaluated(some, [p.accuracy or 0.0 for p in some], errors_of(some, "accuracy"))
    for name in dict.fromkeys(name for p in points for name in p.others):
        some = [p for p in points if name in p.others]
        metrics[other_name(name)] = evaluated(some, [p.others[name] for p in some], None)
    for name, rounds in (("train", history.train_loss), ("slopes", history.slopes)):
        if rounds:
            metrics[name] = by_round(history, np.array(rounds, np.float64))
    metrics = {name: metric for name, metric in metrics.items() if metric["y"]}
    return {"name": printable(history.name, 120), "index": index, "unit": history.unit, "metrics": metrics}


def other_name(name: str) -> str:
    """Of what else a task measures; ours stay ours."""
    short = printable(name, 40)
    return f"{short} (other)" if short in NAMES else short


def errors_of(points: Sequence[Point], metric: str) -> list[float] | None:
    return [p.errors.get(metric, 0.0) for p in points] if any(p.errors for p in points) else None


def evaluated(points: Sequence[Point], values: Sequence[float], errors: Sequence[float] | None) -> dict[str, Any]:
    y = np.array(values, np.float64)
    columns: dict[str, Sequence[float]] = {
        "rounds": [p.round for p in points],
        "bytes": [p.bytes for p in points],
        "queries": [p.queries for p in points],
        "seconds": [p.seconds for p in points],
    }
    if any(p.epsilon for p in points):
        columns["epsilon"] = [p.epsilon for p in points]
    if any(p.time for p in points):
        columns["time"] = [p.time for p in points]
    return thinned(y, {name: np.array(column, np.float64) for name, column in columns.items()}, errors)


def by_round(history: History, table: F64) -> dict[str, Any]:
    """(rounds, 2) of round and value."""
    rounds = np.array([p.round for p in history.points], np.float64)
    columns = {"rounds": table[:, 0]}
    if len(rounds):
        private = ["epsilon"] if history.privacy else []
        simulated = ["time"] if any(p.time for p in history.points) else []
        for name in ("bytes", "queries", "seconds", *private, *simulated):
            totals = np.array([getattr(p, name) for p in history.points], np.float64)
            columns[name] = np.interp(table[:, 0], rounds, totals)
    return thinned(table[:, 1], columns, None)


def thinned(y: F64, columns: dict[str, F64], errors: Sequence[float] | None) -> dict[str, Any]:
    at = kept(y)
    found: dict[str, Any] = {name: numbers(column[at]) for name, column in columns.items()}
    found["y"] = numbers(y[at])
    if errors is not None:
        found["error"] = numbers(np.array(errors, np.float64)[at])
    return found


def numbers(values: F64) -> list[float | int | None]:
    """As few digits as a chart needs; None for what no axis can show."""
    with np.errstate(all="ignore"):
        size = np.abs(values)
        shown = np.where(size < 1 / HUGE, 0.0, values)
        unit = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.where(shown == 0, 1.0, np.abs(shown)))))
        shown = np.where(np.abs(unit) > 1e22, shown, np.round(shown * unit) / unit)
    shown = np.where(size <= HUGE, shown, np.nan)
    whole = shown == np.floor(shown)
    return [None if v != v else int(v) if w else v for v, w in zip(shown.tolist(), whole.tolist(), strict=True)]


def number(value: float) -> float | int | None:
    return numbers(np.array([value], np.float64))[0]


def measured(curves: Sequence[dict[str, Any]], axis: str) -> bool:
    return any(v for c in curves for m in c["metrics"].values() for v in m.get(axis, ()))


def pooled(curves: Sequence[dict[str, Any]], metric: str) -> F64:
    return np.array([v for c in curves for v in c["metrics"].get(metric, {}).get("y", ()) if v is not None], np.float64)


def name_of(metric: str, boxes: bool) -> str:
    return "Value" if boxes and metric == "loss" else NAMES.get(metric, metric)


def axis_name(axis: str, histories: Sequence[History]) -> str:
    """Of queries: what they are. Values and gradients do not cost the same, so both are named where both are."""
    if axis != "queries":
        return AXES[axis]
    return " or ".join(dict.fromkeys(h.unit for h in histories)) + ", all clients"


def gap_of(comparison: Comparison) -> dict[str, Any] | None:
    if (comparison.ratio or 0) < 1.5:
        return None
    low, high = number(comparison.frugal_bytes), number(comparison.lavish_bytes)
    text = f"{times(comparison.ratio or 1)} times the bytes"
    return {"metric": comparison.metric, "goal": number(comparison.goal), "low": low, "high": high, "text": text}


def parts_of(found: Found, name: str, runs: int) -> list[dict[str, Any]]:
    """Charts of black boxes: the value of each party at the models, and the surrogate along coordinates through x."""
    before = f"{printable(name, 60)}: " if runs > 1 else ""
    parts: list[dict[str, Any]] = []
    if found.by_party:
        rounds = [round for round, _ in found.by_party]
        table = np.array([row for _, row in found.by_party], np.float64)  # a party that was not asked is NaN
        at = kept(np.nan_to_num(table).mean(axis=1))
        lines = [
            {"name": f"party {i}", "x": [rounds[j] for j in at], "y": numbers(table[at, i])}
            for i in range(min(table.shape[1], MOST_PARTIES))
        ]
        parts.append({"kind": "parties", "title": f"{before}Value by party", "x": "rounds", "lines": lines})
    for part in found.surrogate:
        line = {
            "name": "surrogate",
            "x": numbers(np.array(part.places)),
            "y": numbers(np.array(part.mean)),
            "error": numbers(np.array(part.deviation)),
        }
        title = f"{before}Surrogate along x[{part.coordinate}]"
        at_x = number(found.x[part.coordinate])
        parts.append({"kind": "surrogate", "title": title, "x": f"x[{part.coordinate}]", "lines": [line], "mark": at_x})
    return parts
