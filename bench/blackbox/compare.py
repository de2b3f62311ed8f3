"""fedzero.minimise beside optimisers of black boxes: ten functions, five parties whose optima differ, equal queries.

    pip install cma nevergrad optuna botorch     peers, no dependencies of ours; one that is missing is left out
    python -m bench.blackbox.compare                     what is missing of the table is run, then the table is printed
    python -m bench.blackbox.compare --dimensions 5 --queries 200 --functions sphere ackley --optimisers minimise cma

Functions are of the BBOB kind, within [−5, 5]^d. Party i has f(R_i (x − o_i)): a rotation and an optimum of its own.
What is minimised is the mean F. All begin in the middle.

*Query*: one evaluation of one party's function. Peers are fed with the mean of the five: a point costs every party one.
*Exchange*: the parties get something and all send something back. Of a peer: points down, values up; as many points at
a time as the method knows at once (CMA-ES and DE a generation, L-BFGS-B a point with its d differences, TuRBO a batch
of ten and its first 2 d; NGOpt and TPE one). Of `minimise`: a round; in `minimise-4` the queries are spread over four
rounds. `fzoos`, what `minimise` did before, has two a round, and one at either end, for F.
*Gap*: F without noise at the point returned, minus the lowest known: of L-BFGS-B with exact gradients from many starts
(kept in --out as well), or of any run. *Own time*: of the processor, outside the functions.

With --noise S every value has gaussian noise of deviation S times F(middle) − lowest known. Every run is kept as a
line of --out as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from bench.table import machine
from numpy.typing import NDArray
from scipy.optimize import differential_evolution, minimize
from torch import Tensor

import fedzero
from fedzero import api

Floats = NDArray[np.float64]
PARTIES, SIDE, SPREAD, STARTS, TURBO_BATCH = 5, 5.0, 0.5, 30, 10
"""SPREAD: deviation of a coordinate of a party's optimum from that of all; STARTS: for the lowest known value."""


def powers(z: Tensor, low: float, high: float) -> Tensor:
    return torch.linspace(low, high, z.shape[-1], dtype=z.dtype)


def rosenbrock(z: Tensor) -> Tensor:
    y = max(1.0, math.sqrt(z.shape[-1]) / 8) * z + 1
    return (100 * (y[..., :-1] ** 2 - y[..., 1:]) ** 2 + (y[..., :-1] - 1) ** 2).sum(-1)


def ackley(z: Tensor) -> Tensor:
    near, wave = z.square().mean(-1).sqrt(), (2 * math.pi * z).cos().mean(-1)
    return 20 - 20 * (-0.2 * near).exp() + math.e - wave.exp()


def griewank(z: Tensor) -> Tensor:
    y = 10 * z
    return y.square().sum(-1) / 4000 + 1 - (y / powers(y, 1, y.shape[-1]).sqrt()).cos().prod(-1)


def schaffer(z: Tensor) -> Tensor:
    s = (z[..., :-1].square() + z[..., 1:].square()).sqrt()
    return (s.sqrt() * (1 + (50 * s**0.2).sin().square())).mean(-1).square()


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sphere": lambda z: z.square().sum(-1),
    "ellipsoid": lambda z: (10 ** powers(z, 0, 6) * z.square()).sum(-1),
    "rosenbrock": rosenbrock,
    "rastrigin": lambda z: (10 - 10 * (2 * math.pi * z).cos() + z.square()).sum(-1),
    "ackley": ackley,
    "griewank": griewank,
    "bent-cigar": lambda z: z[..., 0].square() + 1e6 * z[..., 1:].square().sum(-1),
    "discus": lambda z: 1e6 * z[..., 0].square() + z[..., 1:].square().sum(-1),
    "different-powers": lambda z: (z.abs() ** powers(z, 2, 6)).sum(-1).sqrt(),
    "schaffer": schaffer,
}
"""z (…, d) → (…); 0 at 0."""


class Problem:
    """Five parties with one function, each rotated and shifted by itself."""

    def __init__(self, name: str, d: int, seed: int) -> None:
        self.d, self.seed, self.f = d, seed, FUNCTIONS[name]
        random = np.random.default_rng([seed, d, list(FUNCTIONS).index(name)])
        centre = random.uniform(-3, 3, d)
        self.optima = torch.from_numpy(centre + SPREAD * random.standard_normal((PARTIES, d)))
        self.rotations = torch.from_numpy(np.linalg.qr(random.standard_normal((PARTIES, d, d)))[0])

    def parties(self, x: Tensor) -> Tensor:
        """x (n, d) → values (n, parties)"""
        return self.f(torch.einsum("pij,npj->npi", self.rotations, x[:, None] - self.optima))

    def party(self, i: int, x: Floats) -> float:
        return float(self.f(self.rotations[i] @ (torch.from_numpy(x) - self.optima[i])))

    def true(self, x: Floats) -> float:
        return float(self.parties(torch.from_numpy(x)[None]).mean())

    def lowest(self) -> dict[str, float]:
        """By L-BFGS-B with exact gradients from around the middle, the parties' optima, and points at random."""
        random = np.random.default_rng([self.seed, 1])
        near = np.concatenate([np.zeros((1, self.d)), self.optima.numpy(), self.optima.numpy().mean(0)[None]])
        starts = np.concatenate([near + 0.01, random.uniform(-SIDE, SIDE, (STARTS, self.d))]).clip(-SIDE, SIDE)

        def slope(x: Floats) -> tuple[float, Floats]:
            point = torch.from_numpy(x)[None].requires_grad_()
            value = self.parties(point).mean()
            value.backward()
            return value.item(), point.grad.nan_to_num()[0].numpy()

        options = {"maxiter": 2000, "maxfun": 4000}
        bounds = [(-SIDE, SIDE)] * self.d
        found = [minimize(slope, start, jac=True, bounds=bounds, options=options).fun for start in starts]
        return {"value": float(min(found))}


class SpentError(Exception):
    """The queries are used up."""


class Mean:
    """The mean of the parties' noisy values, counted; remembers the lowest seen."""

    def __init__(self, problem: Problem, queries: int, noise: float) -> None:
        self.problem, self.left, self.noise = problem, queries, noise
        self.random = np.random.default_rng([problem.seed, 2])
        self.queries = self.exchanges = 0
        self.seconds, self.best = 0.0, (math.inf, np.zeros(problem.d))

    def noisy(self, values: Floats) -> Floats:
        return values + self.noise * self.random.standard_normal(values.shape)

    def ask(self, points: Floats) -> Floats:
        """(n, d) → (n,); what the budget does not cover is not asked, and ends the run."""
        began = time.process_time()
        asked = np.asarray(points, np.float64)[: self.left].clip(-SIDE, SIDE)
        self.left, self.queries = self.left - len(asked), self.queries + len(asked)
        self.exchanges += bool(len(asked))
        values = self.noisy(self.problem.parties(torch.from_numpy(asked)).numpy()).mean(1)
        for x, value in zip(asked, values, strict=True):
            self.best = min(self.best, (float(value), x), key=lambda pair: pair[0])
        self.seconds += time.process_time() - began
        if len(asked) < len(points):
            raise SpentError
        return values


# Optimisers: use up `box`; return the point they recommend, or None for the one with the lowest value seen.


def ours(box: Mean, rounds: int | None = None, fzoos: bool = False) -> Floats:
    """fedzero.minimise as it is."""

    def party(i: int) -> Callable[[Floats], float]:
        def f(x: Floats) -> float:
            began = time.process_time()
            value = float(box.noisy(np.asarray(box.problem.party(i, x))))
            box.seconds += time.process_time() - began
            return value

        return f

    boxes = [api.Function(party(i), f"party {i}") for i in range(PARTIES)]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nobody needs these ledgers to be durable
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        found = fedzero.minimise(
            boxes,
            [(-SIDE, SIDE)] * box.problem.d,
            rounds=10_000 if fzoos else rounds,
            algorithm=api.shared_fzoos(box.problem.d) if fzoos else None,
            budget=box.left,
            seed=box.problem.seed,
            together=False,
            out=Path(folder) / "run",
        )
    box.queries, box.exchanges = math.ceil(found.queries / PARTIES), 2 * found.rounds + 2 if fzoos else found.rounds
    return found.x


def cma_es(box: Mean) -> Floats | None:
    """Begins anew at random where it stops by itself."""
    import cma

    random, start, seed = np.random.default_rng(box.problem.seed), np.zeros(box.problem.d), box.problem.seed
    while True:
        options = {"bounds": [-SIDE, SIDE], "seed": seed, "verbose": -9}
        strategy = cma.CMAEvolutionStrategy(start, 0.2 * 2 * SIDE, options)
        while not strategy.stop():
            points = strategy.ask()
            try:
                strategy.tell(points, box.ask(np.array(points)).tolist())
            except SpentError:
                return np.asarray(strategy.result.xfavorite) if box.noise else None
        start, seed = random.uniform(-SIDE, SIDE, box.problem.d), seed + 1


def evolution(box: Mean) -> None:
    """d members (at least five), a generation at a time."""
    d = box.problem.d
    differential_evolution(
        lambda x: box.ask(x.T),
        [(-SIDE, SIDE)] * d,
        popsize=1,
        maxiter=10**6,
        tol=0,
        rng=box.problem.seed,
        polish=False,
        updating="deferred",
        vectorized=True,
        x0=np.zeros(d),
    )


def differences(box: Mean) -> None:
    """L-BFGS-B with forward differences (of 0.1 where there is noise); begins anew at random where it stops."""
    random, start, d = np.random.default_rng(box.problem.seed), np.zeros(box.problem.d), box.problem.d

    def slope(x: Floats) -> tuple[float, Floats]:
        steps = np.where(x > 0, -1, 1) * (0.1 if box.noise else 1e-7)
        values = box.ask(np.concatenate([x[None], x + np.diag(steps)]))
        return float(values[0]), (values[1:] - values[0]) / steps

    while True:
        minimize(slope, start, jac=True, bounds=[(-SIDE, SIDE)] * d, options={"maxiter": 10**6, "maxfun": 10**6})
        start = random.uniform(-SIDE, SIDE, d)


def ngopt(box: Mean) -> Floats:
    import nevergrad

    points = nevergrad.p.Array(init=np.zeros(box.problem.d)).set_bounds(-SIDE, SIDE)
    points.random_state.seed(box.problem.seed)
    optimiser = nevergrad.optimizers.NGOpt(points, budget=box.left, num_workers=1)
    while box.left:
        asked = optimiser.ask()
        optimiser.tell(asked, float(box.ask(asked.value[None])[0]))
    return np.asarray(optimiser.recommend().value)


def tpe(box: Mean) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = [f"x{i}" for i in range(box.problem.d)]
    space = {name: optuna.distributions.FloatDistribution(-SIDE, SIDE) for name in names}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=box.problem.seed))
    study.enqueue_trial(dict.fromkeys(names, 0.0))
    while box.left:
        trial = study.ask(space)
        study.tell(trial, float(box.ask(np.array([[trial.params[name] for name in names]]))[0]))


def trust_region(box: Mean) -> None:
    from bench.blackbox.turbo import turbo

    middle = np.full(box.problem.d, 0.5)
    turbo(lambda u: box.ask(2 * SIDE * u - SIDE), middle, TURBO_BATCH, box.problem.seed)


OPTIMISERS: dict[str, tuple[str, Callable[[Mean], Floats | None]]] = {
    "minimise": ("fedzero", ours),
    "minimise-4": ("fedzero", partial(ours, rounds=4)),
    "fzoos": ("fedzero", partial(ours, fzoos=True)),
    "cma": ("cma", cma_es),
    "de": ("scipy", evolution),
    "l-bfgs-b": ("scipy", differences),
    "ngopt": ("nevergrad", ngopt),
    "tpe": ("optuna", tpe),
    "turbo": ("botorch", trust_region),
}
"""Which package it needs, and how it is run."""


class Kept:
    """Lines of JSON, one for every finished run and every lowest value, by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {entry["key"]: entry for entry in map(json.loads, lines)}

    def get(self, key: str, make: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The entry, and whether it was made just now."""
        if key in self.entries:
            return self.entries[key], False
        entry = self.entries[key] = {"key": key} | make()
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        return entry, True


def run(optimiser: str, problem: Problem, queries: int, noise: float) -> dict[str, Any]:
    box = Mean(problem, queries, noise)
    began, x = time.process_time(), None
    with suppress(SpentError):
        x = OPTIMISERS[optimiser][1](box)
    own = time.process_time() - began - box.seconds
    value = problem.true(box.best[1] if x is None else x)
    return {"value": value, "queries": box.queries, "exchanges": box.exchanges, "seconds": own}


def table(found: dict[tuple[str, str], list[dict[str, Any]]], names: list[str], optimisers: list[str]) -> None:
    """Gaps, mean ± standard error over seeds, the lowest bold; then what they cost."""
    print("| | " + " | ".join(optimisers) + " |\n|---" + "|---" * len(optimisers) + "|")
    gaps = {key: [run["gap"] for run in runs] for key, runs in found.items()}
    firsts = dict.fromkeys(optimisers, 0)
    for name in names:
        there = {o: gaps[name, o] for o in optimisers if (name, o) in gaps}
        first = min(there, key=lambda o: mean(there[o]))
        firsts[first] += 1
        cells = []
        for o in optimisers:
            text = f"{mean(there[o]):.3g}" if o in there else "–"
            if len(there.get(o, ())) > 1:
                text += f" ± {stdev(there[o]) / math.sqrt(len(there[o])):.1g}"
            cells.append(f"**{text}**" if o == first else text)
        print(f"| {name} | " + " | ".join(cells) + " |")
    for title, figure in (
        ("queries a party", lambda r: r["queries"]),
        ("exchanges", lambda r: r["exchanges"]),
        ("own ms a query of a party", lambda r: 1000 * r["seconds"] / r["queries"] / PARTIES),
    ):
        of = {o: [figure(r) for name in names for r in found.get((name, o), ())] for o in optimisers}
        print(f"| *{title}* | " + " | ".join(f"{mean(of[o]):.3g}" if of[o] else "–" for o in optimisers) + " |")
    print("| *lowest on* | " + " | ".join(str(firsts[o]) for o in optimisers) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimensions", nargs="*", type=int, default=[20])
    parser.add_argument("--functions", nargs="*", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--optimisers", nargs="*", choices=OPTIMISERS, default=list(OPTIMISERS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--queries", type=int, default=500, help="of a party")
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--table", action="store_true", help="run nothing: print what is kept")
    parser.add_argument("--out", type=Path, default=Path("runs/blackbox.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for absent in [o for o in given.optimisers if not given.table and find_spec(OPTIMISERS[o][0]) is None]:
        print(f"{absent} is left out: {OPTIMISERS[absent][0]} is not installed")
        given.optimisers.remove(absent)
    if "minimise" in given.optimisers and not given.table:
        run("minimise", Problem("sphere", 2, 0), 60, 0.0)  # kernels are compiled, modules imported
    kept = Kept(given.out)
    for d in given.dimensions:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        wanted = [(s, n, o) for s in given.seeds for n in given.functions for o in given.optimisers]
        for number, (seed, name, optimiser) in enumerate(wanted, 1):
            key = f"d {d} / {name} / {seed} / {given.queries} queries / noise {given.noise:g} / {optimiser}"
            if given.table and key not in kept.entries:
                continue
            problem = Problem(name, d, seed)
            lowest = kept.get(f"d {d} / {name} / {seed}", problem.lowest)[0]["value"]
            noise = given.noise * (problem.true(np.zeros(d)) - lowest)
            entry, fresh = kept.get(key, partial(run, optimiser, problem, given.queries, noise))
            found.setdefault((name, optimiser), []).append(entry | {"seed": seed})
            if fresh:
                text = f"{entry['value'] - lowest:.4g} above the lowest, {entry['exchanges']} exchanges"
                print(f"{number}/{len(wanted)} {key}: {text}, {entry['seconds']:.1f} s", flush=True)
        for (name, _), runs in found.items():
            for each in runs:
                same = f"d {d} / {name} / {each['seed']}"
                lowest = min(e["value"] for k, e in kept.entries.items() if k == same or k.startswith(same + " / "))
                each["gap"] = each["value"] - lowest
        print(f"\nd = {d}, {given.queries} queries a party, noise {given.noise:g}, seeds {given.seeds} · {machine()}\n")
        table(found, given.functions, given.optimisers)


if __name__ == "__main__":
    main()
