"""E5 (002, figures 1, 3, 4, 5): quadratics that differ between clients, FZooS against finite differences.

d 300, N 5, T 10 local steps, 50 rounds, C ∈ {0.5, 5, 50}; all methods step with Adam, rate 0.01, restarted each round,
in [0, 1]^d; finite differences along Q = 20 directions. The optimality gap F(x) − F*, relative to the start, against
rounds and against queries; five seeds, mean and one standard error.

    figure 1   the three C          figure 4   T ∈ {5, 10, 20} with C = 5
    figure 3   cos(ĝ, ∇F) at the local steps, T = 20: the mean over the steps up to t, over clients, rounds and seeds
    figure 5   FZooS with few features, and without adaptive corrections: γ = 1; and the correction of the round's start
    control    the same rule with exact gradients, γ = 1/t, 1 and 0: what is the rule's doing, and not the surrogate's

FZooS is the form its authors ran (preset "authors"); beside it our own, in which clients share their candidates and
γ = 1 (preset "shared"), and, for one seed and fewer rounds, the paper's text with the whole history (preset "text").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedzero.oracles.contract import F64
from fedzero.report.history import History, Point
from fedzero_papers.experiments import exact
from fedzero_papers.experiments.alignment import alignments
from fedzero_papers.experiments.contract import Experiment, Job, Options, Plan, gather, load
from fedzero_papers.experiments.curves import Curve, Reading, by_query, by_round, mean_and_error, pair
from fedzero_papers.experiments.outcome import Cell, Figure, Outcome, Panel, Table

METHODS = {
    "fzoos": "FZooS",
    "fedzo": "FedZO",
    "fedprox": "FedProx-ZO",
    "scaffold-1": "SCAFFOLD-ZO (type I)",
    "scaffold-2": "SCAFFOLD-ZO (type II)",
    "fzoos-shared": "FZooS, shared queries",
}
LABELS = METHODS | {"fzoos-text": "FZooS, whole history"}
REACHED = 0.05
"""of the gap at the start"""
COSINE_CASES = (0.5, 5.0)
CONSTANT = {"kind": "constant", "value": 1.0}
ABLATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "adaptive": ("γ = 1/t, at the iterate", {}),
    "length": ("γ = 1, at the iterate", {"gamma": CONSTANT}),
    "vector": ("γ = 1, at the round's start", {"gamma": CONSTANT, "correction_at": "start"}),
}


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting."""

    heterogeneities: tuple[float, ...]
    steps: tuple[int, ...]
    rounds: int
    seeds: int
    features: tuple[int, ...]
    few_features: int
    ablation_rounds: int
    ablation_seeds: int
    text_rounds: int
    cosine_rounds: int
    cosine_steps: int
    dimension: int = 300


FULL = Scale((0.5, 5.0, 50.0), (5, 20), 50, 5, (100, 1000, 10_000), 1000, 20, 3, 25, 5, 20)
QUICK = Scale((0.5, 5.0, 50.0), (), 15, 2, (), 500, 8, 1, 6, 2, 10, dimension=100)
SECONDS = {"fzoos": 1.6, "fzoos-shared": 0.9, "fzoos-text": 4.0}
"""of a round with ten steps on one core, about"""


@dataclass(frozen=True)
class Case:
    """One pair of panels of figures 1 and 4."""

    heterogeneity: float
    steps: int = 10

    @property
    def name(self) -> str:
        return f"c{self.heterogeneity:g}-t{self.steps}"

    @property
    def title(self) -> str:
        return f"C = {self.heterogeneity:g}, T = {self.steps}"


def job(method: str, case: Case, seed: int, rounds: int, scale: Scale, folder: str = "", **more: Any) -> Job:
    task = {"heterogeneity": case.heterogeneity, "dimension": scale.dimension}
    recipe = load(f"e5-{method}", seed, rounds, task=task, algorithm={"local_steps": case.steps, **more})
    cost = SECONDS.get(method, 0.1) * rounds * case.steps / 10
    return Job(f"{folder or case.name}/{method}/seed-{seed}", recipe, cost)


def ablation(kind: str, c: float, seeds: Sequence[int], scale: Scale, features: int, **more: Any) -> list[Job]:
    """FZooS with so many features."""
    more["transfer"] = {"count": features, "window": {"kind": "nearest", "count": 150}}
    return [job("fzoos", Case(c), s, scale.ablation_rounds, scale, f"{kind}-c{c:g}", **more) for s in seeds]


@dataclass(frozen=True)
class Result:
    """One method's runs, one for every seed."""

    runs: tuple[History, ...]

    @property
    def curve(self) -> Curve:
        """The gap relative to the start."""
        return Curve.of(self.runs, lambda run, point: point.loss / run.points[0].loss)

    @property
    def reached(self) -> list[Point | None]:
        """Where the gap first is 5 % of its start, of every run; None if it never is."""
        return [next((p for p in run.points if p.loss / run.points[0].loss <= REACHED), None) for run in self.runs]

    def mean_reached(self, read: Reading) -> float | None:
        """Rounds or queries to 5 %, the mean over the seeds, if all of them get there."""
        points = [point for point in self.reached if point is not None]
        return float(np.mean([read(point) for point in points])) if len(points) == len(self.runs) else None


Results = Mapping[tuple[Case, str], Result]


def plan(scale: Scale, options: Options) -> Plan:
    every = [Case(c) for c in scale.heterogeneities] + [Case(5.0, t) for t in scale.steps]
    parts = options.chosen([*(case.name for case in every), "text", "features", "fixed", "cosine", "exact"])
    cases, seeds = [case for case in every if case.name in parts], options.seeds(scale.seeds)
    main = {(c, m): [job(m, c, s, scale.rounds, scale) for s in seeds] for c, m in product(cases, METHODS)}
    if "text" in parts:
        text = [c for c in cases if c.steps == 10]
        main |= {(c, "fzoos-text"): [job("fzoos-text", c, 1, scale.text_rounds, scale)] for c in text}
    some = options.seeds(scale.ablation_seeds)[: scale.ablation_seeds]
    fixed = {
        (c, kind): ablation(f"fixed-{kind}", c, some, scale, scale.few_features, **more)
        for c, (kind, (_, more)) in product(scale.heterogeneities, ABLATIONS.items())
        if "fixed" in parts
    }
    by_count = {
        (c, count): ablation(f"features-{count}", c, some, scale, count)
        for c, count in product(scale.heterogeneities, scale.features)
        if "features" in parts
    }
    groups = yield from gather("all runs", main, fixed, by_count)
    compared, *ablations = ({key: Result(runs) for key, runs in group.items()} for group in groups)
    figures = _comparisons(compared, cases, scale)
    if fixed:
        labels = {kind: label for kind, (label, _) in ABLATIONS.items()}
        title = f"FZooS, figure 5 (b): without adaptive corrections, M = {scale.few_features:,}"
        figures.append(_ablation("fig5b", title, ablations[0], scale, labels))
    if by_count:
        counts = {count: f"M = {count:,}" for count in scale.features}
        figures.append(_ablation("fig5a", "FZooS, figure 5 (a): number of features", ablations[1], scale, counts))
    cosines = _cosines(scale, seeds) if "cosine" in parts else {}
    figures += [_alignment(cosines, scale)] if cosines else []
    control = _exact(scale, seeds) if "exact" in parts else {}
    figures += [_control(control, scale)] if control else []
    tables = ([_table(compared)] if compared else []) + ([_cosine_table(cosines)] if cosines else [])
    tables += [_control_table(control)] if control else []
    return Outcome(tuple(tables), tuple(figures), (*_findings(compared), *_cosine_findings(cosines)))


E5 = Experiment(
    "e5",
    "FZooS, figures 1, 3, 4, 5",
    "FZooS against FedZO, FedProx and SCAFFOLD on quadratics that differ between clients, and its ablations",
    ("3 min", "45 min"),
    plan, FULL, QUICK, needs_data=False,
)  # fmt: skip


def _table(results: Results) -> Table:
    columns = ("C", "T", "method", "seeds", "rounds", "queries", "rounds to 5 %", "queries to 5 %",
               "queries / FedZO's", "gap at the end", "standard error")  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for (case, method), r in results.items():
        rounds, queries = r.mean_reached(by_round), r.mean_reached(by_query)
        fedzo = results[case, "fedzo"].mean_reached(by_query)
        share = None if queries is None or fedzo is None else queries / fedzo
        rows.append(
            (case.heterogeneity, case.steps, LABELS[method], len(r.runs), round(r.curve.rounds[-1]),
             round(r.curve.queries[-1]), rounds, queries, share, *r.curve.final)
        )  # fmt: skip
    return Table("table", "Rounds and queries to 5 % of the gap at the start; the gap at the end", columns, tuple(rows))


def _comparisons(results: Results, cases: Sequence[Case], scale: Scale) -> list[Figure]:
    """Figure 1 (several C) and figure 4 (several T): a pair of panels for each."""
    made = []
    for name, title, least, mine in (
        ("fig1", "FZooS, figure 1: heterogeneity", 1, [c for c in cases if c.steps == 10]),
        ("fig4", "FZooS, figure 4: local steps", 2, [c for c in cases if c.heterogeneity == 5]),
    ):
        if len(mine) >= least:
            panels: list[Panel] = []
            for case in sorted(mine, key=lambda c: (c.heterogeneity, c.steps)):
                drawn = [(LABELS[m], i, results[case, m].curve) for i, m in enumerate(LABELS) if (case, m) in results]
                panels += pair(case.title, drawn, "(F − F*) / (F − F*) at the start", log_y=True)
            setting = f"d {scale.dimension}, N 5, Q 20; {max(len(r.runs) for r in results.values())} seeds"
            made.append(Figure(name, title, tuple(panels), 2, setting))
    return made


def _ablation(
    name: str, title: str, results: Mapping[tuple[float, Any], Result], scale: Scale, labels: Mapping[Any, str]
) -> Figure:
    panels = []
    for c in scale.heterogeneities:
        lines = tuple(results[c, kind].curve.line(label, style) for style, (kind, label) in enumerate(labels.items()))
        panels.append(Panel(f"C = {c:g}", lines, "rounds", "gap / gap at the start", log_y=True))
    return Figure(name, title, tuple(panels), len(panels), f"{scale.ablation_seeds} seeds")


def _cosines(scale: Scale, seeds: Sequence[int]) -> dict[str, F64]:
    """By method: cos(ĝ, ∇F), (C, seeds, steps), the mean over rounds and clients. C = 0.5 and 5."""
    wanted = [
        job(method, Case(c, scale.cosine_steps), seed, scale.cosine_rounds, scale).recipe
        for method, c, seed in product(METHODS, COSINE_CASES, seeds)
    ]
    found = np.array(alignments(wanted)).mean(axis=(1, 2))
    shaped = found.reshape(len(METHODS), len(COSINE_CASES), len(seeds), scale.cosine_steps)
    return dict(zip(METHODS, shaped, strict=True))


def _alignment(cosines: Mapping[str, F64], scale: Scale) -> Figure:
    steps = tuple(float(t) for t in range(1, scale.cosine_steps + 1))
    panels = []
    for row, c in enumerate(COSINE_CASES):
        means = {method: np.cumsum(found[row], axis=1) / np.array(steps) for method, found in cosines.items()}
        curves = {method: Curve(steps, steps, tuple(map(tuple, upto.tolist()))) for method, upto in means.items()}
        lines = tuple(curve.line(LABELS[method], style) for style, (method, curve) in enumerate(curves.items()))
        panels.append(Panel(f"C = {c:g}", lines, "local step t", "cos(ĝ, ∇F), mean of steps 1 … t"))
    setting = f"T = {scale.cosine_steps}; over the first {scale.cosine_rounds} rounds and all clients"
    return Figure("fig3", "FZooS, figure 3: gradients", tuple(panels), 2, setting)


def _exact(scale: Scale, seeds: Sequence[int]) -> dict[tuple[float, str], Curve]:
    """By C and rule: the gap relative to the start, with exact gradients."""
    rounds = tuple(float(r) for r in range(scale.rounds + 1))
    found = {}
    for c, (kind, (_, gamma)) in product(scale.heterogeneities, exact.RULES.items()):
        recipes = [job("fzoos", Case(c), seed, scale.rounds, scale).recipe for seed in seeds]
        found[c, kind] = Curve(rounds, rounds, tuple(tuple(exact.gaps(r, gamma).tolist()) for r in recipes))
    return found


def _control(curves: Mapping[tuple[float, str], Curve], scale: Scale) -> Figure:
    panels = []
    for c in scale.heterogeneities:
        labels = [(kind, label) for kind, (label, _) in exact.RULES.items()]
        lines = tuple(curves[c, kind].line(label, style) for style, (kind, label) in enumerate(labels))
        panels.append(Panel(f"C = {c:g}", lines, "rounds", "gap / gap at the start", log_y=True))
    setting = f"d {scale.dimension}, N 5, T 10; {len(next(iter(curves.values())).values)} seeds"
    return Figure("exact", "Exact gradients: what the rule for γ does", tuple(panels), len(panels), setting)


def _control_table(curves: Mapping[tuple[float, str], Curve]) -> Table:
    rows = tuple((c, exact.RULES[kind][0], *curve.final) for (c, kind), curve in curves.items())
    columns = ("C", "correction", "gap at the end", "standard error")
    return Table("exact", "Exact gradients in the place of surrogates: the gap at the end", columns, rows)


def _cosine_table(cosines: Mapping[str, F64]) -> Table:
    rows = tuple((LABELS[m], *mean_and_error(f[0].mean(1)), *mean_and_error(f[1].mean(1))) for m, f in cosines.items())
    columns = ("method", "C = 0.5", "standard error", "C = 5", "standard error ")
    return Table("cosine", "cos(ĝ, ∇F), mean over steps, clients, rounds and seeds", columns, rows)


def _findings(results: Results) -> list[str]:
    found = []
    for case in dict.fromkeys(case for case, _ in results):
        words = []
        for method in (m for m in LABELS if (case, m) in results):
            r = results[case, method]
            rounds, queries = r.mean_reached(by_round), r.mean_reached(by_query)
            end = f"ends at {100 * r.curve.final[0]:.2g} %"
            words.append(
                f"{LABELS[method]} "
                + (end if rounds is None else f"5 % after {rounds:.1f} rounds, {queries:,.0f} queries")
            )
        found.append(f"{case.title}: {'; '.join(words)}.")
    return found


def _cosine_findings(cosines: Mapping[str, F64]) -> list[str]:
    words = [f"{LABELS[m]} {found[0].mean():.3f} and {found[1].mean():.3f}" for m, found in cosines.items()]
    return [f"cos(ĝ, ∇F) with C = 0.5 and 5: {', '.join(words)}."] if words else []
