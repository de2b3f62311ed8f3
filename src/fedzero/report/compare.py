"""The one sentence: what the same result cost one run and another, in bytes per client, and what it cost besides.

The goal is what both runs ended with or passed: the smaller of their final accuracies (the larger of their final losses
where no accuracy was measured). Costs are those at the first evaluated round that met the goal: bytes a client had sent
and received, evaluations (or gradients) of all clients, and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from fedzero.report.history import History, Metric, Point
from fedzero.report.units import human_bytes, human_loss, human_seconds, human_words, percent, times


@dataclass(frozen=True)
class Comparison:
    """`frugal` met the `goal` with fewer bytes than `lavish`, each at its point."""

    metric: Metric
    goal: float
    frugal: History
    lavish: History
    frugal_point: Point
    lavish_point: Point

    @property
    def frugal_bytes(self) -> float:
        return self.frugal_point.bytes

    @property
    def lavish_bytes(self) -> float:
        return self.lavish_point.bytes

    @property
    def ratio(self) -> float | None:
        """Bytes of the lavish run for one byte of the frugal one; None when the frugal one needed none."""
        return self.lavish_bytes / self.frugal_bytes if self.frugal_bytes > 0 else None

    @property
    def goal_text(self) -> str:
        return percent(self.goal) if self.metric == "accuracy" else f"a loss of {human_loss(self.goal)}"


def values(history: History, metric: Metric) -> list[float]:
    """The metric at every point that has a finite one."""
    return [v for p in history.points if (v := p.value(metric)) is not None and isfinite(v)]


def learned(history: History, metric: Metric) -> bool:
    """Whether the run got anywhere: it ended better than it began, or has one point only."""
    seen = values(history, metric)
    if not seen or not isfinite(history.final_loss):
        return False
    return len(seen) == 1 or (seen[-1] > seen[0] if metric == "accuracy" else seen[-1] < seen[0])


def met(history: History, metric: Metric, goal: float) -> Point | None:
    """The first evaluated round that met the goal, if one did."""
    for point in history.points:
        got = point.value(metric)
        if got is not None and isfinite(got) and (got >= goal if metric == "accuracy" else got <= goal):
            return point
    return None


def compare(histories: Sequence[History]) -> Comparison | None:
    """The two runs furthest apart in bytes, of those that learned; None where a comparison would say nothing."""
    if len({h.task for h in histories}) > 1:
        return None
    metrics: tuple[Metric, ...] = ("accuracy", "loss")
    for metric in metrics:
        able = sorted((h for h in histories if learned(h, metric)), key=lambda h: h.bytes)
        if len(able) >= 2:
            return pair(able[0], able[-1], metric)
    return None


def pair(one: History, other: History, metric: Metric) -> Comparison | None:
    finals = [values(h, metric)[-1] for h in (one, other)]
    goal = min(finals) if metric == "accuracy" else max(finals)
    priced = [(point, h) for h in (one, other) if (point := met(h, metric, goal)) is not None]
    if len(priced) < 2:
        return None
    (low, frugal), (high, lavish) = sorted(priced, key=lambda item: item[0].bytes)
    return Comparison(metric, goal, frugal, lavish, low, high)


@dataclass(frozen=True)
class Phrase:
    """A piece of the sentence; an amount that belongs to a run names it, so that a page can show it in its colour.

    price: what was paid for it, which a page may show smaller.
    """

    text: str
    run: History | None = None
    price: bool = False


def sentence(histories: Sequence[History]) -> str:
    """The headline of a page, computed from the histories."""
    return "".join(phrase.text for phrase in phrases(histories))


def phrases(histories: Sequence[History]) -> tuple[Phrase, ...]:
    if len(histories) == 1:
        return alone(histories[0])
    found = compare(histories)
    if found is None:
        return incomparable(histories)
    frugal, lavish, goal = found.frugal.name, found.lavish.name, found.goal_text
    if found.lavish_bytes <= 0:
        return (Phrase(f"{frugal} and {lavish} both reached {goal}; nothing was exchanged."),)
    low = Phrase(human_bytes(found.frugal_bytes), found.frugal)
    high = Phrase(human_bytes(found.lavish_bytes), found.lavish)
    if found.ratio is None:
        start = Phrase(f"{frugal} reached {goal} without exchanging a byte; {lavish} needed ")
        return start, high, Phrase(" per client to get as far.")
    if found.ratio < 1.05:
        start = Phrase(f"{frugal} and {lavish} both reached {goal} with about ")
        return start, low, *priced(" per client", price(found))
    middle = Phrase(f" per client; {lavish} needed ")
    end = f" to get as far, {times(found.ratio)} times as much"
    return Phrase(f"{frugal} reached {goal} with "), low, middle, high, *priced(end, price(found))


def priced(end: str, price: str) -> tuple[Phrase, ...]:
    """The end of the sentence, and what it cost."""
    return (Phrase(f"{end}, "), Phrase(f"{price}.", price=True)) if price else (Phrase(f"{end}."),)


def price(found: Comparison) -> str:
    """What the bytes were saved with: evaluations and time of the one run, and what the other did instead."""
    ours, theirs = found.frugal_point, found.lavish_point
    if not ours.queries and not theirs.queries:
        return ""
    dearer = ours.queries > theirs.queries or ours.seconds > theirs.seconds
    theirs_cost, ours_cost = cost(found.lavish, theirs), cost(found.frugal, ours)
    if theirs_cost == ours_cost:
        return f"both with {ours_cost}"
    if found.lavish.unit == found.frugal.unit:
        ours_cost = ours_cost.replace(f" {found.frugal.unit}", "")
    return f"{'but' if dearer else 'and'} {theirs_cost} instead of {ours_cost}"


def cost(history: History, point: Point) -> str:
    """80,000 loss evaluations in 58 s; the time where it is known"""
    spent = f"{human_words(point.queries)} {history.unit}"
    return f"{spent} in {human_seconds(point.seconds)}" if point.seconds > 0 else spent


def incomparable(histories: Sequence[History]) -> tuple[Phrase, ...]:
    if len({h.task for h in histories}) > 1:
        return (Phrase("These runs solve different tasks: they are shown side by side, not compared."),)
    able = [h for h in histories if learned(h, "accuracy") or (not h.measured and learned(h, "loss"))]
    if len(able) == 1:
        return Phrase("Only one of these runs learned: "), *alone(able[0])
    if able:
        return (Phrase("These runs have no metric in common, so their costs cannot be compared."),)
    return (Phrase("None of these runs has learned anything yet."),)


def value_found(history: History) -> str:
    """What came of black boxes; from where to where is said only of values at the models themselves."""
    name, first, last = history.name, history.points[0], history.points[-1]
    before, after = human_loss(first.loss), human_loss(last.loss)
    if last.estimated:
        return f"{name} is at a value of about {after}, an estimate from points near x,"
    if first.estimated or first.round or first is last:
        return f"{name} is at a value of {after}"
    if last.loss < first.loss:
        return f"{name} took the value from {before} to {after}"
    return f"{name} is at a value of {after}, no better than the {before} it started from,"


def alone(history: History) -> tuple[Phrase, ...]:
    """A single run is held against sending the model there and back in every round a client takes part in."""
    name = history.name
    if not history.points:
        return (Phrase(f"{name} has no evaluated round yet."),)
    if not isfinite(history.final_loss):
        return (Phrase(f"{name} diverged: its loss is no longer finite."),)
    if history.diverged:
        first, last = human_loss(history.first_loss), human_loss(history.final_loss)
        return (Phrase(f"{name} diverged: its loss is {last}, and was {first} at the start."),)
    if history.found is not None:
        return (
            Phrase(f"{value_found(history)} with "),
            Phrase(f"{history.queries:,} {history.unit}", history),
            Phrase(f", {human_bytes(sent)} to and from services." if (sent := history.found.traffic) else "."),
        )
    reached, after = ("reached", "with") if len(history.points) > 1 else ("is at", "after")
    if history.final_accuracy is not None:
        result = f"{name} {reached} {percent(history.final_accuracy)}"
    elif learned(history, "loss") and len(history.points) > 1:
        result = f"{name} took the loss from {human_loss(history.first_loss)} to {human_loss(history.final_loss)}"
    else:
        result = f"{name} is at a loss of {human_loss(history.final_loss)}"
    if history.bytes <= 0:
        return (Phrase(f"{result}; nothing was exchanged."),)
    spent = Phrase(human_bytes(history.bytes), history)
    ratio = history.dense_bytes / history.bytes
    paid = f" It took {cost(history, history.points[-1])}." if history.queries else ""
    aside = " per client."
    if ratio >= 1.5:
        dense = human_bytes(history.dense_bytes)
        aside = f" per client; sending the model back and forth would take {dense}: {times(ratio)} times as much."
    return Phrase(f"{result} {after} "), spent, Phrase(aside), Phrase(paid, price=True)
