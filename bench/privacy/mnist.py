"""Private training at the level of clients, on MNIST: fedzero beside DP-FedSGD, DP-FedAvg and two controls.

    python -m bench.privacy.mnist --data DIR --out OUT --device cuda --jobs 8
    python -m bench.privacy.mnist --data DIR --out OUT --methods fedzero --directions 200 --epsilon 2 --seeds 0

1,000 clients have 60 digits each, IID; each takes part in a round by a coin of its own, 50 on average (q = 0.05); 300
rounds; a perceptron 784-64-10. Every vector of a client has the norm 1, σ comes from `fedzero.privacy.accounting` and
is the same for all methods. ε = inf means no noise: fedzero then runs without [privacy], its clients clip every vector
to one small norm, and the cohort has 50 clients exactly.

The rate of a method, and the rule of its step, are chosen for each ε and P: the best of `GRID` on the digits of 100
clients who are kept from training with another seed. fedzero has the choice of the control `gradient`, whose vectors
are its own without the error of differences. Trials are not part of ε. `--rate` skips them: rms steps of that rate.

Parts that are done are only read if the command is repeated with the same OUT; `--seconds` stops before a new one.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.privacy import peers
from bench.table import machine, show

import fedzero
from fedzero.privacy.accounting import sigma_of
from fedzero.report.units import human_bytes
from fedzero.tasks import images

METHODS = ("fedzero", "gradient", "sketch", "fedsgd", "fedavg")
GRID: Mapping[str, Sequence[tuple[str, float]]] = {
    "projected": tuple(("rms", rate) for rate in (0.006, 0.012, 0.024)),
    "whole": (*(("rms", rate) for rate in (0.003, 0.006, 0.012)), *(("momentum", rate) for rate in (0.01, 0.03, 0.1))),
}
Q, KEPT, TUNING_SEED = 0.05, 0.1, 1000
NORM = 1e-3
"""Of vectors without noise: far below the norm of a vector of slopes, so that all are clipped. rms steps have no
scale."""


@dataclass(frozen=True)
class Part:
    """One run. kept: a trial, tested on the digits of clients who are kept from training."""

    method: str
    directions: int
    epsilon: float
    seed: int
    rule: str = ""
    rate: float = 0.0
    kept: bool = False

    @property
    def setting(self) -> str:
        across = f"-P{self.directions}" if self.directions else ""
        return f"{self.method}{across}-eps{self.epsilon:g}"

    @property
    def name(self) -> str:
        return f"tune/{self.setting}-{self.rule}-{self.rate:g}" if self.kept else f"{self.setting}-seed{self.seed}"


@dataclass(frozen=True)
class Common:
    """What all parts of an OUT share. data: None takes the 4,000 digits of the package."""

    data: str | None
    out: str
    clients: int
    rounds: int
    delta: float
    distribution: str
    difference: str
    device: str


@lru_cache(maxsize=1)
def digits(data: str | None, device: str) -> tuple[torch.Tensor, ...]:
    """x, y to train on, x, y to test on; rows are flat."""
    found = images.load("mnist", data is not None, None if data is None else Path(data))
    train, test = (
        images.tensors(x, y, torch.device(device))
        for x, y in ((found.train_x, found.train_y), (found.test_x, found.test_y))
    )
    return train[0].flatten(1), train[1], test[0].flatten(1), test[1]


def dealt(common: Common, part: Part) -> peers.Clients:
    """As many rows for each client, by the seed; a trial is tested on those of the last clients."""
    x, y, test_x, test_y = digits(common.data, common.device)
    each = len(x) // common.clients
    order = np.random.default_rng(part.seed).permutation(len(x))[: each * common.clients]
    places = torch.from_numpy(order.reshape(common.clients, each)).to(x.device)
    if not part.kept:
        return peers.Clients(x[places], y[places], (test_x, test_y))
    first = common.clients - max(1, round(KEPT * common.clients))
    apart = places[first:].flatten()
    return peers.Clients(x[places[:first]], y[places[:first]], (x[apart], y[apart]))


def played(common: Common, part: Part, sigma: float) -> dict[str, Any]:
    """The accuracy of a part, its bytes and seconds; kept as a file."""
    torch.set_num_threads(1)
    began, clients = time.perf_counter(), dealt(common, part)
    if part.method == "fedzero":
        found = scalars(common, part, sigma, clients)
    else:
        settings = peers.Settings(
            part.method, part.rule, part.rate, common.rounds, Q, sigma, part.directions, part.seed
        )
        size = peers.flat(peers.perceptron(clients.x.shape[-1], 0)).numel()
        up, all_weights = peers.bytes_up(settings, size), 4 * size
        # The model comes down in every turn: directions are signs of a seed, but the steps of others are not few.
        down = min(all_weights, up / Q) if part.directions else all_weights
        found = {
            "accuracy": peers.trained(settings, clients),
            "bytes_up_turn": up,
            "bytes_up": up * Q * common.rounds,
            "bytes_down": down * Q * common.rounds,
        }
    found |= {"sigma": sigma, "seconds": time.perf_counter() - began, "machine": machine(), "part": asdict(part)}
    file = file_of(common, part)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1))
    return found


def scalars(common: Common, part: Part, sigma: float, clients: peers.Clients) -> dict[str, Any]:
    """fedzero itself."""
    how: dict[str, Any] = {"privacy": {"sigma": sigma, "delta": common.delta}}
    if not sigma:
        how = {"filters": [{"kind": "clip", "norm": NORM}]}
    run = fedzero.train(
        peers.perceptron(clients.x.shape[-1], part.seed).to(common.device),
        list(zip(clients.x, clients.y, strict=True)),
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": fedzero.accuracy},
        test=clients.test,
        method=method(common, part),
        cohort=round(Q * len(clients)),
        batch=clients.x.shape[1],
        rounds=common.rounds,
        evaluate_every=common.rounds,
        seed=part.seed,
        out=Path(common.out) / "runs" / part.name,
        engine={"kind": "local", "device": common.device},
        progress=False,
        **how,
    )
    summary = run.summary
    return {
        "accuracy": summary.final_accuracy,
        "bytes_up_turn": summary.bytes_up_per_client / (Q * common.rounds),
        "bytes_up": summary.bytes_up_per_client,
        "bytes_down": summary.bytes_down_per_client,
        "epsilon": summary.epsilon,
        "ledger_head": summary.ledger_head,
    }


def method(common: Common, part: Part) -> dict[str, Any]:
    last = {"kind": "piecewise", "points": [[0, part.rate], [common.rounds, part.rate / common.rounds]]}
    return {
        "kind": "decomfl", "rate": last, "step": "rms", "directions": part.directions, "radius": 1e-3,
        "distribution": common.distribution, "difference": common.difference,
    }  # fmt: skip


def file_of(common: Common, part: Part) -> Path:
    return Path(common.out) / f"{part.name}.json"


def grid(method: str) -> Sequence[tuple[str, float]]:
    return GRID["projected" if method in peers.PROJECTED else "whole"]


def trials(part: Part) -> list[Part]:
    """What the rate of a part is chosen from; of all seeds of a setting the same."""
    method = "gradient" if part.method == "fedzero" else part.method
    asked = replace(part, method=method, seed=TUNING_SEED, kept=True)
    return [replace(asked, rule=rule, rate=rate) for rule, rate in grid(method)]


def chosen(common: Common, part: Part) -> Part:
    """With the best rate of its trials, which are all there."""

    def reached(trial: Part) -> float:
        return float(json.loads(file_of(common, trial).read_text())["accuracy"])

    best = max(trials(part), key=reached)
    return replace(part, rule=best.rule, rate=best.rate)


def wanted(given: argparse.Namespace) -> list[Part]:
    found = []
    for name in given.methods:
        across = given.directions if name in (*peers.PROJECTED, "fedzero") else (0,)
        found += [Part(name, P, e, s) for P in across for e in given.epsilon for s in given.seeds]
    return found


def carry_out(given: argparse.Namespace, common: Common, parts: Sequence[Part], sigmas: Mapping[float, float]) -> bool:
    """All parts that are not done, several at a time; False: the time is over."""
    todo = [part for part in dict.fromkeys(parts) if not file_of(common, part).exists()]
    if given.jobs == 1:
        return all(_one(given, common, part, sigmas) for part in todo)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        return _several(given, pool, [partial(played, common, part, sigmas[part.epsilon]) for part in todo])


def _one(given: argparse.Namespace, common: Common, part: Part, sigmas: Mapping[float, float]) -> bool:
    if time.monotonic() > given.until:
        return False
    _say(played(common, part, sigmas[part.epsilon]))
    return True


def _several(given: argparse.Namespace, pool: Executor, calls: Sequence[Callable[[], dict[str, Any]]]) -> bool:
    left, running = list(calls), set[Future[dict[str, Any]]]()
    while running or (left and time.monotonic() < given.until):
        while left and len(running) < given.jobs and time.monotonic() < given.until:
            running.add(pool.submit(left.pop(0)))
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            _say(future.result())
    return not left


def _say(found: Mapping[str, Any]) -> None:
    part = Part(**found["part"])
    print(f"{part.name}: {100 * found['accuracy']:.2f} %, {found['seconds']:.0f} s", flush=True)


def results(common: Common) -> list[dict[str, Any]]:
    """All runs that are there, trials left out."""
    found = [json.loads(file.read_text()) for file in sorted(Path(common.out).glob("*-seed*.json"))]
    return sorted(found, key=lambda one: (METHODS.index(one["part"]["method"]), one["part"]["directions"]))


def compared(found: Sequence[Mapping[str, Any]], epsilons: Sequence[float]) -> Iterator[tuple[str, ...]]:
    """By method and P: means and deviations over seeds for each ε, the choices, and bytes."""
    settings = dict.fromkeys((one["part"]["method"], one["part"]["directions"]) for one in found)
    for name, P in settings:
        mine = [one for one in found if (one["part"]["method"], one["part"]["directions"]) == (name, P)]
        cells = []
        for epsilon in epsilons:
            some = [one for one in mine if one["part"]["epsilon"] == epsilon]
            if not some:
                cells.append("")
                continue
            reached = [100 * one["accuracy"] for one in some]
            spread = f" ± {statistics.stdev(reached):.2f}" if len(reached) > 1 else ""
            cells.append(f"{statistics.fmean(reached):.2f}{spread} ({some[0]['part']['rate']:g})")
        up, down = (statistics.fmean(one[way] for one in mine) for way in ("bytes_up", "bytes_down"))
        turn = statistics.fmean(one["bytes_up_turn"] for one in mine)
        yield f"{name}, P {P}" if P else name, *cells, f"{turn:,.0f} B", human_bytes(up), human_bytes(down)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        return lambda text: [kind(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the data folder; default: the digits of the package")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", type=numbers(str), default=list(METHODS), help=",".join(METHODS))
    parser.add_argument("--directions", type=numbers(int), default=[50, 200, 1000], help="P")
    parser.add_argument("--epsilon", type=numbers(float), default=[1.0, 2.0, 4.0, 8.0, math.inf])
    parser.add_argument("--seeds", type=numbers(int), default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rate", type=float, help="of rms steps, instead of trials")
    parser.add_argument("--distribution", default="rademacher", help="of fedzero's directions")
    parser.add_argument("--difference", default="central", choices=("central", "forward"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes, which share the device")
    parser.add_argument("--seconds", type=float, default=480, help="begin no part after so many, to be repeated")
    given = parser.parse_args(argv)
    if unknown := set(given.methods) - set(METHODS):
        parser.error(f"--methods: {', '.join(sorted(unknown))}")
    given.until = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def settled(given: argparse.Namespace, common: Common) -> dict[float, float]:
    """σ by ε, kept in OUT; parts of other settings are refused there."""
    file = given.out / "settings.json"
    mine = asdict(common) | {"out": "", "device": ""}
    before = json.loads(file.read_text()) if file.exists() else {"common": mine, "sigma": {}}
    if before["common"] != mine:
        raise SystemExit(f"{given.out} has parts of other settings: give another --out")
    known = {float(epsilon): sigma for epsilon, sigma in before["sigma"].items()} | {math.inf: 0.0}
    for epsilon in given.epsilon:
        if epsilon not in known:
            known[epsilon] = sigma_of(epsilon, Q, given.rounds, given.delta)
    kept = {str(epsilon): sigma for epsilon, sigma in known.items()}
    file.write_text(json.dumps({"common": mine, "sigma": kept}, indent=1))
    return known


def main(argv: Sequence[str] | None = None) -> None:
    given = parsed(argv)
    common = Common(
        given.data, str(given.out), given.clients, given.rounds, given.delta, given.distribution, given.difference,
        given.device,
    )  # fmt: skip
    sigmas, parts = settled(given, common), wanted(given)
    if given.rate is None:
        complete = carry_out(given, common, [trial for part in parts for trial in trials(part)], sigmas)
        parts = [chosen(common, part) for part in parts] if complete else []
    else:
        complete, parts = True, [replace(part, rule="rms", rate=given.rate) for part in parts]
    if not (complete and carry_out(given, common, parts, sigmas)):
        print("stopped; the same command goes on from here", flush=True)
    found = results(common)
    (given.out / "results.json").write_text(json.dumps(found, indent=1))
    if found:
        header = ("", *(f"ε = {e:g}" for e in given.epsilon), "up, a turn", "up, a client", "down, a client")
        title = f"MNIST, {given.clients:,} clients, {given.rounds} rounds: accuracy, % (rate)"
        show(title, list(compared(found, given.epsilon)), header)


if __name__ == "__main__":
    main()
