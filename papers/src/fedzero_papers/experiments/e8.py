"""E8 (004, figures 1 and 2): ZOFedHT against ZOFedAvg-SGD and ZOFedAvg-GD, training loss by function evaluations.

Three models (logistic regression, SVM, MLP) on three datasets, divided at random (figure 1) and sorted by label, one
shard a client (figure 2); N 100, m 10 sampled with replacement, K 50, batch 64, μ 10⁻⁴, η_r = η₀/√(r+1).

1. For every instance and method η₀ (and α, for ZOFedHT) is chosen from the paper's grid: one seed, fewer rounds, the
   lowest training loss at the end.
2. The chosen setting is run with three other seeds. The paper shows the best of three runs; here the mean is drawn,
   with a band from the best to the worst, and the table has both.

The control, for linear models on images: (1 − α) I + α Q Qᵀ shortens the isotropic step by 1 − α, so SGD is run with
the rate η₀ (1 − α) of the ZOFedHT that was chosen, and with the best of a few rates below the grid.

The paper does not say how pixels are scaled, nor whether "sorted by label" means the two classes or the ten labels
behind them. Linear models on images are also run with standardised pixels, and sorted by the ten labels (the names of
those parts end in `-standard`, or have `labels` in the place of `shards`).

An evaluation is F(x; ξ) for one sample ξ: a query on a batch of 64 counts 64, one on all of a client's data as many as
it has. It is the only reading under which SGD and GD can share an axis. Rounds of GD cost more evaluations, so it gets
fewer: all methods of an instance have the same budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedzero.report.history import History
from fedzero_papers.experiments.contract import Experiment, Job, Options, Plan, gather, load
from fedzero_papers.experiments.curves import averaged, last_loss, loss, lowest, mean_and_error, repeated
from fedzero_papers.experiments.outcome import Figure, Line, Outcome, Panel, Table

SGD = "zofedavg-sgd"
METHODS = {"zofedht": "ZOFedHT", "zofedavg-sgd": "ZOFedAvg-SGD", "zofedavg-gd": "ZOFedAvg-GD"}
MODELS = {"logistic": "logistic regression", "svm": "SVM", "mlp": "MLP"}
DATASETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "rcv1": "RCV1 sample"}
PARTITIONS = {"iid": "IID", "shards": "sorted shards", "labels": "sorted by ten labels"}
SCALINGS = {"unit": "[0, 1]", "standard": "standardised"}
IMAGES, LINEAR_MODELS = ("mnist", "fashion"), ("logistic", "svm")
FIGURES = {"iid": ("fig1", "figure 1: IID"), "shards": ("fig2", "figure 2: sorted by label, one shard a client")}

RATES = (0.1, 1.0, 10.0)
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BELOW = (0.01, 0.02, 0.05)
"""Rates of the control, below the paper's grid."""
CONTROLS = {"shortened": "SGD, η₀ (1 − α)", "below": "SGD, best below the grid"}
BATCH, STEPS = 64, 50
TUNING_SEED = 0


@dataclass(frozen=True)
class Size:
    """Rounds of the two mini-batch methods: while tuning, and in the end. GD gets as many as see the same samples."""

    tuning: int
    final: int
    seconds: tuple[float, float, float]
    """of a mini-batch round's worth of samples on one core, about, for each method"""
    rates: tuple[float, ...] = RATES
    alphas: tuple[float, ...] = ALPHAS


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting."""

    samples: Mapping[str, int]
    """training samples of a dataset"""
    clients: int
    cohort: int
    seeds: int
    sizes: Mapping[tuple[str, str], Size]
    full: bool


LINEAR, PERCEPTRON = Size(50, 100, (0.18, 0.15, 0.07)), Size(10, 40, (0.6, 0.38, 0.15))
FULL = Scale(
    samples={"mnist": 60_000, "fashion": 60_000, "rcv1": 19_000},
    clients=100,
    cohort=10,
    seeds=3,
    sizes={
        **{(d, m): PERCEPTRON if m == "mlp" else LINEAR for d, m in product(("mnist", "fashion"), MODELS)},
        **{("rcv1", model): Size(12, 60, (0.4, 0.3, 0.12)) for model in ("logistic", "svm")},
        # 2.4 million parameters, four seconds a round: few rounds, and three of the nine α.
        ("rcv1", "mlp"): Size(7, 10, (4.0, 3.6, 1.5), alphas=(0.1, 0.5, 0.9)),
    },
    full=True,
)
"""Sized for two cores: the instances of RCV1 take half an hour, those of figures 1 and 2 two hours, the other readings
of linear models on images (`-standard`, `labels`) as much again."""
QUICK = Scale(
    samples={"mnist": 4_000},
    clients=20,
    cohort=5,
    seeds=1,
    sizes={
        ("mnist", "logistic"): Size(20, 80, (0.15, 0.1, 0.05), (0.1, 1.0), (0.1, 0.5, 0.9)),
        ("mnist", "mlp"): Size(10, 30, (0.45, 0.21, 0.1), (0.1, 1.0), (0.1, 0.5, 0.9)),
    },
    full=False,
)


@dataclass(frozen=True)
class Instance:
    """One panel of the figures."""

    dataset: str
    model: str
    partition: str
    scaling: str = "unit"

    @property
    def name(self) -> str:
        standard = "-standard" if self.scaling == "standard" else ""
        return f"{self.dataset}-{self.model}-{self.partition}{standard}"

    @property
    def controlled(self) -> bool:
        """Whether the control is run, which says what the length of a step does."""
        return self.dataset in IMAGES and self.model in LINEAR_MODELS

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


def instances(scale: Scale) -> list[Instance]:
    """Those of the figures, and the other readings of linear models on images."""
    drawn = [Instance(*pair, each) for pair, each in product(scale.sizes, FIGURES)]
    if not scale.full:
        return drawn
    read = [Instance(*each) for each in product(IMAGES, LINEAR_MODELS, PARTITIONS, SCALINGS)]
    return [*drawn, *(each for each in read if each not in drawn)]


def grid(method: str, size: Size) -> list[Choice]:
    if method != "zofedht":
        return [Choice(rate) for rate in size.rates]
    return [Choice(rate, alpha) for rate, alpha in product(size.rates, size.alphas)]


def samples_a_query(method: str, instance: Instance, scale: Scale) -> float:
    """How many samples a query looks at; shards of a dataset differ by one sample at most, so their mean will do."""
    shard = scale.samples[instance.dataset] / scale.clients
    return shard if method == "zofedavg-gd" else min(BATCH, shard)


def rounds(method: str, instance: Instance, scale: Scale, mini_batch_rounds: int) -> int:
    share = samples_a_query("zofedavg-sgd", instance, scale) / samples_a_query(method, instance, scale)
    return max(1, round(mini_batch_rounds * share))


def job(
    method: str, instance: Instance, scale: Scale, choice: Choice, seed: int, tuning: bool, control: str = ""
) -> Job:
    size = scale.sizes[instance.dataset, instance.model]
    budget = size.tuning if tuning else size.final
    count = rounds(method, instance, scale, budget)
    partition = {"kind": "iid"} if instance.partition == "iid" else {"kind": "shards", "per_client": 1}
    reading = {"scaling": instance.scaling, "sorted_by": "labels" if instance.partition == "labels" else "classes"}
    tables = {
        "algorithm": {"rate.start": choice.rate} | ({} if choice.alpha is None else {"alpha": choice.alpha}),
        "task": {"dataset": instance.dataset, "model": instance.model, "partition": partition, "full": scale.full}
        | reading,
        "federation": {"clients": scale.clients, "cohort": scale.cohort},
    }
    recipe = load(f"e8-{method}", seed, count, count if tuning else max(1, count // 20), **tables)
    folder = f"tuning/{choice.name}" if tuning else f"final/{choice.name}-seed-{seed}"
    part = f"control-{control}" if control else method
    return Job(f"{instance.name}/{part}/{folder}", recipe, budget * size.seconds[list(METHODS).index(method)])


@dataclass(frozen=True)
class Result:
    """What came out of one method on one instance."""

    choice: Choice
    runs: tuple[History, ...]
    samples: float
    """that a query looks at"""

    @property
    def losses(self) -> list[float]:
        return [last_loss(run) for run in self.runs]

    @property
    def mean(self) -> float:
        return float(np.mean(self.losses))

    @property
    def late(self) -> float:
        """The mean over the last quarter of the rounds: where clients hold one class each, the last value is luck."""
        late = [p.loss for run in self.runs for p in run.points if p.round >= 0.75 * run.rounds]
        return float(np.mean(late)) if np.isfinite(late).all() else math.inf

    @property
    def evaluations(self) -> float:
        return float(np.mean([run.queries for run in self.runs])) * self.samples


Results = dict[tuple[Instance, str], Result]


def plan(scale: Scale, options: Options) -> Plan:
    chosen = options.among(instances(scale))
    seeds, pairs = options.seeds(scale.seeds), list(product(chosen, METHODS))
    grids = {(i, m): grid(m, scale.sizes[i.dataset, i.model]) for i, m in pairs}
    trials = {(i, m): [job(m, i, scale, c, TUNING_SEED, True) for c in grids[i, m]] for i, m in pairs}
    later = [job(m, i, scale, grids[i, m][0], 1, False).cost * len(seeds) for i, m in pairs]
    controlled = [i for i in chosen if i.controlled]
    lower = {i: [job(SGD, i, scale, Choice(rate), TUNING_SEED, True, "below") for rate in BELOW] for i in controlled}
    tried, below = yield from gather("grid search", trials, lower, ahead=(len(pairs) * len(seeds), sum(later)))
    best = {pair: lowest(dict(zip(grids[pair], tried[pair], strict=True))) for pair in pairs}
    settings = {(i, "below"): lowest(dict(zip(map(Choice, BELOW), below[i], strict=True))) for i in controlled}
    settings |= {(i, "shortened"): shortened(best[i, "zofedht"]) for i in controlled}
    finals = {(i, m): [job(m, i, scale, best[i, m], seed, False) for seed in seeds] for i, m in pairs}
    others = {(i, c): [job(SGD, i, scale, s, seed, False, c) for seed in seeds] for (i, c), s in settings.items()}
    found, controls = yield from gather("chosen settings", finals, others)
    results = {(i, m): Result(best[i, m], runs, samples_a_query(m, i, scale)) for (i, m), runs in found.items()}
    control = {(i, c): Result(settings[i, c], r, samples_a_query(SGD, i, scale)) for (i, c), r in controls.items()}
    tables = (table(results), *([control_table(results, control)] if control else []))
    return Outcome(tables, tuple(figures(results, chosen, options.quick)), findings(results))


def shortened(chosen: Choice) -> Choice:
    """The rate whose step is as long as ZOFedHT's isotropic part."""
    return Choice(round(chosen.rate * (1 - (chosen.alpha or 0.0)), 6))


E8 = Experiment(
    "e8",
    "ZOFedHT, figures 1 and 2",
    "ZOFedHT against ZOFedAvg-SGD and -GD: training loss by function evaluations, three models, three datasets",
    ("3 min", "4 h"),
    plan, FULL, QUICK,
)  # fmt: skip


def words(i: Instance) -> tuple[str, str | None, str, str]:
    """An instance in a table."""
    return (
        DATASETS[i.dataset],
        SCALINGS[i.scaling] if i.dataset in IMAGES else None,
        MODELS[i.model],
        PARTITIONS[i.partition],
    )


def table(results: Results) -> Table:
    columns = ("dataset", "pixels", "model", "data", "method", "η₀", "α", "evaluations", "rounds", "loss at the start",
               "mean loss", "best loss", "worst loss", "last quarter")  # fmt: skip
    rows = tuple(
        (*words(i), METHODS[m], r.choice.rate, r.choice.alpha,
         round(r.evaluations), r.runs[0].rounds, r.runs[0].first_loss, r.mean, min(r.losses), max(r.losses), r.late)
        for (i, m), r in results.items()
    )  # fmt: skip
    seeds = len(next(iter(results.values())).runs)
    return Table("table", f"Training loss at the end, {seeds} seed{'s' if seeds > 1 else ''}", columns, rows)


def control_table(results: Results, control: Results) -> Table:
    """ZOFedHT beside SGD with its rate, with its isotropic step, and with a rate below the grid."""
    rows = []
    for i in dict.fromkeys(instance for instance, _ in control):
        each = [(METHODS[m], results[i, m]) for m in ("zofedht", SGD)]
        each += [(label, control[i, kind]) for kind, label in CONTROLS.items()]
        rows += [
            (*words(i), label, r.choice.rate, r.choice.alpha,
             *mean_and_error(r.losses), r.late)
            for label, r in each
        ]  # fmt: skip
    columns = ("dataset", "pixels", "model", "data", "method", "η₀", "α", "mean loss", "standard error", "last quarter")
    return Table("control", "What the length of a step does: training loss at the end", columns, tuple(rows))


def figures(results: Results, chosen: Sequence[Instance], quick: bool) -> list[Figure]:
    """One figure for each way to divide the data: models downwards, datasets across."""
    made = []
    for partition, (name, title) in FIGURES.items():
        mine = [each for each in chosen if (each.partition, each.scaling) == (partition, "unit")]
        mine.sort(key=lambda i: (list(MODELS).index(i.model), list(DATASETS).index(i.dataset)))
        if mine:
            across = len({instance.dataset for instance in mine})
            small = "small setting: 4,000 images, N 20, m 5, K 50, batch 64" if quick else "N 100, m 10, K 50, batch 64"
            drawn = repeated(len(results[mine[0], "zofedht"].runs), ", band from the best to the worst")
            panels = tuple(panel(instance, results) for instance in mine)
            columns = across if across > 1 else len(panels)
            made.append(Figure(name, f"ZOFedHT, {title}", panels, columns, f"{small}; {drawn}"))
    return made


def panel(instance: Instance, results: Results) -> Panel:
    lines = tuple(line(label, style, results[instance, m]) for style, (m, label) in enumerate(METHODS.items()))
    return Panel(instance.title, lines, "function evaluations (samples)", "training loss", log_y=True)


def line(label: str, style: int, result: Result) -> Line:
    return averaged(label, style, result.runs, lambda point: point.queries * result.samples, loss)


def findings(results: Results) -> tuple[str, ...]:
    """Where the paper's claim, that ZOFedHT ends lowest, comes out, and where it does not."""
    instances = list(dict.fromkeys(instance for instance, _ in results))
    readings: dict[str, Callable[[Result], float]] = {
        "mean of the last losses": lambda r: r.mean,
        "best run's last loss, as the paper has it": lambda r: min(r.losses),
        "mean over the last quarter of the rounds": lambda r: r.late,
    }
    found = []
    for words, read in readings.items():
        won = sum(first(instance, results, read) == "zofedht" for instance in instances)
        found.append(f"ZOFedHT has the lowest training loss in {won} of {len(instances)} instances, by the {words}.")
    for i in instances:
        winner = first(i, results, lambda r: r.mean)
        if winner != "zofedht":
            both = " and ".join(f"{METHODS[m]} {results[i, m].mean:.4g}" for m in (winner, "zofedht"))
            known = " (nor in the paper, late)" if (i.dataset, i.partition) == ("rcv1", "shards") else ""
            pixels = ", standardised" if i.scaling == "standard" else ""
            found.append(f"Not lowest by the mean{known} on {i.title}{pixels}, {PARTITIONS[i.partition]}: {both}.")
    at_edge = sum(result.choice.rate in (RATES[0], RATES[-1]) for result in results.values())
    found.append(f"{at_edge} of {len(results)} chosen rates lie at an edge of the paper's grid.")
    return tuple(found)


def first(instance: Instance, results: Results, read: Callable[[Result], float]) -> str:
    """The method with the lowest loss."""
    return min(METHODS, key=lambda method: read(results[instance, method]))
