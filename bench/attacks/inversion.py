"""What a server that sees P·R scalars of a client can draw of its rows, by setting: figures as JSON, and a picture.

    python -m bench.attacks.inversion                    digits of the package, 12 × 12; four minutes on a core
    python -m bench.attacks.inversion --data DIR         the same from the whole of MNIST

Clients hold 1 row (then 2 and 4). One client is attacked at a time, TARGETS in all. n = P·R measurements are taken as
a share of d. The metrics of a reconstruction: the relative error of the gradient; correlation of the digit found with
the client's own; how often, of a pool of POOL digits, the client's is the one most like what was found ("picked"); and
how often it is the one whose own scalars, computed by an attacker who has the whole pool, are nearest ("recognised").
*Chance* is the same computation on scalars of pure noise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from bench.attacks.digits import Digits, Perceptron, Prior, Rows, loaded, prior_of
from bench.attacks.fitting import fitted
from bench.attacks.picture import draw
from bench.attacks.seeing import Noised, Observe, alone, clipped, summed
from bench.attacks.servers import Seen, directions_of, honest, pinned, prepared, recipe_for
from bench.attacks.solving import FLOOR, Solver, correlation, correlations, error, identified, matched, nearest, rows_of
from bench.table import machine
from numpy.typing import NDArray

from fedzero.model.params import Params
from fedzero.oracles.contract import F32, F64
from fedzero.privacy.gaussian import sigma_of

TARGETS, OTHERS, POOL, P = 20, 15, 1000, 100
"""Clients that are attacked; those that are summed with one; digits to pick from; directions of a turn."""
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0, 1.25)
EPSILONS, DELTA = (8.0, 2.0, 1.0), 1e-5
SECRET = b"known to the clients and not to the server"


@dataclass(frozen=True)
class Figure:
    """One cell of the table: means over the clients that were attacked."""

    setting: str
    rows: int
    share: float
    measurements: int
    gradient_error: float | None
    correlation: float
    picked: float
    recognised: float | None


@dataclass(frozen=True)
class Scene:
    """A federation that was listened to. true: rows of clients (m, rows, p); labels: theirs, (m, rows); gradients:
    theirs, (m, d); pool: digits (POOL, p), of which the first are the first rows of the clients; pooled: their scalars,
    (turns, P, POOL)."""

    model: Perceptron
    Z: F32
    seen: Seen
    true: F64
    labels: NDArray[np.int64]
    gradients: F64
    pool: F64
    pooled: F64


def scene(task: Digits, turns: int, data: Path | None) -> Scene:
    """The hostile server's."""
    clients, rows = TARGETS + OTHERS, task.rows
    setup = prepared(recipe_for(task, clients, turns, P), data)
    model, seen = Perceptron.of(setup.problem.params), pinned(setup, turns)
    Z = directions_of(setup.problem.params, setup, seen.keys)
    shards = setup.problem.shards
    assert isinstance(shards, Rows)
    x, y = (part[: clients * rows].unflatten(0, (clients, rows)) for part in (shards.x.double(), shards.y))
    first = torch.cat([torch.arange(clients) * rows, torch.arange(clients * rows, POOL + clients * (rows - 1))])
    pool, labels = shards.x[first].double(), shards.y[first]
    pooled = Z.astype(np.float64) @ model.gradients(pool[:, None], labels[:, None]).numpy().T
    gradients = model.gradients(x, y).numpy()
    return Scene(model, Z, seen, x.numpy(), y.numpy(), gradients, pool.numpy(), pooled.reshape(turns, P, -1))


def in_private(task: Digits, turns: int, data: Path | None) -> Seen:
    """The same clients and model with directions of a secret; the server believes in those of the seed."""
    recipe = recipe_for(task, TARGETS + OTHERS, turns, P, private=True, server_model=False)
    return pinned(prepared(recipe, data, SECRET), turns)


def drift(at: Scene, last: Params) -> float:
    """How far the gradients of the targets moved between the first model and the last, relative."""
    rows = torch.from_numpy(at.true[:TARGETS])
    labels = torch.from_numpy(at.labels[:TARGETS])
    moved = Perceptron.of(last).gradients(rows, labels).numpy()
    return mean(error(moved[i], at.gradients[i]) for i in range(TARGETS))


def observed(seen: Seen, observe: Observe, turns: int, others: int) -> F64:
    """(n, TARGETS): what the attacker sees of each target, each with the same other clients."""
    rest = list(range(TARGETS, TARGETS + others))
    columns = [
        np.concatenate([observe(seen.values[turn][:, [target, *rest]]) for turn in range(turns)])
        for target in range(TARGETS)
    ]
    return np.stack(columns, 1)


@dataclass(frozen=True)
class Case:
    """A setting: what the attacker sees of each target (n, TARGETS), ρ, and from how many rows its digits come."""

    name: str
    seen: F64
    noise: float
    rows: int
    limit: float | None = None
    """the clip of a turn, if there is one"""


def cases(at: Scene, unknown: Seen, moved: Seen, turns: int) -> list[Case]:
    generator = np.random.default_rng(7)
    plain, clip = observed(at.seen, alone, turns, 0), float(np.median(np.linalg.norm(at.seen.values, axis=1)))
    both = observed(at.seen, summed, turns, OTHERS)
    without = at.seen.values[:turns, :, TARGETS:].sum(2).reshape(-1, 1)
    found = [
        Case("plain, honest server", observed(moved, alone, turns, 0), 0.01, 1),
        Case("plain, pinned model", plain, FLOOR, 1),
        Case("private directions", observed(unknown, alone, turns, 0), FLOOR, 1),
        Case("secure sum of 4", observed(at.seen, summed, turns, 3), FLOOR, 4),
        Case("secure sum of 16", both, FLOOR, 16),
        Case("secure sums of two sets", both - without, FLOOR, 1),
    ]
    for epsilon in EPSILONS:
        sigma = sigma_of(epsilon, turns, DELTA)
        noised = Noised(clip, sigma, generator)
        found.append(Case(f"DP, ε = {epsilon:g}", observed(at.seen, noised, turns, 0), sigma**2 * P, 1, clip))
    scale = float(np.sqrt((plain**2).mean()))
    pure = generator.normal(0, scale, plain.shape)
    return [*found, Case("chance", pure, sigma_of(EPSILONS[0], turns, DELTA) ** 2 * P, 1),
            Case("chance, 16 guesses", pure, FLOOR, 16)]  # fmt: skip


def found_in(at: Scene, case: Case, gradients: F64) -> list[F64]:
    """For each target the digits found; of several, those that are the most like it come first: a help to attacks."""
    digits = [rows_of(at.model, gradient, case.rows) for gradient in gradients]
    return [d[np.argsort(-correlations(at.true[i, :1], d)[0])] for i, d in enumerate(digits)]


def among(seen: F64, candidates: F64, rows: int) -> list[bool]:
    """Whether each target is among the `rows` candidates that a sum is made of: ridge regression on all candidates."""
    system = candidates.T @ candidates
    weights = np.linalg.solve(system + 1e-4 * np.trace(system) / len(system) * np.eye(len(system)), candidates.T @ seen)
    best = np.argsort(-weights, axis=0)[:rows]
    return [bool((best[:, i] == i).any()) for i in range(seen.shape[1])]


def figure(at: Scene, case: Case, share: float, gradients: F64, digits: list[F64]) -> Figure:
    n = len(case.seen)
    candidates = at.pooled[: n // P]
    if case.limit is not None:
        candidates = np.stack([clipped(turn, case.limit) for turn in candidates])
    candidates = candidates.reshape(n, -1)
    if case.rows > 1:
        known = among(case.seen, candidates, case.rows)
    else:
        known = [nearest(case.seen[:, i], candidates) == i for i in range(TARGETS)]
    every = range(TARGETS)
    return Figure(
        *(case.name, 1, share, n, mean(error(gradients[i], at.gradients[i]) for i in every)),
        mean(correlation(digits[i][0], at.true[i, 0]) for i in every),
        mean(identified(digits[i][0], i, at.pool) for i in every),
        mean(known),
    )


def one_row(
    at: Scene, unknown: Seen, moved: Seen, priors: Mapping[str, Prior], public: torch.Tensor
) -> tuple[list[Figure], dict[str, dict[float, F64]]]:
    """Figures of clients of one row, and what was found of the first four, by setting and share."""
    figures, shown, size = list[Figure](), dict[str, dict[float, F64]](), at.Z.shape[1]
    for words, prior in priors.items():
        solver = Solver(at.Z, prior)
        for share in SHARES:
            turns = max(1, round(share * size / P))
            for case in cases(at, unknown, moved, turns):
                if words == "minimum norm" and case.name != "plain, pinned model":
                    continue
                gradients = solver.solve(case.seen, case.noise)
                digits = found_in(at, case, gradients)
                name = case.name if words != "minimum norm" else f"{case.name}, no prior"
                case = Case(name, case.seen, case.noise, case.rows, case.limit)
                figures.append(figure(at, case, share, gradients, digits))
                shown.setdefault(name, {})[share] = np.stack([d[0] for d in digits[:4]])
    for share in SHARES[:4]:
        turns = max(1, round(share * size / P))
        seen, name = observed(at.seen, alone, turns, 0), "plain, rows fitted"
        digits = fitted(at.model, at.Z, seen, public)
        near = mean(correlation(digits[i], at.true[i, 0]) for i in range(TARGETS))
        picked = mean(identified(digits[i], i, at.pool) for i in range(TARGETS))
        figures.append(Figure(name, 1, share, len(seen), None, near, picked, None))
        shown.setdefault(name, {})[share] = digits[:4]
    return figures, shown


def several_rows(at: Scene, rows: int, prior: Prior) -> tuple[list[Figure], dict[float, F64]]:
    """Plain, pinned: each of a client's rows beside the candidate that is paired with it; and the first client's."""
    figures, shown, size, solver = list[Figure](), dict[float, F64](), at.Z.shape[1], Solver(at.Z, prior)
    for share in SHARES:
        turns = max(1, round(share * size / P))
        seen = observed(at.seen, alone, turns, 0)
        gradients, scores, hits = solver.solve(seen), list[float](), list[bool]()
        for target in range(TARGETS):
            digits = rows_of(at.model, gradients[target], rows)
            pairs = sorted(matched(digits, at.true[target]))
            scores += [correlation(digits[place], at.true[target, row]) for row, place in pairs]
            pool = np.concatenate([at.true[target], at.pool[TARGETS:]])
            hits += [identified(digits[place], row, pool) for row, place in pairs]
            if target == 0:
                shown[share] = np.stack([digits[place] for _, place in pairs])
        wrong = mean(error(gradients[i], at.gradients[i]) for i in range(TARGETS))
        figures.append(Figure("plain, pinned model", rows, share, len(seen), wrong, mean(scores), mean(hits), None))
    return figures, shown


def table(figures: list[Figure], of: Callable[[Figure], float | None]) -> str:
    """By setting and rows, one column for each share."""
    lines = ["| rows | setting | " + " | ".join(f"{share:g} d" for share in SHARES) + " |", "|---" * 8 + "|"]
    for rows, name in dict.fromkeys((f.rows, f.setting) for f in figures):
        cells = {f.share: of(f) for f in figures if (f.rows, f.setting) == (rows, name)}
        values = [cells.get(share) for share in SHARES]
        lines.append(f"| {rows} | {name} | " + " | ".join("" if v is None else f"{v:.2f}" for v in values) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--side", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/inversion.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/figures/inversion.png"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = given.hidden * (given.side**2 + 1) + 10 * (given.hidden + 1)
    turns = round(SHARES[-1] * size / P)
    public = loaded(given.side, given.data is not None, given.data)[2][:1000]
    tasks = {n: Digits(side=given.side, hidden=given.hidden, rows=n, full=given.data is not None) for n in (1, 2, 4)}
    at, unknown = scene(tasks[1], turns, given.data), in_private(tasks[1], turns, given.data)
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_for(tasks[1], TARGETS + OTHERS, turns, P, rate=0.01)
        moved, last = honest(recipe, turns, Path(folder) / "run", given.data)
    known = prior_of(at.model, public)
    priors = {"minimum norm": prior_of(at.model, None), "public digits": known}
    figures, by_name = one_row(at, unknown, moved, priors, public)
    pictures = [(name, at.true[:4, 0], shown) for name, shown in by_name.items()]
    for rows in (2, 4):
        several = scene(tasks[rows], turns, given.data)
        more, found = several_rows(several, rows, prior_of(several.model, public))
        figures += more
        pictures.append((f"plain, {rows} rows", several.true[0], found))
    content = {"machine": machine(), "d": size, "pool": POOL, "drift": drift(at, last)}
    content["figures"] = [asdict(each) for each in figures]
    given.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    draw(pictures, SHARES, given.picture)
    for words, of in (
        ("relative error of the gradient", lambda f: f.gradient_error),
        ("correlation", lambda f: f.correlation),
        ("picked", lambda f: f.picked),
        ("recognised", lambda f: f.recognised),
    ):
        print(f"\n{words}; d = {size}\n{table(figures, of)}")
    print(machine())


if __name__ == "__main__":
    main()
