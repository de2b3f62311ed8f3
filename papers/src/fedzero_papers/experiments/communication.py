"""What the figures of the FedDisco paper have in common: one method against others, by rounds and by numbers sent.

Numbers have four bytes, as the paper counts them: the length of the vectors that go between the server and one client,
both ways. Here they are bytes on the wire, whole messages, divided by four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedzero.report.history import History
from fedzero.report.units import human_count, percent, times
from fedzero_papers.experiments.contract import Job, Options, Plan, every_method
from fedzero_papers.experiments.curves import averaged, by_round, loss, mean_and_error, percentage, repeated
from fedzero_papers.experiments.outcome import Figure, Outcome, Panel, Table

NUMBER = 4
"""Bytes; the paper counts the length of vectors."""

Runs = Mapping[str, tuple[History, ...]]
"""By method, with all seeds."""


def table(runs: Runs, labels: Mapping[str, str]) -> Table:
    """Mean and standard error of the accuracy; the rest of the first seed, which differs little."""
    columns = ("method", "seeds", "rounds", "test loss", "test accuracy (%)", "standard error", "best accuracy (%)",
               "numbers up / client", "numbers down / client", "numbers / client", "queries")  # fmt: skip
    rows = []
    for method, histories in runs.items():
        h = histories[0]
        accuracy, error = mean_and_error([percentage(each.points[-1]) for each in histories])
        best = mean_and_error([max(percentage(point) for point in each.points) for each in histories])[0]
        losses = mean_and_error([loss(each.points[-1]) for each in histories])[0]
        rows.append(
            (labels[method], len(histories), h.rounds, losses, accuracy, error or None, best, h.bytes_up / NUMBER,
             h.bytes_down / NUMBER, h.bytes / NUMBER, h.queries)
        )  # fmt: skip
    return Table("table", "At the end of the runs", columns, tuple(rows))


def figure(name: str, title: str, runs: Runs, labels: Mapping[str, str], setting: str) -> Figure:
    styles = {method: style for style, method in enumerate(labels)}
    mine = [(labels[method], styles[method], histories) for method, histories in runs.items()]
    by_rounds = tuple(averaged(*each, by_round, loss) for each in mine)
    by_numbers = tuple(averaged(*each, lambda p: p.bytes / NUMBER, percentage) for each in mine)
    numbers, accuracy = "numbers sent per client, up and down (bytes / 4)", "test accuracy (%)"
    panels = (
        Panel("Loss by rounds", by_rounds, "rounds", "test loss (cross-entropy)", log_y=True),
        Panel("Accuracy by communication", by_numbers, numbers, accuracy, log_x=True),
    )
    drawn = repeated(len(next(iter(runs.values()))), ", band from the best to the worst")
    return Figure(name, title, panels, 2, f"{setting}; {drawn}")


def findings(runs: Runs, labels: Mapping[str, str], ours: str) -> list[str]:
    """What each method needs to get as far as `ours` ended, with the first seed of each."""
    found = []
    first = {method: histories[0] for method, histories in runs.items()}
    peer = first.get(ours)
    for method, h in first.items():
        found.append(
            f"{labels[method]}: {percent(h.final_accuracy)} after {human_count(h.bytes / NUMBER)} numbers a client."
        )
        if peer is None or method == ours or peer.final_accuracy is None:
            continue
        reached = [p for p in h.points if p.accuracy is not None and p.accuracy >= peer.final_accuracy]
        end = f"{labels[ours]}'s {percent(peer.final_accuracy)}"
        if reached and peer.bytes > 0:
            found[-1] += f" It passed {end} with {times(reached[0].bytes / peer.bytes)} times its numbers."
        else:
            found[-1] += f" It did not reach {end}."
    return found


def compared(
    methods: Mapping[str, str], ours: str, name: str, title: str, job: Callable[[str, int, Any], Job]
) -> Callable[[Any, Options], Plan]:
    """The plan that compares `ours` with the other methods; job: of a method and a seed at a scale."""

    def plan(scale: Any, options: Options) -> Plan:
        runs = yield from every_method(methods, scale.seeds, options, lambda method, seed: job(method, seed, scale))
        drawn = figure(name, title, runs, methods, scale.setting)
        return Outcome((table(runs, methods),), (drawn,), tuple(findings(runs, methods, ours)))

    return plan
