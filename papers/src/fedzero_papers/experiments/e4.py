"""E4 (001, figures 2 and 3, table 2): one perturbation for all images of a class, found without gradients.

Figure 2: ZO-AdaFL on the digit four, K ∈ {10, 50, 100} with m = 50, and m ∈ {10, 30, 50} with K = 50. Figure 3:
ZO-AdaFL, FedZO, DZOPA and ZONE-S on MNIST and on Fashion-MNIST. Table 2: success rate and distortion on Fashion-MNIST
after 600 rounds. The attack loss the paper draws is the first term of the objective alone (the one that "converges to
zero"); the whole objective, which is what the methods minimise, has a row of its own.

As in the paper: N 50, a pool of 200 images, 60 of them for each client, η .001 for ZO-AdaFL and FedZO alike, α .02,
β .9 and .99, ε 10⁻⁸, v0 10⁻⁵, forward differences on the unit sphere, c = 1. What it does not say, and what was chosen:

- The class of Fashion-MNIST: 4 as well, a coat. The victim is a CNN of ours. For it the lowest objective, found with
  gradients, has 64 % success at a distortion of 1.0, and on the digits 32 % at 6.5: the paper's 23 for ZO-AdaFL would
  cost more than not attacking at all (4.7). Its victim, or the scale of its logits, must have been another one.
- μ = 0.01: everything from 0.001 to 0.1 gave the same curve. Batches of 10: of 20 they cost more and helped little.
- Figure 3: m 10, and K 10 on Fashion-MNIST. On MNIST K 50 and 300 rounds: pixels there are nearly all black or white,
  where tanh is flat, and ten steps of .001 lead nowhere.
- DZOPA and ZONE-S make as many queries a round as the others (2 K m in all) and get the step size with the lowest
  objective after a few rounds of a search with another seed. FedZO's η is the paper's and is not searched for: six
  times as large, it led to where ZO-AdaFL is (62 % after 150 rounds). The paper compares a small step with a large one.
- Figure 2 is cut after 60 rounds: K 100 with m 50 takes 5,000 estimates a round.

Lines are means over the seeds, bands one standard error to each side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedzero.report.history import History
from fedzero_papers.experiments.contract import Experiment, Job, Options, Plan, gather, load
from fedzero_papers.experiments.curves import (
    Reading,
    averaged,
    by_query,
    by_round,
    loss,
    lowest,
    mean_and_error,
    repeated,
    standard_error,
)  # fmt: skip
from fedzero_papers.experiments.outcome import Figure, Outcome, Panel, Table

METHODS = {"zoadafl": "ZO-AdaFL", "fedzo": "FedZO", "dzopa": "DZOPA", "zones": "ZONE-S"}
SEARCHED = ("dzopa", "zones")
DATASETS = {"mnist": "MNIST, digit 4", "fashion": "Fashion-MNIST, coats"}
PAPER = {"zoadafl": (89.66, 23.23), "fedzo": (83.72, 8.95), "dzopa": (48.36, 8.60), "zones": (76.28, 44.82)}
"""Table 2: success in percent, and distortion."""
CLIENTS = 50
SEARCH_SEED = 0
PARTS = ("fig2", "fig3-mnist", "fig3-fashion")
SECONDS_AN_IMAGE, SECONDS_AN_ASK = 22e-6, 0.9e-3
"""On one core, about."""
BATCH = 10


@dataclass(frozen=True)
class Size:
    """One dataset of figure 3."""

    rounds: int
    steps: int
    """K"""
    cohort: int
    """m"""
    search: int
    """rounds of the search"""
    rates: tuple[float, ...]
    """step sizes searched"""

    @property
    def queries(self) -> int:
        """Of a round, whatever the method."""
        return 2 * self.steps * self.cohort


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting."""

    full: bool
    seeds: int
    sizes: Mapping[str, Size]
    rounds: int
    """of figure 2"""
    steps: tuple[int, ...]
    """K of figure 2, with the last m"""
    cohorts: tuple[int, ...]
    """m of figure 2, with the second K"""


FULL = Scale(
    full=True,
    seeds=3,
    sizes={"mnist": Size(300, 50, 10, 40, (0.3, 1.0, 3.0)), "fashion": Size(600, 10, 10, 60, (0.03, 0.1, 0.3))},
    rounds=60,
    steps=(10, 50, 100),
    cohorts=(10, 30, 50),
)
"""Fifty minutes on two cores, more than half of them for figure 2."""
QUICK = Scale(
    full=False,
    seeds=1,
    sizes={"mnist": Size(60, 10, 10, 20, (0.3, 1.0)), "fashion": Size(150, 10, 10, 30, (0.03, 0.1))},
    rounds=40,
    steps=(2, 10, 20),
    cohorts=(2, 6, 10),
)


def jobs(
    dataset: str, method: str, scale: Scale, size: Size, seeds: Sequence[int], folder: str, rate: float | None = None
) -> list[Job]:
    """Runs of `size.rounds` rounds; `rate` is that of the methods whose step size is searched for."""
    cohort, directions = size.cohort, 1
    algorithm: dict[str, Any] = {"local_steps": size.steps}
    if method in SEARCHED:
        cohort = CLIENTS if method == "dzopa" else 1
        directions = size.queries // cohort - 1
        algorithm = {"directions": directions, "rate": rate}
        folder = f"{folder}/rate-{rate:g}"
    task = {"dataset": dataset, "full": scale.full, "batch": BATCH}
    tables = {"algorithm": algorithm, "task": task, "federation": {"clients": CLIENTS, "cohort": cohort}}
    recipe, every = f"e4-{method}", max(1, size.rounds // 30)
    seconds = size.queries // (directions + 1) * SECONDS_AN_ASK + size.queries * BATCH * SECONDS_AN_IMAGE
    cost = 5 + size.rounds * seconds
    return [Job(f"{folder}/seed-{s}", load(recipe, s, size.rounds, every, **tables), cost) for s in seeds]


@dataclass(frozen=True)
class Result:
    """One method on one dataset, with all seeds."""

    runs: tuple[History, ...]
    rate: float | None = None
    """the step size that the search chose"""

    def end(self, reading: Reading) -> tuple[float, float]:
        """Mean and standard error at the end of the runs; of one run alone the error is 0."""
        return mean_and_error([reading(run.points[-1]) for run in self.runs])


Fig2 = dict[tuple[int, int], Result]
"""By (K, m)."""
Fig3 = dict[tuple[str, str], Result]
"""By (dataset, method)."""


def other(name: str, factor: float = 1.0) -> Reading:
    """Reads what the task measures beside the loss."""
    return lambda point: factor * point.others.get(name, math.nan)


attack_loss, distortion = other("attack loss"), other("distortion")
success, held_out = other("success", 100), other("held-out success", 100)


def plan(scale: Scale, options: Options) -> Plan:
    parts, seeds = options.chosen(PARTS), options.seeds(scale.seeds)
    datasets = [dataset for dataset in DATASETS if f"fig3-{dataset}" in parts]

    def comparison(d: str, m: str, rate: float | None = None) -> list[Job]:
        return jobs(d, m, scale, scale.sizes[d], seeds, f"fig3/{d}/{m}", rate)

    def search(d: str, m: str) -> list[Job]:
        short = replace(scale.sizes[d], rounds=scale.sizes[d].search)
        return [j for r in short.rates for j in jobs(d, m, scale, short, [SEARCH_SEED], f"fig3/{d}/{m}/search", r)]

    sweep = {
        (k, m): jobs("mnist", "zoadafl", scale, Size(scale.rounds, k, m, 0, ()), seeds, f"fig2/K-{k}-m-{m}")
        for k, m in pairs(scale)
        if "fig2" in parts
    }
    known = {(d, m): comparison(d, m) for d, m in product(datasets, METHODS) if m not in SEARCHED}
    trials = {(d, m): search(d, m) for d, m in product(datasets, SEARCHED)}
    later = [j for d, m in trials for j in comparison(d, m, scale.sizes[d].rates[0])]
    title = "step sizes of DZOPA and ZONE-S; all runs of ZO-AdaFL and FedZO"
    ahead = len(later), sum(j.cost for j in later)
    tried, swept, found = yield from gather(title, trials, sweep, known, ahead=ahead)
    rates = {(d, m): lowest(dict(zip(scale.sizes[d].rates, runs, strict=True))) for (d, m), runs in tried.items()}
    (chosen,) = yield from gather("DZOPA and ZONE-S", {key: comparison(*key, rate) for key, rate in rates.items()})

    fig2: Fig2 = {pair: Result(runs) for pair, runs in swept.items()}
    every = {**found, **chosen}
    fig3: Fig3 = {key: Result(every[key], rates.get(key)) for key in product(datasets, METHODS)}
    tables = (*([table2(fig3)] if fig3 else []), *([table_of_sweep(fig2)] if fig2 else []))
    figures = (*([figure2(fig2, scale)] if fig2 else []), *(figures3(fig3, scale) if fig3 else []))
    return Outcome(tables, figures, (*findings3(fig3), *findings2(fig2, scale), differences(scale)))


E4 = Experiment(
    "e4",
    "ZO-AdaFL, figures 2 and 3, table 2",
    "Universal black-box attack on a CNN: ZO-AdaFL against FedZO, DZOPA and ZONE-S, MNIST and Fashion-MNIST",
    ("3 min", "55 min"),
    plan, FULL, QUICK,
)  # fmt: skip


def pairs(scale: Scale) -> list[tuple[int, int]]:
    """(K, m) of figure 2, each once."""
    by_steps = [(steps, scale.cohorts[-1]) for steps in scale.steps]
    return list(dict.fromkeys([*by_steps, *((scale.steps[1], cohort) for cohort in scale.cohorts)]))


def panel(title: str, results: Mapping[str, Result], axis: str, y_words: str, y: Reading, first: int = 0) -> Panel:
    """One line for each label, the styles numbered from `first` on; bands are of one standard error to each side."""
    x = by_round if axis == "rounds" else by_query
    lines = [averaged(name, i, r.runs, x, y, standard_error) for i, (name, r) in enumerate(results.items(), first)]
    return Panel(title, tuple(lines), axis, y_words)


def figure2(swept: Fig2, scale: Scale) -> Figure:
    most, middle = scale.cohorts[-1], scale.steps[1]
    by_steps = {f"K {steps}, m {most}": swept[steps, most] for steps in scale.steps}
    by_cohort = {f"m {cohort}, K {middle}": swept[middle, cohort] for cohort in scale.cohorts}
    panels = tuple(
        panel(f"{what}, by {axis}", results, axis, "attack loss", attack_loss, first)
        for axis in ("rounds", "queries")
        for what, results, first in (("Local steps", by_steps, 0), ("Clients in a round", by_cohort, 3))
    )
    return Figure("fig2", "ZO-AdaFL, figure 2: universal attack on MNIST", panels, 2, setting(scale, swept))


def figures3(compared: Fig3, scale: Scale) -> list[Figure]:
    """Datasets across; downwards the attack loss by rounds and by queries, and the whole objective by rounds."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in compared))

    def of(dataset: str, axis: str, y_words: str, y: Reading) -> Panel:
        mine = {METHODS[m]: compared[dataset, m] for m in METHODS}
        return panel(DATASETS[dataset], mine, axis, y_words, y)

    rows: list[tuple[str, str, Reading]] = [
        ("rounds", "attack loss", attack_loss),
        ("queries", "attack loss", attack_loss),
        ("rounds", "objective (with distortion)", loss),
    ]
    panels = tuple(of(dataset, *row) for row in rows for dataset in datasets)
    words = setting(scale, compared)
    made = [Figure("fig3", "ZO-AdaFL, figure 3: four methods", panels, max(2, len(datasets)), words)]
    if "fashion" in datasets:
        both = of("fashion", "rounds", "success (%)", success), of("fashion", "rounds", "distortion", distortion)
        made.append(Figure("success", "ZO-AdaFL, table 2 as curves: Fashion-MNIST", both, 2, words))
    return made


def setting(scale: Scale, results: Fig2 | Fig3) -> str:
    small = "" if scale.full else "small setting: victim trained on 4,000 images; "
    return f"{small}N {CLIENTS}, 60 of 200 images a client, batch {BATCH}, c 1; {means(results)}"


def means(results: Fig2 | Fig3) -> str:
    return repeated(len(next(iter(results.values())).runs), " ± standard error")


def table2(compared: Fig3) -> Table:
    columns = ("dataset", "method", "rounds", "queries", "step size", "success (%)", "± success", "distortion",
               "± distortion", "held-out success (%)", "attack loss", "objective", "paper: success (%)",
               "paper: distortion")  # fmt: skip
    rows = tuple(
        (DATASETS[dataset], METHODS[method], r.runs[0].rounds, round(r.end(by_query)[0]), r.rate or 1e-3,
         *cells(r.end(success)), *cells(r.end(distortion)), r.end(held_out)[0],
         r.end(attack_loss)[0], r.end(loss)[0], *(PAPER[method] if dataset == "fashion" else (None, None)))
        for (dataset, method), r in compared.items()
    )  # fmt: skip
    title = f"At the end, {means(compared)}; the paper's table 2 is Fashion-MNIST after 600 rounds"
    return Table("table2", title, columns, rows)


def cells(value: tuple[float, float]) -> tuple[float, float | None]:
    """Mean and standard error; the error of one run is left out."""
    return value[0], value[1] or None


def table_of_sweep(swept: Fig2) -> Table:
    columns = ("K", "m", "rounds", "queries", "attack loss", "±", "objective", "distortion")
    rows = tuple(
        (steps, cohort, r.runs[0].rounds, round(r.end(by_query)[0]), *cells(r.end(attack_loss)), r.end(loss)[0],
         r.end(distortion)[0])
        for (steps, cohort), r in swept.items()
    )  # fmt: skip
    return Table("sweep", "ZO-AdaFL on MNIST, at the end of figure 2", columns, rows)


def findings3(compared: Fig3) -> list[str]:
    """Whether ZO-AdaFL fools the victim more often than FedZO, at which price, and who has the lowest losses."""
    found = []
    for dataset in dict.fromkeys(dataset for dataset, _ in compared):
        ada, fed = (compared[dataset, method] for method in ("zoadafl", "fedzo"))
        above = "is above" if ada.end(success)[0] > fed.end(success)[0] else "is NOT above"
        wins = sum(success(a.points[-1]) > success(f.points[-1]) for a, f in zip(ada.runs, fed.runs, strict=True))
        paper = "; the paper has 89.66 and 83.72 % after 600" if dataset == "fashion" else ""
        found.append(
            f"{DATASETS[dataset]}, after {ada.runs[0].rounds} rounds: ZO-AdaFL's success rate, "
            f"{shown(ada.end(success))} %, {above} FedZO's {shown(fed.end(success))} % "
            f"({wins} of {len(ada.runs)} seeds{paper}); distortion {shown(ada.end(distortion))} and "
            f"{shown(fed.end(distortion))}; on held-out images {shown(ada.end(held_out))} and "
            f"{shown(fed.end(held_out))} %."
        )
        for words, reading in (("attack loss", attack_loss), ("objective", loss)):
            ends = {METHODS[m]: compared[dataset, m].end(reading)[0] for m in METHODS}
            listed = ", ".join(f"{label} {ends[label]:.3g}" for label in sorted(ends, key=ends.__getitem__))
            found.append(f"{DATASETS[dataset]}, {words} at the end, lowest first: {listed}.")
    return found


def findings2(swept: Fig2, scale: Scale) -> list[str]:
    """Whether more local steps, and more clients, end lower, as the paper has it."""
    if not swept:
        return []
    rows = {
        "more local steps": [(f"K {k}", swept[k, scale.cohorts[-1]]) for k in scale.steps],
        "more clients in a round": [(f"m {m}", swept[scale.steps[1], m]) for m in scale.cohorts],
    }
    found = []
    for words, results in rows.items():
        ends = [r.end(attack_loss)[0] for _, r in results]
        verdict = "end lower" if ends == sorted(ends, reverse=True) else "do NOT always end lower"
        listed = ", ".join(f"{label} {shown(r.end(attack_loss))}" for label, r in results)
        found.append(f"ZO-AdaFL, {words} {verdict} (attack loss after {scale.rounds} rounds: {listed}).")
    return found


def shown(value: tuple[float, float]) -> str:
    """3.214 ± 0.041"""
    mean, error = value
    return f"{mean:.4g}" + (f" ± {error:.2g}" if error else "")


def differences(scale: Scale) -> str:
    small = "; the victim saw 4,000 images and all runs are short" if not scale.full else ""
    return (
        "Different from the paper: the victim is a CNN of ours, the class of Fashion-MNIST is 4 (a coat), and μ, K, m "
        "and the batch of figure 3 are ours, because the paper does not give them; DZOPA and ZONE-S have searched step "
        "sizes, FedZO and ZO-AdaFL the paper's (with six times that η FedZO did as well as ZO-AdaFL on Fashion-MNIST); "
        f"figure 2 has {scale.rounds} rounds{small}."
    )
