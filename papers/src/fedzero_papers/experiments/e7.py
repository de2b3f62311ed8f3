"""E7 (002, figures 8 to 12): a classifier of Covertype tuned for metrics that have no gradient.

(1 − metric) · 100 %, mean over the clients, against rounds and against queries, for precision (figures 8 and 9), recall
(10), F1 (11) and Jaccard score (12), for several P (the share of classes in a client's data) and several T (local
steps); N 7, Q 20 directions, Adam with rate 0.01. Mean and one standard error of five repetitions, each with other
classes, rows and directions.

Not as in the paper: 30 rounds instead of 50 (15 with T = 20); FZooS, whose rounds take about 13 times as long as
FedZO's, is given a third of them. The paper gives no numbers for P and T, for the size of the change, for the radius
of the finite differences, or for the rows of a client: here weights change by at most 1, the radius is 0.01 (both
chosen so that FedZO improves precision at P = 0.5), and a client has 700 rows, equally many of each of its classes. The
classifier has the paper's three layers, with 2,189 weights.

FZooS is the authors' preset with two numbers chosen for such staircases, out of six tried on precision at P = 0.5: its
queries reach 0.1 instead of 0.01, and the noise of its process is 0.1 instead of 10⁻⁶.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from fedzero.report.history import History
from fedzero.run import recipe as recipes
from fedzero_papers.experiments.baselines import METHODS, Curve, by_queries, by_rounds, ranked
from fedzero_papers.experiments.contract import Cell, Figure, Job, Outcome, Panel, Plan, Setting, Stage, Table

METRICS = {"precision": "precision", "recall": "recall", "f1": "F1", "jaccard": "Jaccard"}
FIGURES = {"precision": "figures 8 and 9", "recall": "figure 10", "f1": "figure 11", "jaccard": "figure 12"}


@dataclass(frozen=True)
class Case:
    """One pair of panels."""

    metric: str
    share: float
    steps: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.metric}-p{self.share:g}-t{self.steps}"

    @property
    def title(self) -> str:
        return f"{METRICS[self.metric]}, P = {self.share:g}, T = {self.steps}"


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting."""

    metrics: tuple[str, ...]
    settings: tuple[tuple[float, int, int], ...]
    """(P, T, rounds)"""
    repetitions: int
    full: bool
    samples: int = 700
    clients: int = 7
    every: int = 1
    """rounds between two evaluations"""
    cost: float = 0.23
    """seconds of a round of FedZO with ten local steps on one core, about"""


FULL = Scale(
    metrics=tuple(METRICS),
    settings=((0.3, 10, 30), (0.5, 10, 30), (1.0, 10, 30), (0.5, 5, 30), (0.5, 20, 15)),
    repetitions=5,
    full=True,
)
QUICK = Scale(("precision", "f1"), ((0.5, 10, 20), (1.0, 10, 20)), 2, False, samples=350, cost=0.15)


def job(method: str, case: Case, repetition: int, scale: Scale) -> Job:
    overrides = [
        f"task.metric={case.metric}",
        f"task.share={case.share}",
        f"task.samples={scale.samples}",
        f"task.full={str(scale.full).lower()}",
        f"task.repetition={repetition}",
        f"algorithm.local_steps={case.steps}",
        f"federation.clients={scale.clients}",
        f"federation.cohort={scale.clients}",
        f"evaluate_every={scale.every}",
    ]
    rival = METHODS[method]
    recipe = recipes.load(f"e7-{method}", overrides, seed=1 + repetition, rounds=rival.rounds(case.rounds))
    cost = scale.cost * rival.cost * recipe.rounds * case.steps / 10
    return Job(f"{case.name}/{method}/draw-{repetition}", recipe, cost)


@dataclass(frozen=True)
class Result:
    """One method's runs, one for every repetition."""

    runs: tuple[History, ...]

    @property
    def curve(self) -> Curve:
        """(1 − metric) · 100 %."""
        return Curve.of(self.runs, lambda run, point: 100 * point.loss)


Results = Mapping[tuple[Case, str], Result]


@dataclass(frozen=True)
class E7:
    """The experiment."""

    full: Scale = FULL
    quick: Scale = QUICK

    name = "e7"
    paper = "FZooS, figures 8 to 12"
    about = "A classifier of Covertype tuned for precision, recall, F1 and Jaccard score, which have no gradient"
    times = ("2 min", "45 min")
    needs_data = True

    def plan(self, setting: Setting) -> Plan:
        scale = self.quick if setting.quick else self.full
        every = [Case(metric, *each) for metric, each in product(scale.metrics, scale.settings)]
        chosen = setting.chosen([case.name for case in every])
        cases = [case for case in every if case.name in chosen]
        repetitions = range(setting.seeds or scale.repetitions)
        jobs = {(c, m): [job(m, c, r, scale) for r in repetitions] for c, m in product(cases, METHODS)}
        found = yield Stage("all runs", tuple(j for each in jobs.values() for j in each))
        results = {pair: Result(tuple(found[j.folder] for j in each)) for pair, each in jobs.items()}
        return Outcome((table(results),), tuple(figures(results, cases, scale)), findings(results, scale))


def table(results: Results) -> Table:
    columns = ("metric", "P", "T", "method", "repetitions", "rounds", "queries", "1 − metric first (%)",
               "1 − metric last (%)", "standard error")  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for (c, m), r in results.items():
        curve = r.curve
        rows.append(
            (METRICS[c.metric], c.share, c.steps, METHODS[m].label, len(r.runs), round(curve.rounds[-1]),
             round(curve.queries[-1]), curve.mean[0], *curve.final)
        )  # fmt: skip
    return Table("table", "Metrics at the end", columns, tuple(rows))


def figures(results: Results, cases: Sequence[Case], scale: Scale) -> list[Figure]:
    """One figure for each metric; every P and T has a pair of panels."""
    made = []
    for metric, number in FIGURES.items():
        mine = [case for case in cases if case.metric == metric]
        if mine:
            panels = tuple(panel for case in mine for panel in pair(results, case))
            rows = "" if scale.full else ", classifier trained on 1,400 rows"
            setting = f"N {scale.clients}, Q 20, {scale.samples} rows a client, changes up to 1{rows}"
            made.append(Figure(metric, f"FZooS, {number}: {METRICS[metric]} on Covertype", panels, 2, setting))
    return made


def pair(results: Results, case: Case) -> tuple[Panel, Panel]:
    """By rounds, and by queries."""
    mine = [(METHODS[method].label, style, results[case, method].curve) for style, method in enumerate(METHODS)]
    rounds = tuple(curve.line(label, style) for label, style, curve in mine)
    queries = tuple(curve.line(label, style, by_queries=True) for label, style, curve in mine)
    y = f"1 − {METRICS[case.metric]} (%)"
    return Panel(case.title, rounds, "rounds", y), Panel(case.title, queries, "queries (all clients)", y)


def findings(results: Results, scale: Scale) -> tuple[str, ...]:
    """How often each method is lowest where the first of them ends, each case, and what was not as in the paper."""
    cases, said = list(dict.fromkeys(case for case, _ in results)), []
    curves = {case: {method: results[case, method].curve for method in METHODS} for case in cases}
    for axis, words in ((by_rounds, "after equally many rounds"), (by_queries, "with equally many queries")):
        lowest = [min(METHODS, key=axis(curves[case]).values.__getitem__) for case in cases]
        won = ", ".join(f"{METHODS[method].label} in {n}" for method, n in Counter(lowest).most_common())
        said.append(f"Lowest {words}, of {len(cases)} cases: {won}.")
    for case in cases:
        rounds, queries = by_rounds(curves[case]), by_queries(curves[case])
        said.append(
            f"{case.title}: 1 − metric (%) from {curves[case]['fedzo'].mean[0]:.1f}; after {rounds.at:.0f} rounds: "
            f"{ranked(rounds, True)}; with {queries.at:,.0f} queries: {ranked(queries, True)}."
        )
    said.append(
        "Not as in the paper: fewer rounds, of FZooS fewer still; values of P and T, the size of the change (1), the "
        f"radius (0.01) and the rows of a client ({scale.samples}, equally many of each of its classes) are ours."
    )
    return tuple(said)
