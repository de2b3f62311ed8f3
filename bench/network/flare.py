"""What a network costs: rounds over NVIDIA FLARE with an objective that costs next to nothing.

Everything is there that a real run has: a FLARE server, a process for every site, mutual TLS, job processes, the
supervisor with its ledger (here, in this process). The model is a quadratic in ten dimensions, so what is timed is the
way there and back. Parts, each with a federation of its own: `python -m bench.network.flare [PART …]`.

rounds   seconds of a round and bytes of a site-round for 2, 3 and 8 sites, beside the same rounds in one process
steady   threads and memory of all processes over 5,000 rounds
sst2     what 3,000 rounds of SST-2 would take: 8 sites, two of them asked in each round
idle     bytes a second of a site that is not asked anything
many     64 sites, 200 rounds, one site killed and started again: seconds, memory of everything, bytes, who was missing

Bytes on the wire are those of all connections of the server's port, as the kernel counts them (`ss -ti`: TLS, framing,
heartbeats and the supervisor's own session are in; IP and TCP headers are not).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from bench.table import show

from fedzero.deploy.flare import launch as federating
from fedzero.deploy.flare import processes
from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.epochs import Epochs, WaitPolicy
from fedzero.deploy.flare.forking import fork_server
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.site import Settings
from fedzero.engines.remote.engine import Service
from fedzero.ledger.records import Round
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe, decode
from fedzero.runs import session
from fedzero.runs.progress import Silent

P, WARM, WANTED = 10, 50, 0.03
"""directions; rounds at the start of an epoch that are not counted; seconds of a round at 3 sites at most"""
STEADY_SITES, STEADY_ROUNDS, LOOK_EVERY = 3, 5000, 1000
SST2_SITES, SST2_ASKED, SST2_ROUNDS, SST2_PLAYED, IDLE, IDLE_SITES = 8, 2, 3000, 600, 10.0, 4
"""SST2_PLAYED rounds are played, the rest is multiplied; IDLE: seconds in which nobody is asked anything"""
LIMIT, LIMIT_SITE, LIMIT_ROUND = 120.0, 8.0, 0.06
"""Seconds that a federation may take, and for each site and round of it more; then it is ended."""
MANY_SITES, MANY_ROUNDS, KILLED, STARTED, RETURN = 64, 200, 100, 120, 20.0
"""KILLED, STARTED: rounds after which a site is killed, and started again; RETURN: seconds without a round after that,
in which it connects."""


def recipe_of(clients: int, cohort: int, rounds: int) -> Recipe:
    table = {
        "name": "nothing-to-do",
        "rounds": rounds,
        "evaluate_every": rounds,
        "seed": 1,
        "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": P},
        "task": {"kind": "quadratic", "dimension": 10},
        "federation": {"clients": clients, "cohort": cohort},
        "engine": {"merge": False, "device": "cpu"},
    }
    return decode(table)


def port_bytes(port: int) -> int:
    """Sent and received so far by the server's end of every connection of its port."""
    command = ["ss", "-tinH", "state", "established", "sport", "=", f":{port}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    return sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", found)))


Look = dict[str, tuple[int, float]]
"""Of each process: threads, resident memory in MB."""


@dataclass
class Figures:
    """What one federation showed. Rounds of the warm-up are in `looks` only."""

    seconds: list[float] = field(default_factory=list)
    encoded: int = 0
    """bytes, both ways, as the ledger has them"""
    wire: int = 0
    turns: int = 0
    turns_so_far: int = 0
    """before a site is killed: connections that close take their counts with them"""
    refused: int = 0
    epochs: int = 0
    looks: dict[int, Look] = field(default_factory=dict)
    began: float = 0.0
    """seconds from the first process to the first round"""
    memory: float = 0.0
    """proportional share of memory of all processes, MB"""
    missing: list[int] = field(default_factory=list)
    """rounds in which somebody was refused"""
    idle: float = 0.0
    """bytes a second of a site that is not asked anything: signs of life, and looks for tasks that never come"""


class Stopwatch(Silent):
    """Looks on. What it does itself is not in the figures: the clock stops while it looks."""

    def __init__(
        self,
        rounds: int,
        wire: Callable[[], int],
        look: Callable[[], Look],
        idle: float = 0.0,
        at: Mapping[int, Callable[[Figures], None]] = MappingProxyType({}),
    ):
        """at: what is done after a round, by its number."""
        self.rounds, self.wire, self.look, self.idle, self.at, self.figures = rounds, wire, look, idle, at, Figures()
        self._since = 0.0

    def round(self, record: Round) -> None:
        took, done, figures = time.perf_counter() - self._since, record.round + 1, self.figures
        if done > WARM:
            figures.seconds.append(took)
            figures.encoded += record.bytes_up + record.bytes_down
            figures.turns += len(record.cohort)
            figures.refused += len(record.refused)
            figures.missing += [done] * bool(record.refused)
        if done == WARM:
            if self.idle:
                before = self.wire()
                time.sleep(self.idle)
                figures.idle = (self.wire() - before) / self.idle
            figures.wire = -self.wire()
        if done == self.rounds and not figures.turns_so_far:
            figures.wire += self.wire()
        if done in self.at:
            self.at[done](figures)
        if done % LOOK_EVERY == 0:
            figures.looks[done] = self.look()
        self._since = time.perf_counter()


def federation(
    sites: int, asked: int, rounds: int, idle: float = 0.0, killed: tuple[int, int] | None = None, forked: bool = False
) -> Figures:
    """Provision, start, play, end. What is started here is ended here, whatever happens.

    killed: rounds after which the first site is killed, and started again; forked: sites share what their processes
    for a job import, as with `fedzero federate`.
    """
    for reason in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(reason, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT + LIMIT_SITE * sites + LIMIT_ROUND * rounds, 10.0)
    names = [f"site-{number}" for number in range(1, sites + 1)]
    started: list[subprocess.Popen[bytes]] = []
    folders = tempfile.TemporaryDirectory(prefix="fedzero-bench-", ignore_cleanup_errors=True)
    with fork_server() if forked else nullcontext({}) as address, folders as root:
        folder = Path(root)
        port = kits.provision(folder / "project", names, port=federating.free_port()).port
        epochs = Epochs(folder / "project", WaitPolicy(minimum=sites, report=_complain))
        variables, began = {"OMP_NUM_THREADS": "1", **address}, time.perf_counter()

        def first_round(figures: Figures) -> None:
            figures.began = time.perf_counter() - began

        def memory(figures: Figures) -> None:
            mine = [psutil.Process(), *psutil.Process().children(recursive=True)]
            figures.memory = sum(process.memory_full_info().pss for process in mine) / 1e6

        def kill(figures: Figures) -> None:
            memory(figures)
            figures.wire, figures.turns_so_far = figures.wire + port_bytes(port), figures.turns
            started[0].kill()

        def start_again(_: Figures) -> None:
            started.append(processes.start(kits.kit_of(folder / "project", names[0]), variables))
            time.sleep(RETURN)

        at = {1: first_round, rounds: memory}
        if killed is not None:
            at |= {killed[0]: kill, killed[1]: start_again}
        try:
            for name in names:
                kit = kits.kit_of(folder / "project", name)
                federating.configure(kit, Settings(threads=1, device="cpu"))
                started.append(processes.start(kit, variables))
            watch = Stopwatch(rounds, lambda: port_bytes(port), lambda: look_at(epochs, started[0]), idle, at)
            service = Service(epochs, lambda: names, report=_complain)
            run_at_sites(recipe_of(sites, asked, rounds), folder / "run", Environment(), watch, service)
            watch.figures.epochs = epochs.epochs
            watch.figures.idle /= sites
            return watch.figures
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            jobs = _below(*started, *([epochs.server] if epochs.server is not None else []))
            epochs.close()
            processes.end(*started)
            _end(jobs)


def _end(jobs: list[psutil.Process]) -> None:
    """They would notice that their parents are gone, ten seconds later."""
    for process in jobs:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(jobs, timeout=5)
    for process in left:
        process.kill()


def _give_up(number: int, _: Any) -> None:
    # no Exception: those that FLARE meets are taken for its own, and tried again
    raise SystemExit(f"the federation was ended by {signal.Signals(number).name}")


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _below(*parents: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for parent in parents:
        if parent.poll() is None:
            found += psutil.Process(parent.pid).children(recursive=True)
    return found


def look_at(epochs: Epochs, site: subprocess.Popen[bytes]) -> Look:
    assert epochs.server is not None and epochs.epoch is not None
    (site_job,) = _below(site)
    pids = {
        "supervisor": os.getpid(),
        "server": epochs.server.pid,
        "server's job": epochs.epoch.pid,
        "a site": site.pid,
        "a site's job": site_job.pid,
    }
    found = {name: psutil.Process(pid) for name, pid in pids.items()}
    return {name: (p.num_threads(), p.memory_info().rss / 1e6) for name, p in found.items()}


def alone(clients: int, rounds: int) -> Figures:
    """The same rounds in one process: work, ledger and all, but no network."""
    watch = Stopwatch(rounds, lambda: 0, dict)
    with tempfile.TemporaryDirectory() as folder:
        session.start(recipe_of(clients, clients, rounds), Path(folder) / "run", Environment(), watch)
    return watch.figures


def apart(work: Callable[..., Figures], *arguments: Any) -> Figures:
    """In a process of its own: the next federation's supervisor begins with memory that nobody has used."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return pool.submit(work, *arguments).result()


def milliseconds(figures: Figures) -> tuple[str, str]:
    return f"{1e3 * statistics.median(figures.seconds):.1f}", f"{1e3 * statistics.mean(figures.seconds):.1f}"


def undisturbed(figures: Figures) -> str:
    return "" if (figures.epochs, figures.refused) == (1, 0) else f"{figures.epochs} epochs, {figures.refused} refused"


def rounds_part(sizes: Sequence[int], rounds: int) -> None:
    rows = []
    for sites in sizes:
        local, remote = apart(alone, sites, rounds), apart(federation, sites, sites, rounds)
        wanted = f"{1e3 * WANTED:.0f}" if sites == 3 else ""
        wire, encoded = f"{remote.wire / remote.turns:,.0f}", f"{remote.encoded / remote.turns:,.1f}"
        rows.append(
            (str(sites), *milliseconds(remote), wanted, milliseconds(local)[0], wire, encoded, undisturbed(remote))
        )
    show(
        f"A round over FLARE, P {P}, {rounds:,} rounds; bytes of a site-round, both ways",
        rows,
        ("sites", "median ms", "mean ms", "wanted", "one process", "B at the port", "B encoded", ""),
    )


def steady_part(sites: int, rounds: int) -> None:
    figures = apart(federation, sites, sites, rounds)
    names = tuple(next(iter(figures.looks.values())))
    rows = [(f"{done:,}", *(f"{t} / {mb:.1f}" for t, mb in look.values())) for done, look in figures.looks.items()]
    first, last = min(figures.looks), max(figures.looks)
    if last > first:
        grown = [1e6 * (figures.looks[last][n][1] - figures.looks[first][n][1]) / (last - first) for n in names]
        rows.append(("B a round", *(f"{bytes:+.0f}" for bytes in grown)))
    show(
        f"Threads / resident MB, {sites} sites ({' ms, '.join(milliseconds(figures))} ms a round, median and mean)",
        rows,
        ("rounds", *names),
    )
    print(undisturbed(figures) or "one epoch, nobody refused")


def sst2_part(played: int) -> None:
    figures = apart(federation, SST2_SITES, SST2_ASKED, played, IDLE)
    each, encoded = figures.wire / figures.turns, figures.encoded / figures.turns
    second = statistics.mean(figures.seconds)
    turns = SST2_ROUNDS * SST2_ASKED
    network = SST2_ROUNDS * second
    rows = [
        (f"a round, mean of {played - WARM}", f"{1e3 * second:.1f} ms"),
        (f"network's part: {SST2_ROUNDS:,} × that", f"{network / 60:.2f} min"),
        ("a site-round at the port", f"{each:,.0f} B"),
        ("a site-round encoded", f"{encoded:,.1f} B"),
        (f"at the port, all sites: {SST2_ROUNDS:,} × {SST2_ASKED} × that", f"{turns * each / 1e6:.2f} MB"),
        (f"at the port, one site: ÷ {SST2_SITES}", f"{turns * each / SST2_SITES / 1e6:.2f} MB"),
        ("encoded, one site", f"{turns * encoded / SST2_SITES / 1e3:.1f} KB"),
        ("a site that is not asked: heartbeats, looks for tasks", f"{figures.idle:,.0f} B/s"),
        ("so for each minute of the sites' own work, one site", f"{60 * figures.idle / 1e3:,.1f} KB more"),
    ]
    title = f"What {SST2_ROUNDS:,} rounds of SST-2 would cost: N {SST2_SITES}, m {SST2_ASKED}, P {P}"
    show(title, rows, ("", "cost"))
    print(undisturbed(figures) or "one epoch, nobody refused")


def idle_part(sites: int, seconds: float) -> None:
    figures = apart(federation, sites, 1, WARM + 10, seconds)
    print(f"\na site that is not asked anything, {sites} sites, {seconds:g} s: {figures.idle:,.0f} B/s at the port")
    print(undisturbed(figures) or "one epoch, nobody refused")


def many_part(sites: int, rounds: int) -> None:
    figures = apart(federation, sites, sites, rounds, 0.0, (KILLED, STARTED), True)
    back = f"{figures.missing[0]} to {figures.missing[-1]}" if figures.missing else "none"
    rows = [
        ("from the first process to the first round", f"{figures.began:.0f} s"),
        ("a round, median and mean", " and ".join(milliseconds(figures)) + " ms"),
        ("a round a site, median", f"{1e3 * statistics.median(figures.seconds) / sites:.2f} ms"),
        ("memory of all processes", f"{figures.memory / 1e3:.2f} GB"),
        ("… a site", f"{figures.memory / sites:.0f} MB"),
        ("a site-round at the port", f"{figures.wire / figures.turns_so_far:,.0f} B"),
        ("a site-round encoded", f"{figures.encoded / figures.turns:,.1f} B"),
        (f"rounds without the site killed after {KILLED}, started after {STARTED}", f"{back}, {len(figures.missing)}"),
        ("jobs", str(figures.epochs)),
    ]
    show(f"{sites} sites, P {P}, {rounds} rounds, mutual TLS", rows, ("", "cost"))


def main() -> None:
    parts = ["rounds", "steady", "sst2", "idle", "many"]
    parser = argparse.ArgumentParser(description="What a network costs: rounds over NVIDIA FLARE.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; default: all")
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 3, 8], help="of the first part")
    parser.add_argument("--rounds", type=int, default=1000, help="of the first part")
    parser.add_argument("--steady-rounds", type=int, default=STEADY_ROUNDS)
    parser.add_argument("--steady-sites", type=int, default=STEADY_SITES)
    parser.add_argument("--many-sites", type=int, default=MANY_SITES)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds in which nobody is asked anything")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(parts):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    chosen = given.parts or parts
    if "rounds" in chosen:
        rounds_part(given.sites, given.rounds)
    if "steady" in chosen:
        steady_part(given.steady_sites, given.steady_rounds)
    if "sst2" in chosen:
        sst2_part(SST2_PLAYED)
    if "idle" in chosen:
        idle_part(IDLE_SITES, given.idle)
    if "many" in chosen:
        many_part(given.many_sites, MANY_ROUNDS)


if __name__ == "__main__":
    main()
