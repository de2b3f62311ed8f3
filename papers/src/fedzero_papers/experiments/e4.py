"""E4 (001, figures 2 and 3, table 2): one perturbation for all images of a class, found without gradients.

Figure 2: ZO-AdaFL on the digit four, K ∈ {10, 50, 100} with m = 50, and m ∈ {10, 30, 50} with K = 50. Figure 3:
ZO-AdaFL, FedZO, DZOPA and ZONE-S on MNIST and on Fashion-MNIST. Table 2: success rate and distortion on Fashion-MNIST
after 600 rounds. The attack loss the paper draws is the first term of the objective alone (the one that "converges to
zero"); the whole objective, which is what the methods minimise, has a row of its own.

As in the paper: N 50, a pool of 200 images, 60 of them for each client, η .001 for ZO-AdaFL and FedZO alike, α .02,
β .9 and .99, ε 10⁻⁸, v0 10⁻⁵, forward differences on the unit sphere. What it does not say, and what was chosen:

- c, the weight of the distortion: 0.1. Parts `c-1` and `c-0.3` run table 2 with other weights.
- The class of Fashion-MNIST: 4 as well, a coat. The victim is a CNN of ours.
- μ = 0.01: everything from 0.001 to 0.1 gave the same curve. Batches of 10: of 20 they cost more and helped little.
- Figure 3: m 10, and K 10 on Fashion-MNIST. On MNIST K 50 and 300 rounds: pixels there are nearly all black or white,
  where tanh is flat, and ten steps of .001 lead nowhere.
- DZOPA and ZONE-S make as many queries a round as the others (2 K m in all) and get the step size with the lowest
  objective after a few rounds of a search with another seed. FedZO's η is the paper's and is not searched for; a
  control has six times that.
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

METHODS = {"zoadafl": "ZO-AdaFL", "fedzo": "FedZO", "fedzo-6": "FedZO, 6 η", "dzopa": "DZOPA", "zones": "ZONE-S"}
SEARCHED = ("dzopa", "zones")
FASTER = 6e-3
"""η of the control "FedZO, 6 η": does the adaptive step help, or a longer one?"""
DATASETS = {"mnist": "MNIST, digit 4", "fashion": "Fashion-MNIST, coats"}
PAPER = {"zoadafl": (89.66, 23.23), "fedzo": (83.72, 8.95), "dzopa": (48.36, 8.60), "zones": (76.28, 44.82)}
"""Table 2: success in percent, and distortion."""
CLIENTS = 50
SEARCH_SEED = 0
WEIGHT = 0.1
"""c"""
SECONDS_AN_IMAGE, SECONDS_AN_ASK = 22e-6, 0.9e-3
"""On one core, about."""
BATCH = 10


Setting = tuple[str, float]
"""Dataset and c."""


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
    weights: tuple[float, ...] = ()
    """other c, on Fashion-MNIST"""

    @property
    def parts(self) -> dict[str, Setting]:
        """Of figure 3 and table 2."""
        datasets = {f"fig3-{dataset}": (dataset, WEIGHT) for dataset in DATASETS}
        return datasets | {f"c-{weight:g}": ("fashion", weight) for weight in self.weights}


FULL = Scale(
    full=True,
    seeds=3,
    sizes={"mnist": Size(300, 50, 10, 40, (0.3, 1.0, 3.0)), "fashion": Size(600, 10, 10, 60, (0.03, 0.1, 0.3))},
    rounds=60,
    steps=(10, 50, 100),
    cohorts=(10, 30, 50),
    weights=(1.0, 0.3),
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
    setting: Setting,
    method: str,
    scale: Scale,
    size: Size,
    seeds: Sequence[int],
    folder: str,
    rate: float | None = None,
) -> list[Job]:
    """Runs of `size.rounds` rounds; `rate` is that of the methods whose step size is searched for."""
    dataset, weight = setting
    cohort, directions = size.cohort, 1
    algorithm: dict[str, Any] = {"local_steps": size.steps}
    if method in SEARCHED:
        cohort = CLIENTS if method == "dzopa" else 1
        directions = size.queries // cohort - 1
        algorithm = {"directions": directions, "rate": rate}
        folder = f"{folder}/rate-{rate:g}"
    task = {"dataset": dataset, "full": scale.full, "batch": BATCH, "weight": weight}
    tables = {"algorithm": algorithm, "task": task, "federation": {"clients": CLIENTS, "cohort": cohort}}
    if method == "fedzo-6":
        algorithm |= {"rate": FASTER}
    recipe, every = f"e4-{method.removesuffix('-6')}", max(1, size.rounds // 30)
    seconds = size.queries // (directions + 1) * SECONDS_AN_ASK + size.queries * BATCH * SECONDS_AN_IMAGE
    cost = 5 + size.rounds * seconds
    return [Job(f"{folder}/seed-{s}", load(recipe, s, size.rounds, every, **tables), cost) for s in seeds]


@dataclass(frozen=True)
class Result:
    """One method on one dataset, with all seeds."""

    runs: tuple[History, ...]
    rate: float | None = None
    """where it is not the paper's"""

    def end(self, reading: Reading) -> tuple[float, float]:
        """Mean and standard error at the end of the runs; of one run alone the error is 0."""
        return mean_and_error([reading(run.points[-1]) for run in self.runs])


Fig2 = dict[tuple[int, int], Result]
"""By (K, m)."""
Fig3 = dict[tuple[Setting, str], Result]
"""By (dataset, c) and method."""


def other(name: str, factor: float = 1.0) -> Reading:
    """Reads what the task measures beside the loss."""
    return lambda point: factor * point.others.get(name, math.nan)


attack_loss, distortion = other("attack loss"), other("distortion")
success, held_out = other("success", 100), other("held-out success", 100)


def plan(scale: Scale, options: Options) -> Plan:
    parts, seeds = options.chosen(("fig2", *scale.parts)), options.seeds(scale.seeds)
    settings = {setting: part for part, setting in scale.parts.items() if part in parts}

    def comparison(s: Setting, m: str, rate: float | None = None) -> list[Job]:
        return jobs(s, m, scale, scale.sizes[s[0]], seeds, f"{settings[s]}/{m}", rate)

    def search(s: Setting, m: str) -> list[Job]:
        short = replace(scale.sizes[s[0]], rounds=scale.sizes[s[0]].search)
        return [j for r in short.rates for j in jobs(s, m, scale, short, [SEARCH_SEED], f"{settings[s]}/{m}/search", r)]

    sweep = {
        (k, m): jobs(("mnist", WEIGHT), "zoadafl", scale, Size(scale.rounds, k, m, 0, ()), seeds, f"fig2/K-{k}-m-{m}")
        for k, m in pairs(scale)
        if "fig2" in parts
    }
    known = {(s, m): comparison(s, m) for s, m in product(settings, METHODS) if m not in SEARCHED}
    trials = {(s, m): search(s, m) for s, m in product(settings, SEARCHED)}
    later = [j for s, m in trials for j in comparison(s, m, scale.sizes[s[0]].rates[0])]
    title = "step sizes of DZOPA and ZONE-S; all runs of ZO-AdaFL and FedZO"
    ahead = len(later), sum(j.cost for j in later)
    tried, swept, found = yield from gather(title, trials, sweep, known, ahead=ahead)
    rates = {(s, m): lowest(dict(zip(scale.sizes[s[0]].rates, runs, strict=True))) for (s, m), runs in tried.items()}
    (chosen,) = yield from gather("DZOPA and ZONE-S", {key: comparison(*key, rate) for key, rate in rates.items()})

    fig2: Fig2 = {pair: Result(runs) for pair, runs in swept.items()}
    every = {**found, **chosen}
    rates |= {(setting, "fedzo-6"): FASTER for setting in settings}
    fig3: Fig3 = {key: Result(every[key], rates.get(key)) for key in product(settings, METHODS)}
    drawn = {key: result for key, result in fig3.items() if key[0][1] == WEIGHT}
    tables = (*([table2(fig3)] if fig3 else []), *([table_of_sweep(fig2)] if fig2 else []))
    figures = (*([figure2(fig2, scale)] if fig2 else []), *(figures3(drawn, scale) if drawn else []))
    return Outcome(tables, figures, (*findings3(fig3), *findings2(fig2, scale), differences(scale)))


E4 = Experiment(
    "e4",
    "ZO-AdaFL, figures 2 and 3, table 2",
    "Universal black-box attack on a CNN: ZO-AdaFL against FedZO, DZOPA and ZONE-S, MNIST and Fashion-MNIST",
    ("3 min", "95 min"),
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
    datasets = list(dict.fromkeys(dataset for (dataset, _), _ in compared))

    def of(dataset: str, axis: str, y_words: str, y: Reading) -> Panel:
        mine = {METHODS[m]: compared[(dataset, WEIGHT), m] for m in METHODS}
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
    return f"{small}N {CLIENTS}, 60 of 200 images a client, batch {BATCH}, c {WEIGHT:g}; {means(results)}"


def means(results: Fig2 | Fig3) -> str:
    return repeated(len(next(iter(results.values())).runs), " ± standard error")


def table2(compared: Fig3) -> Table:
    columns = ("dataset", "c", "method", "rounds", "queries", "step size", "success (%)", "± success", "distortion",
               "± distortion", "held-out success (%)", "attack loss", "objective", "paper: success (%)",
               "paper: distortion")  # fmt: skip
    rows = tuple(
        (DATASETS[dataset], weight, METHODS[method], r.runs[0].rounds, round(r.end(by_query)[0]), r.rate or 1e-3,
         *cells(r.end(success)), *cells(r.end(distortion)), r.end(held_out)[0],
         r.end(attack_loss)[0], r.end(loss)[0], *published(dataset, method))
        for ((dataset, weight), method), r in compared.items()
    )  # fmt: skip
    title = f"At the end, {means(compared)}; the paper's table 2 is Fashion-MNIST after 600 rounds"
    return Table("table2", title, columns, rows)


def published(dataset: str, method: str) -> tuple[float | None, float | None]:
    """Success and distortion in the paper's table 2."""
    return PAPER.get(method, (None, None)) if dataset == "fashion" else (None, None)


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
    for dataset, weight in dict.fromkeys(setting for setting, _ in compared):
        mine = {method: compared[(dataset, weight), method] for method in METHODS}
        ada, fed, where = mine["zoadafl"], mine["fedzo"], f"{DATASETS[dataset]}, c {weight:g}"
        above = "is above" if ada.end(success)[0] > fed.end(success)[0] else "is NOT above"
        wins = sum(success(a.points[-1]) > success(f.points[-1]) for a, f in zip(ada.runs, fed.runs, strict=True))
        paper = "; the paper has 89.66 and 83.72 % after 600" if dataset == "fashion" else ""
        found.append(
            f"{where}, after {ada.runs[0].rounds} rounds: ZO-AdaFL's success rate, "
            f"{shown(ada.end(success))} %, {above} FedZO's {shown(fed.end(success))} % "
            f"({wins} of {len(ada.runs)} seeds{paper}); distortion {shown(ada.end(distortion))} and "
            f"{shown(fed.end(distortion))}; on held-out images {shown(ada.end(held_out))} and "
            f"{shown(fed.end(held_out))} %."
        )
        for words, reading in (("attack loss", attack_loss), ("objective", loss)):
            ends = {METHODS[m]: result.end(reading)[0] for m, result in mine.items()}
            listed = ", ".join(f"{label} {ends[label]:.3g}" for label in sorted(ends, key=ends.__getitem__))
            found.append(f"{where}, {words} at the end, lowest first: {listed}.")
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
        f"Not said in the paper, and chosen: c is {WEIGHT:g}, the victim is a CNN of ours, the class of Fashion-MNIST "
        "is 4 (a coat), and μ, K, m and the batch of figure 3; DZOPA and ZONE-S have searched step "
        "sizes, FedZO and ZO-AdaFL the paper's, and FedZO beside it six times that η; "
        f"figure 2 has {scale.rounds} rounds{small}."
    )
