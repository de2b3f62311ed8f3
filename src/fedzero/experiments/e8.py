"""E8 (004, figures 1 and 2): ZOFedHT against ZOFedAvg-SGD and ZOFedAvg-GD, training loss by function evaluations.

Three models (logistic regression, SVM, MLP) on three datasets, dealt out at random (figure 1) and sorted by label, one
shard a client (figure 2); N 100, m 10 sampled with replacement, K 50, batch 64, μ 10⁻⁴, η_r = η₀/√(r+1).

1. For every instance and method η₀ (and α, for ZOFedHT) is chosen from the paper's grid: one seed, fewer rounds, the
   lowest training loss at the end.
2. The chosen setting is run with three other seeds. The paper shows the best of three runs; here the mean is drawn,
   with a band from the best to the worst, and the table has both.

An evaluation is F(x; ξ) for one sample ξ: a query on a batch of 64 counts 64, one on all of a client's data as many as
it has. It is the only reading under which SGD and GD can share an axis. Rounds of GD cost more evaluations, so it gets
fewer: all methods of an instance have the same budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedzero import recipe as recipes
from fedzero.experiments.contract import Cell, Figure, Job, Line, Outcome, Panel, Plan, Setting, Stage, Table
from fedzero.report.history import History, Point
from fedzero.report.units import human_count

METHODS = {"zofedht": "ZOFedHT", "zofedavg-sgd": "ZOFedAvg-SGD", "zofedavg-gd": "ZOFedAvg-GD"}
MODELS = {"logistic": "logistic regression", "svm": "SVM", "mlp": "MLP"}
DATASETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "rcv1": "RCV1 sample"}
PARTITIONS = {"iid": "IID", "shards": "sorted shards"}
FIGURES = {"iid": ("fig1", "figure 1: IID"), "shards": ("fig2", "figure 2: sorted by label, one shard a client")}

RATES = (0.1, 1.0, 10.0)
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BATCH, STEPS = 64, 50
TUNING_SEED = 0


@dataclass(frozen=True)
class Size:
    """Rounds of the two mini-batch methods: while tuning, and in the end. GD gets as many as see the same samples."""

    tuning: int
    final: int
    seconds: float
    """of one round on one core, about"""


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting."""

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    samples: Mapping[str, int]
    """training samples of a dataset"""
    clients: int
    cohort: int
    rates: tuple[float, ...]
    alphas: tuple[float, ...]
    seeds: int
    sizes: Mapping[tuple[str, str], Size]
    full: bool


@dataclass(frozen=True)
class Instance:
    """One panel of the figures."""

    dataset: str
    model: str
    partition: str

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.model}-{self.partition}"

    @property
    def title(self) -> str:
        return f"{DATASETS[self.dataset]}, {MODELS[self.model]}"


@dataclass(frozen=True)
class Choice:
    """A point of the grid; α is ZOFedHT's alone."""

    rate: float
    alpha: float | None = None

    @property
    def name(self) -> str:
        return f"rate-{self.rate:g}" + ("" if self.alpha is None else f"-alpha-{self.alpha:g}")

    @property
    def overrides(self) -> list[str]:
        alpha = [] if self.alpha is None else [f"algorithm.alpha={self.alpha}"]
        return [f"algorithm.rate.start={self.rate}", *alpha]


def grid(method: str, scale: Scale) -> list[Choice]:
    if method != "zofedht":
        return [Choice(rate) for rate in scale.rates]
    return [Choice(rate, alpha) for rate, alpha in product(scale.rates, scale.alphas)]


def samples_a_query(method: str, instance: Instance, scale: Scale) -> float:
    """How many samples a query looks at; shards of a dataset differ by one sample at most, so their mean will do."""
    shard = scale.samples[instance.dataset] / scale.clients
    return shard if method == "zofedavg-gd" else min(BATCH, shard)


def rounds(method: str, instance: Instance, scale: Scale, mini_batch_rounds: int) -> int:
    share = samples_a_query("zofedavg-sgd", instance, scale) / samples_a_query(method, instance, scale)
    return max(1, round(mini_batch_rounds * share))


def job(method: str, instance: Instance, scale: Scale, choice: Choice, seed: int, tuning: bool) -> Job:
    size = scale.sizes[instance.dataset, instance.model]
    budget = size.tuning if tuning else size.final
    count = rounds(method, instance, scale, budget)
    partition = '{kind="iid"}' if instance.partition == "iid" else '{kind="shards", per_client=1}'
    overrides = [
        *choice.overrides,
        f"task.dataset={instance.dataset}",
        f"task.model={instance.model}",
        f"task.partition={partition}",
        f"task.full={str(scale.full).lower()}",
        f"federation.clients={scale.clients}",
        f"federation.cohort={scale.cohort}",
        f"evaluate_every={count if tuning else max(1, count // 20)}",
    ]
    stage = "tuning" if tuning else "final"
    folder = f"{instance.name}/{method}/{stage}/{choice.name}" + ("" if tuning else f"-seed-{seed}")
    recipe = recipes.load(f"e8-{method}", overrides, seed=seed, rounds=count)
    return Job(folder, recipe, budget * size.seconds)  # the same samples, about the same time


@dataclass(frozen=True)
class Curve:
    """A final run with its axis in evaluations."""

    history: History
    samples: float

    def evaluations(self, point: Point) -> float:
        return point.queries * self.samples

    @property
    def loss(self) -> float:
        return self.history.final_loss if math.isfinite(self.history.final_loss) else math.inf


Results = dict[tuple[Instance, str], tuple[Choice, list[Curve]]]


@dataclass(frozen=True)
class E8:
    """The experiment."""

    full: Scale
    quick: Scale

    name = "e8"
    paper = "ZOFedHT, figures 1 and 2"
    about = "ZOFedHT against ZOFedAvg-SGD and -GD: training loss by function evaluations, three models, three datasets"
    times = ("3 min", "90 min")
    needs_data = True

    def plan(self, setting: Setting) -> Plan:
        scale = self.quick if setting.quick else self.full
        every = [Instance(*each) for each in product(scale.datasets, scale.models, PARTITIONS)]
        chosen = setting.chosen([instance.name for instance in every])
        instances = [instance for instance in every if instance.name in chosen]
        seeds = range(1, 1 + (setting.seeds or scale.seeds))
        pairs = list(product(instances, METHODS))

        trials = {(i, m): {c: job(m, i, scale, c, TUNING_SEED, True) for c in grid(m, scale)} for i, m in pairs}
        later = [job(m, i, scale, grid(m, scale)[0], 1, False).cost * len(seeds) for i, m in pairs]
        found = yield Stage(
            "grid search",
            tuple(j for each in trials.values() for j in each.values()),
            (len(pairs) * len(seeds), sum(later)),
        )
        best = {pair: lowest({c: found[j.folder] for c, j in trials[pair].items()}) for pair in pairs}

        finals = {(i, m): [job(m, i, scale, best[i, m], seed, False) for seed in seeds] for i, m in pairs}
        found = yield Stage("chosen settings", tuple(j for each in finals.values() for j in each))
        results: Results = {
            (i, m): (best[i, m], [Curve(found[j.folder], samples_a_query(m, i, scale)) for j in finals[i, m]])
            for i, m in pairs
        }
        return Outcome((table(results),), tuple(figures(results, instances, setting.quick)), findings(results))


def lowest(trials: Mapping[Choice, History]) -> Choice:
    """The lowest loss at the end; one that is not finite loses, and of equals the smallest rate wins."""
    return min(trials, key=lambda c: (Curve(trials[c], 1.0).loss, c.rate, c.alpha or 0.0))


def mean_loss(curves: Sequence[Curve]) -> float:
    return float(np.mean([curve.loss for curve in curves]))


def table(results: Results) -> Table:
    columns = ("dataset", "model", "data", "method", "η₀", "α", "evaluations", "rounds", "mean loss", "best loss",
               "worst loss", "start")  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for (instance, method), (choice, curves) in results.items():
        losses, first = [curve.loss for curve in curves], curves[0]
        rows.append(
            (DATASETS[instance.dataset], MODELS[instance.model], PARTITIONS[instance.partition], METHODS[method],
             choice.rate, choice.alpha, round(np.mean([c.evaluations(c.history.points[-1]) for c in curves])),
             first.history.rounds, mean_loss(curves), min(losses), max(losses), first.history.first_loss)
        )  # fmt: skip
    seeds = len(next(iter(results.values()))[1])
    return Table("table", f"Training loss at the end, {seeds} seed{'s' if seeds > 1 else ''}", columns, tuple(rows))


def figures(results: Results, instances: Sequence[Instance], quick: bool) -> list[Figure]:
    """One figure for each way to deal out the data: models downwards, datasets across."""
    made = []
    for partition, (name, title) in FIGURES.items():
        mine = [instance for instance in instances if instance.partition == partition]
        mine.sort(key=lambda i: (list(MODELS).index(i.model), list(DATASETS).index(i.dataset)))
        if mine:
            panels = tuple(panel(instance, results) for instance in mine)
            columns = len({instance.dataset for instance in mine})
            if columns == 1:
                columns = len(panels)
            small = "small setting: 4,000 images, N 20, m 5, K 50, batch 64" if quick else "N 100, m 10, K 50, batch 64"
            drawn = "mean of the runs, band from the best to the worst"
            made.append(Figure(name, f"ZOFedHT, {title}", panels, columns, f"{small}; {drawn}"))
    return made


def panel(instance: Instance, results: Results) -> Panel:
    lines = tuple(line(method, *results[instance, method]) for method in METHODS)
    return Panel(instance.title, lines, "function evaluations (samples)", "training loss", log_y=True)


def line(method: str, choice: Choice, curves: Sequence[Curve]) -> Line:
    """The mean over seeds at the rounds that were evaluated, and from the best to the worst."""
    groups = list(zip(*(curve.history.points for curve in curves), strict=True))
    x = [float(np.mean([c.evaluations(p) for c, p in zip(curves, group, strict=True)])) for group in groups]
    values = np.array([[point.loss for point in group] for group in groups])
    mean, low, high = (tuple(v.tolist()) for v in (values.mean(axis=1), values.min(axis=1), values.max(axis=1)))
    style = list(METHODS).index(method)
    return Line(METHODS[method], tuple(x), mean, style, *((low, high) if len(curves) > 1 else ()))


def findings(results: Results) -> tuple[str, ...]:
    """Where the paper's claim, that ZOFedHT ends lowest, comes out, and where it does not."""
    instances = list(dict.fromkeys(instance for instance, _ in results))
    by_mean = {i: {m: mean_loss(results[i, m][1]) for m in METHODS} for i in instances}
    by_best = {i: {m: min(c.loss for c in results[i, m][1]) for m in METHODS} for i in instances}
    said = []
    for words, losses in (("mean", by_mean), ("best", by_best)):
        won = [i for i in instances if min(losses[i], key=losses[i].__getitem__) == "zofedht"]
        said.append(f"By the {words} of the runs ZOFedHT ends with the lowest training loss in {len(won)} of "
                    f"{len(instances)} instances.")  # fmt: skip
    for i in instances:
        winner = min(by_mean[i], key=by_mean[i].__getitem__)
        if winner != "zofedht":
            expected = " (the paper says so, too)" if (i.dataset, i.partition) == ("rcv1", "shards") else ""
            said.append(
                f"Not on {i.title}, {PARTITIONS[i.partition]}: {METHODS[winner]} {by_mean[i][winner]:.4g}, "
                f"ZOFedHT {by_mean[i]['zofedht']:.4g}{expected}."
            )
    edge = [m for (_, m), (choice, _) in results.items() if choice.rate in (min(RATES), max(RATES))]
    if edge:
        said.append(f"{len(edge)} of {len(results)} chosen rates lie at an edge of the paper's grid.")
    budget = max(c.evaluations(c.history.points[-1]) for _, curves in results.values() for c in curves)
    said.append(f"Budgets are equal within an instance; the largest is {human_count(budget)} evaluations.")
    return tuple(said)
