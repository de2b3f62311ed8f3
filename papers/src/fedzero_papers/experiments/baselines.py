"""What the experiments of the FZooS paper have in common: the methods they compare, cases, and who is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedzero_papers.experiments.contract import Job, load
from fedzero_papers.experiments.curves import Curve, pair
from fedzero_papers.experiments.outcome import Panel


@dataclass(frozen=True)
class Baseline:
    """A method; what a round of it costs, FedZO's being 1, and the share of the rounds that it is given for that.

    A control is a method (`of`) with another learning rate than its recipe's.
    """

    label: str
    cost: float = 1.0
    share: float = 1.0
    of: str = ""
    rate: float | None = None

    def rounds(self, given: int) -> int:
        return max(1, round(self.share * given))


METHODS = {
    "fzoos": Baseline("FZooS", cost=13.0, share=1 / 3),
    "fedzo": Baseline("FedZO"),
    "fedprox": Baseline("FedProx-ZO"),
    "scaffold-1": Baseline("SCAFFOLD-ZO (type I)", cost=1.1),
    "scaffold-2": Baseline("SCAFFOLD-ZO (type II)"),
    "fedzo-3": Baseline("FedZO, 3 η", of="fedzo", rate=0.03),
}
"""By the end of their recipes' names, `e6-fedzo` and so on. FZooS moves further than the others at the same rate; the
control shows what three times the rate does for FedZO."""


@dataclass(frozen=True)
class Case:
    """One pair of panels: a dataset or a metric, P (the share of classes a client knows), T, and how long."""

    subject: str
    share: float
    steps: int
    rounds: int
    cost: float
    """seconds of a round of FedZO with ten local steps on one core, about"""

    titles: ClassVar[Mapping[str, str]]
    """of the subjects"""

    @property
    def name(self) -> str:
        return f"{self.subject}-p{self.share:g}-t{self.steps}"

    @property
    def title(self) -> str:
        return f"{self.titles[self.subject]}, P = {self.share:g}, T = {self.steps}"


def job(
    recipe: str, method: str, case: Case, seed: int, clients: int, task: Mapping[str, Any], folder: str = ""
) -> Job:
    """A run of all clients in every round; every seed, from 1 on, has draws of classes and rows of its own."""
    baseline = METHODS[method]
    rounds, draw = baseline.rounds(case.rounds), seed - 1
    tables = {
        "task": {"share": case.share, "repetition": draw, **task},
        "algorithm": {"local_steps": case.steps} | ({} if baseline.rate is None else {"rate": baseline.rate}),
        "federation": {"clients": clients, "cohort": clients},
    }
    cost = case.cost * baseline.cost * rounds * case.steps / 10
    made = load(f"{recipe}-{baseline.of or method}", seed, rounds, 1, **tables)
    return Job(f"{case.name}/{method}/draw-{draw}{folder}", made, cost)


def panels(
    curves: Mapping[tuple[Case, str], Curve], cases: Sequence[Case], y: str, queries: str = "queries (all clients)"
) -> tuple[Panel, ...]:
    """A pair of panels for every case, with all methods."""
    by_case = {
        case: [(b.label, style, curves[case, m]) for style, (m, b) in enumerate(METHODS.items())] for case in cases
    }
    return tuple(panel for case, lines in by_case.items() for panel in pair(case.title, lines, y, queries))


@dataclass(frozen=True)
class Comparison:
    """All methods where the first of them ends: methods are given different numbers of rounds."""

    end: float
    values: dict[str, float]

    @staticmethod
    def of(curves: Mapping[str, Curve], by_queries: bool) -> Comparison:
        end = min(curve.places(by_queries)[-1] for curve in curves.values())
        return Comparison(end, {method: curve.at(end, by_queries) for method, curve in curves.items()})

    def ranked(self, lowest: bool, form: str = "{:.1f}") -> str:
        """`FZooS 12.0, FedZO 13.5, …`, the best first; of equals the order of the list."""
        order = sorted(self.values, key=lambda method: self.values[method] * (1 if lowest else -1))
        return ", ".join(f"{METHODS[method].label} {form.format(self.values[method])}" for method in order)


def compared(
    curves: Mapping[tuple[Case, str], Curve], case: Case, lowest: bool, form: str = "{:.1f}", each: str = ""
) -> str:
    """Who is ahead in a case, by rounds and by queries (`each`: of what)."""
    mine = {method: curves[case, method] for method in METHODS}
    rounds, queries = (Comparison.of(mine, by_queries) for by_queries in (False, True))
    return (
        f"after {rounds.end:.0f} rounds: {rounds.ranked(lowest, form)}; "
        f"with {queries.end:,.0f} queries{each}: {queries.ranked(lowest, form)}."
    )
