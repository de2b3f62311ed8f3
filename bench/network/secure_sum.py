"""A round with the secure sum beside a plain one: sites as processes of this machine, over pipes, with their journals.

`python -m bench.network.secure_sum [SITES …]`: for every number of sites the same recipe is played plain, with the
secure sum, and plain again; the round that makes the keys is shown apart. `quadratic`: clients that compute next to
nothing, so the time is that of messages, disks and the sum. `digits`: the demo's perceptron, with data and all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from bench.recipe import quadratic
from bench.table import show

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote.correspondence import Correspondence
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.pipe import Pipes
from fedzero.ledger.records import Round
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs.progress import Silent

ROUNDS, WARM, P = 24, 4, 10
"""Rounds of a run, and those at its beginning that do not count: keys are made, replicas are prepared."""
WANTED = 2.0
SUM = {"gathering": {"kind": "secure-sum"}}


@dataclass(frozen=True)
class Program:
    """A site in a process of its own, with a folder for what it keeps."""

    folder: Path

    def __call__(self, name: str) -> Site:
        return Site(Settings(device="cpu", threads=1), self.folder / name)


class Stopwatch(Silent):
    def __init__(self) -> None:
        self.seconds, self.up, self.down, self._since = list[float](), list[int](), list[int](), time.perf_counter()

    def begin(self, *_: object) -> None:
        self._since = time.perf_counter()

    def round(self, record: Round) -> None:
        assert not record.refused, record.refused
        self.seconds.append(time.perf_counter() - self._since)
        self.up.append(record.bytes_up)
        self.down.append(record.bytes_down)
        self._since = time.perf_counter()


def recipe_of(work: str, sites: int, **more: Any) -> recipes.Recipe:
    shared = {"engine": {"merge": False, "device": "cpu"}, **more}
    federation = {"clients": sites, "cohort": sites, "bound": 0.0}  # the same in both: nothing reads each reply
    if work == "quadratic":
        return quadratic("nothing-to-do", ROUNDS, sites, sites, P, federation=federation, **shared)
    table = msgspec.to_builtins(recipes.load("demo", rounds=ROUNDS, evaluate_every=ROUNDS))
    return recipes.decode(table | shared | {"federation": federation})


def played(recipe: recipes.Recipe, sites: int) -> Stopwatch:
    names, watch = [f"site-{number}" for number in range(sites)], Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        pipes = Pipes(names, Program(Path(folder)))
        try:
            service = Service(Correspondence(pipes), lambda: names, deadline=600.0, minimum=sites, patience=600.0)
            run_at_sites(recipe, Path(folder) / "run", Environment(), watch, service)
        finally:
            pipes.close()
    return watch


def row(work: str, sites: int) -> tuple[str, ...]:
    before = played(recipe_of(work, sites), sites)
    secure = played(recipe_of(work, sites, **SUM), sites)
    after = played(recipe_of(work, sites), sites)
    plain = statistics.median(before.seconds[WARM:] + after.seconds[WARM:])
    each = statistics.median(secure.seconds[WARM:])
    apart = [statistics.median(watch.seconds[WARM:]) for watch in (before, after)]
    return (
        work,
        str(sites),
        " ".join(f"{1e3 * found:.0f}" for found in apart),
        f"{1e3 * each:.0f}",
        f"{each / plain:.2f}",
        f"{WANTED:g}" if sites == 100 else "",
        f"{1e3 * secure.seconds[0]:.0f}",
        f"{secure.up[-1] / sites:,.0f}",
        f"{secure.down[-1] / sites:,.0f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", nargs="*", type=int, default=[7, 100])
    parser.add_argument("--work", nargs="+", default=["quadratic", "digits"])
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = [row(work, sites) for work in given.work for sites in given.sites]
    title = f"A round in ms, medians of {ROUNDS - WARM}, P = {P}; bytes of a site in a round"
    header = ("work", "sites", "plain", "secure sum", "ratio", "at most", "with the keys", "B up", "B down")
    show(title, rows, header)


if __name__ == "__main__":
    main()
