"""What tells runs apart: the settings of their recipes that differ, names made of those, and runs that only differ in
their seed as one.

A mean of n runs has, at the rounds at which all of them were evaluated, the mean of every figure and the standard
error of its metrics, s/√n with s² = Σ (y − ȳ)² / (n − 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from pathlib import PurePath

from fedzero.errors import FedzeroError
from fedzero.model import toml
from fedzero.report.history import History, Metric, Point
from fedzero.report.text import printable

WORDS = frozenset(("name", "title", "about"))
"""Settings that say nothing about what a run computes."""
SEED = "seed"
LONGEST = 28
"""Letters of a value within a name."""
MOST = 3
"""Settings within a name."""
LONGEST_FOLDER = 60
"""Letters of a folder within a name."""


@dataclass(frozen=True)
class Difference:
    """A setting and its value in each run; None where a recipe has no such setting."""

    setting: str
    values: tuple[str | None, ...]


def differing(histories: Sequence[History]) -> list[str]:
    """Settings whose values differ: those of a section (algorithm, task, …) first, then those of the run as a whole."""
    names = dict.fromkeys(name for h in histories for name in h.settings if name not in WORDS)
    found = [name for name in names if len({h.settings.get(name) for h in histories}) > 1]
    return sorted(found, key=lambda name: "." not in name)


def differences(histories: Sequence[History]) -> tuple[Difference, ...]:
    """The table of what differs. A setting that only some recipes have is in it where somebody chose its value."""
    shared = [name for name in differing(histories) if all(name in h.settings for h in histories)]
    chosen = {name for h in histories for name in given(h)}
    names = [name for name in differing(histories) if name in shared or name in chosen]
    return tuple(Difference(name, tuple(h.settings.get(name) for h in histories)) for name in names)


def given(history: History) -> set[str]:
    """Settings that the recipe itself names."""
    try:
        table = toml.parsed(history.recipe.encode(), history.name)
    except FedzeroError:
        return set()
    return {f"{key}.{inner}" for key, of in table.items() if isinstance(of, Mapping) for inner in of} | set(table)


def told_apart(histories: Sequence[History]) -> tuple[History, ...]:
    """The runs by names of their own: where they share one, what differs in their recipes is behind it, else the
    folder."""
    settings = marked(histories, [h.name for h in histories], distinguishing)
    folders = marked(histories, [(h.name, mark) for h, mark in zip(histories, settings, strict=True)], of_folders)
    found, seen = [], Counter[str]()
    for history, setting, folder in zip(histories, settings, folders, strict=True):
        parts = [mark for mark in (setting, folder, of_seeds(history)) if mark]
        name = f"{history.name} ({', '.join(parts)})" if parts else history.name
        seen[name] += 1
        found.append(replace(history, name=name if seen[name] == 1 else f"{name} ({seen[name]})"))
    return tuple(found)


def marked(
    histories: Sequence[History], keys: Sequence[object], marks: Callable[[Sequence[History]], Sequence[str]]
) -> list[str]:
    """For each run its mark among those of the same key."""
    places: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    found = dict[int, str]()
    for same in places.values():
        found |= zip(same, marks([histories[place] for place in same]), strict=True)
    return [found[place] for place in range(len(histories))]


def of_folders(histories: Sequence[History]) -> list[str]:
    """For each run as much of the end of its folder's path as tells the folders apart; nothing where there is one."""
    folders = [PurePath(h.folder).parts for h in histories]
    if len(set(folders)) == 1:
        return [""] * len(folders)
    length = 1
    while len({parts[-length:] for parts in folders}) < len(set(folders)):
        length += 1
    return [printable("/".join(parts[-length:]), LONGEST_FOLDER) for parts in folders]


def of_seeds(history: History) -> str:
    return f"mean of {history.runs} seeds" if history.runs > 1 else ""


def distinguishing(histories: Sequence[History]) -> list[str]:
    """For each run: directions 20, rounds 400; as few settings as tell all of them apart, `MOST` at most.

    Those that a recipe names itself come first, the seed last.
    """
    chosen = set[str]().union(*map(given, histories))
    names = sorted(differing(histories), key=lambda name: (name == SEED, name not in chosen))
    telling: list[str] = []
    for name in names:
        more = [marks_of(h, [*telling, name]) for h in histories]
        if len(set(more)) > len({marks_of(h, telling) for h in histories}) and len(telling) < MOST:
            telling.append(name)
    return [marks_of(h, telling) for h in histories]


def marks_of(history: History, names: Sequence[str]) -> str:
    return ", ".join(f"{short(name)} {value_in(history, name)}" for name in names)


def short(setting: str) -> str:
    return setting.rpartition(".")[2].replace("_", " ")


def value_in(history: History, setting: str) -> str:
    return printable(history.settings.get(setting, "none").strip('"'), LONGEST)


def merged(histories: Sequence[History]) -> tuple[History, ...]:
    """Runs that differ in nothing but their seed as one, in the place of the first."""
    groups: dict[object, list[History]] = {}
    for position, history in enumerate(histories):
        rest = frozenset((k, v) for k, v in history.settings.items() if k not in WORDS | {SEED})
        groups.setdefault((history.name, rest) if rest else position, []).append(history)
    return tuple(one for group in groups.values() for one in ([mean_of(group)] if only_seeds(group) else group))


def only_seeds(group: Sequence[History]) -> bool:
    """Whether a mean of these runs says something: several, of one recipe and several seeds."""
    seeds = {h.settings.get(SEED) for h in group}
    boxes = any(h.found is not None for h in group)
    return len(group) > 1 and len(seeds) == len(group) and not boxes and bool(common_rounds(group))


def common_rounds(group: Sequence[History]) -> list[int]:
    sets = [{p.round for p in h.points} for h in group]
    return sorted(set.intersection(*sets))


def mean_of(group: Sequence[History]) -> History:
    """The mean of runs, over the rounds at which all were evaluated."""
    first, n = group[0], len(group)
    by_round = [{p.round: p for p in h.points} for h in group]
    points = tuple(mean_point([points[round] for points in by_round]) for round in common_rounds(group))
    losses = [dict(h.train_loss) for h in group]
    trained = sorted(set.intersection(*map(set, losses)))
    slopes = [dict(h.slopes) for h in group]
    sloped = sorted(set.intersection(*map(set, slopes)))
    seeds = ", ".join(h.settings[SEED] for h in group)
    return replace(
        first,
        points=points,
        rounds=min(h.rounds for h in group),
        train_loss=tuple((r, sum(of[r] for of in losses) / n) for r in trained),
        slopes=tuple((r, sum(of[r] for of in slopes) / n) for r in sloped),
        seconds=sum(h.seconds for h in group) / n,
        complete=all(h.complete for h in group),
        diverged=any(h.diverged for h in group),
        events=tuple(f"seed {h.settings[SEED]}, {event}" for h in group for event in h.events),
        earlier_events=sum(h.earlier_events for h in group),
        refusals=tuple(sum((Counter(dict(h.refusals)) for h in group), Counter[str]()).most_common()),
        settings=first.settings | {SEED: seeds},
        model_digest="",
        model_sha256="",
        parties=(),
        runs=n,
    )


def mean_point(points: Sequence[Point]) -> Point:
    n = len(points)
    metrics: tuple[Metric, ...] = ("loss", "accuracy")
    columns = {m: [v for p in points if (v := p.value(m)) is not None and isfinite(v)] for m in metrics}
    whole = {m: column for m, column in columns.items() if len(column) == n}
    means = {m: sum(column) / n for m, column in whole.items()}
    errors: dict[str, float] = {m: sqrt(sum((v - means[m]) ** 2 for v in whole[m]) / (n - 1) / n) for m in whole}
    return replace(
        points[0],
        loss=means.get("loss", float("nan")),
        accuracy=means.get("accuracy"),
        bytes_up=sum(p.bytes_up for p in points) / n,
        bytes_down=sum(p.bytes_down for p in points) / n,
        queries=round(sum(p.queries for p in points) / n),
        seconds=sum(p.seconds for p in points) / n,
        others={
            k: sum(p.others[k] for p in points) / n for k in points[0].others if all(k in p.others for p in points)
        },
        estimated=any(p.estimated for p in points),
        errors=errors,
    )


def title_of(histories: Sequence[History]) -> str:
    """DeComFL against FedAvg; DeComFL: directions 20 against directions 50."""
    histories = merged(histories)
    if len(histories) > 3:
        return f"{len(histories)} runs"
    if len(histories) > 1 and len(bases := {h.name for h in histories}) == 1:
        marks = distinguishing(histories)
        if all(marks) and len(set(marks)) == len(marks):
            return f"{bases.pop()}: {' against '.join(marks)}"
    return " against ".join(h.name for h in told_apart(histories))
