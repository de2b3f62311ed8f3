"""What a hostile server gets out of a site within the site's own limits: directional derivatives of one model.

    python -m bench.attacks.drain [--task mnist]

A site with the default terms (`deploy/site/terms`), in this process; orders are the bytes of the protocol. One client
is asked in one round after the other, along new directions, until the site refuses. The server

    pins        says that no round had an update
    renames     does the same again under the names of other runs, with other seeds
    nudges      says that every round had an update, one that moves the model by its last digits only
    both        nudges, under the names of three runs with other seeds

Digests tell the nudged models apart, the gradient does not. `turns` are of P directions, forward differences.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from bench.table import show

from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.site import Site
from fedzero.deploy.site.terms import Terms
from fedzero.engines.remote.messages import Exchange, Failed, Prepare, Replies, decode_answer, encode
from fedzero.model.updates import Seeded, encode_update
from fedzero.protocol.messages import encode_work
from fedzero.recipe import recipe as recipes

CLIENT, SEED = 0, 1
SERVERS = ("pins", "renames", "nudges", "both")
NUDGING = SERVERS[2:]
ROUNDS = 1_000_000
TASKS: dict[str, dict[str, Any]] = {
    "quadratic": {"kind": "quadratic", "dimension": 50},
    "mnist": {"kind": "mnist", "model": "mlp", "batch": 32},
}
RATE, NUDGE = 1e-3, 1e-2
"""η, and the first scalar of an update that nudges: the model moves by η/P·NUDGE along a direction."""


@dataclass(frozen=True)
class Drained:
    """measurements: distinct directions that were answered; refused: why the next were not; apart: the largest
    difference between a coordinate of the last model and of the first."""

    server: str
    turns: int
    measurements: int
    refused: str
    apart: float


def recipe_for(task: dict[str, Any], directions: int, seed: int = SEED) -> recipes.Recipe:
    table = {
        "name": "drain",
        "rounds": ROUNDS,
        "seed": seed,
        "evaluate_every": ROUNDS,
        "algorithm": {"kind": "decomfl", "rate": RATE, "directions": directions},
        "task": task,
        "federation": {"clients": 2, "cohort": 2, "server_model": False},
        "engine": {"kind": "local", "device": "cpu"},
    }
    return recipes.decode(table)


def opened(keep: Path, recipe: recipes.Recipe, terms: Terms, run: str = "run") -> Site:
    """A site that is prepared for a run; the limits of earlier runs hold, since they are on disk."""
    site = Site(Settings(device="cpu", terms=terms), keep)
    answer = decode_answer(site.answer(encode(Prepare(run, recipes.canonical(recipe), (CLIENT,)))))
    assert not isinstance(answer, Failed), answer.reason
    return site


def refusal(site: Site, round: int, updates: list[bytes]) -> str:
    """Ask for a turn; empty if it was answered."""
    order = Exchange(round, 0, {CLIENT: encode_work(round, 0, updates)})
    answer = decode_answer(site.answer(encode(order)))
    if isinstance(answer, Failed):
        return answer.reason
    assert isinstance(answer, Replies)
    return answer.failed.get(CLIENT, "")


def nudge(round: int, directions: int) -> list[bytes]:
    """The update of the round before: one scalar that is small, and zeros."""
    scalars = np.zeros(directions, "<f4")
    scalars[0] = NUDGE
    return [encode_update(Seeded(round - 1, scalars.tobytes()))] if round else []


def asked(site: Site, updates: Callable[[int], list[bytes]], most: int) -> Iterator[str]:
    """One refusal, or "", for each turn, up to the first refusal."""
    for round in range(most):
        why = refusal(site, round, updates(round))
        yield why
        if why:
            return


def drained(server: str, keep: Path, task: dict[str, Any], directions: int, terms: Terms, most: int) -> Drained:
    """Everything that one server gets, in `most` turns at most."""
    turns, why, apart = 0, "", 0.0
    for number in range(3 if server in ("renames", "both") else 1):
        site = opened(keep, recipe_for(task, directions, SEED + number), terms, f"run-{number}")
        base = site.run.replica.state.params.vector().clone()
        for why in asked(site, lambda r: nudge(r, directions) if server in NUDGING else [], most):
            turns += not why
        moved = float((site.run.replica.state.params.vector() - base).abs().max())
        apart = max(apart, moved)
        site.leave()
    return Drained(server, turns, turns * directions, why, apart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="quadratic")
    parser.add_argument("--directions", type=int, default=250)
    parser.add_argument("--most", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for server in SERVERS:
        with tempfile.TemporaryDirectory() as folder:
            one = drained(server, Path(folder), TASKS[given.task], given.directions, Terms(), given.most)
            found.append(one)
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    rows = [
        (one.server, f"{one.turns:,}", f"{one.measurements:,}", f"{one.apart:.1e}", one.refused[:60]) for one in found
    ]
    limits = msgspec.json.encode(msgspec.structs.asdict(Terms())).decode()
    header = ("server", "turns", "measurements", "moved by", "refused")
    show(f"A site under default terms, {given.task}\n{limits}", rows, header)


if __name__ == "__main__":
    main()
