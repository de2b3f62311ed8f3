"""What a gateway serves, apart from what a run takes: python bench/network/gateway_load.py --devices 5000

A second process, on the same two cores, has all connections; its answers are signed before (`presigned.py`). Here are
the gateway as a run opens it and, in place of the run, a thread that gives orders and takes answers: decoded and
admitted as the server of a run does it. Printed are

    connect      seconds until all devices have proved who they are, from nothing and after all connections broke
    burst n      seconds from n orders to n answers admitted
    capacity     answers a second with --open orders open, one for each answer
    steady       with --rate orders a second: answers admitted a second, and from sending to admission the quantiles

The figures of docs/results/devices.md, on a machine that does nothing else:

    python bench/network/gateway_load.py --devices 5000 --rate 1000 --seconds 600
    python bench/network/gateway_load.py --devices 5000 --rate 1000 --seconds 20 --profile gateway.prof
"""

from __future__ import annotations

import argparse
import cProfile
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np

from fedzero.engines.devices import plan as plans
from fedzero.engines.devices import serving
from fedzero.engines.devices.application import Gateway
from fedzero.engines.devices.hub import Came, Caught, Hub, Said, Went
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.session import Asked
from fedzero.ledger.turns import Turns
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare
from fedzero.rounds.admission import Admission
from fedzero.rounds.tracker import ClientTracker

sys.path.insert(0, str(Path(__file__).parent))
from presigned import key_of, order_of

TICK = 0.005
"""Seconds between two handfuls of orders."""


class Bench:
    """A gateway and the place of a run beside it."""

    def __init__(self, folder: Path, places: int, rounds: int):
        self.places, self.rounds, setup = places, rounds, _setup(folder, places)
        registry = Registry(folder / "run")
        ticket = registry.ticket(places)
        rows = [(i, 1, key_of(i).public_key().public_bytes_raw(), ticket, time.time()) for i in range(places)]
        with registry._transaction():
            values = "INSERT INTO places (place, algorithm, key, ticket, at) VALUES (?, ?, ?, ?, ?)"
            registry._db.executemany(values, rows)
        self.hub = Hub(registry, plans.encode(plans.plan_of(setup)), places, 60, places + 500)
        self.at = serving.listening("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.at.getsockname()[1]}"
        self.gateway = Gateway(self.hub)
        turns = Turns.of(places)
        tracker = ClientTracker(setup.recipe.federation, turns, 0, lambda first, last: [])
        self.admission, self.orders = Admission(setup.plan, tracker), [order_of(r) for r in range(rounds)]
        self.next = np.zeros(places, int)
        self.sent = np.memmap(folder / "sent", np.float64, "w+", shape=(places, rounds))
        self.admitted = np.zeros((places, rounds))
        self.refused = 0
        self.free = deque(range(places))
        command = [sys.executable, str(Path(__file__).parent / "presigned.py"), self.hub.run.hex(), self.url]
        command += [str(places), str(rounds), str(folder / "sent")]
        self.crowd = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, word: str) -> None:
        assert self.crowd.stdin is not None
        self.crowd.stdin.write(word + "\n")
        self.crowd.stdin.flush()

    def heard(self) -> str:
        assert self.crowd.stdout is not None
        return self.crowd.stdout.readline().strip()

    def order(self, count: int) -> int:
        """Orders for so many devices that have none open; returns for how many."""
        given = dict[int, Asked]()
        while self.free and len(given) < count:
            place = self.free.popleft()
            round = int(self.next[place])
            if round < self.rounds:
                self.next[place] += 1
                given[place] = Asked(round, 0, 0, self.orders[round], 4096)
        self.hub.post(self.hub.deliver, given)
        return len(given)

    def take(self, seconds: float, most: int = 1 << 30) -> int:
        """Admit what comes for so many seconds; returns how many answers."""
        end, found = time.monotonic() + seconds, 0
        while found < most and (left := end - time.monotonic()) > 0:
            try:
                event = self.hub.events.get(timeout=left)
            except Exception:
                break
            if isinstance(event, Said):
                try:
                    self.admission.admit(event.round, event.exchange, event.place, event.body)
                except Exception:
                    self.refused += 1
                self.admitted[event.place, event.round] = time.monotonic()
                self.free.append(event.place)
                found += 1
            else:
                assert isinstance(event, Came | Caught | Went), event
        return found

    # ---- what is measured

    def connect(self, again: bool) -> float:
        if again:
            self.tell("drop")
        began = time.monotonic()
        self.tell("connect")
        assert self.heard() == "connected"
        took = time.monotonic() - began
        while len(self.hub.here) < self.places:
            time.sleep(0.01)
        self.take(0.5)
        return took

    def burst(self, count: int) -> float:
        began = time.monotonic()
        asked = self.order(count)
        assert asked == self.take(60, asked) == count
        return time.monotonic() - began

    def capacity(self, seconds: float, open: int) -> float:
        began, found = time.monotonic(), 0
        self.order(open)
        while time.monotonic() - began < seconds:
            some = self.take(TICK)
            found += some
            self.order(some)
        took = time.monotonic() - began
        self.take(2.0)
        return found / took

    def steady(self, rate: float, seconds: float) -> np.ndarray:
        """Seconds from sending to admission, of each answer."""
        before, began, asked = self.next.copy(), time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            asked += self.order(int(now * rate) - asked)
            self.take(TICK)
        self.take(2.0)
        rounds = np.arange(self.rounds)
        these = (rounds >= before[:, None]) & (rounds < self.next[:, None])
        assert (self.admitted[these] > 0).all(), f"{(self.admitted[these] == 0).sum()} answers are lost"
        return self.admitted[these] - self.sent[these]


def _setup(folder: Path, places: int) -> Setup:
    np.savez(folder / "rows.npz", x=np.zeros((3, 64), np.float32), y=np.arange(3))
    table = {
        "name": "load",
        "rounds": 10,
        "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 10, "distribution": "rademacher"},
        "task": {"kind": "devices", "widths": [64, 10], "test": str(folder / "rows.npz")},
        "federation": {"clients": places, "cohort": places},
        "engine": {"kind": "devices", "listen": "127.0.0.1:0"},
    }
    return prepare(recipes.decode(table), Environment(folder=folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=1000.0, help="orders a second of the steady part; 0: none")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--open", type=int, default=400, help="orders that are open while capacity is measured")
    parser.add_argument("--capacity", type=float, default=10.0, help="seconds of it")
    parser.add_argument("--bursts", type=int, nargs="*", default=[500, 2000])
    parser.add_argument("--profile", type=Path, help="file for a profile of the gateway's thread while it is steady")
    given = parser.parse_args()
    n = given.devices
    bursts = [count for count in given.bursts if count <= n]
    answers = given.rate * given.seconds + 6000 * given.capacity + 3 * sum(bursts)
    rounds = int(answers / n) + 20
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), n, rounds)
        with serving.served(bench.gateway, bench.at, {}):
            try:
                _measured(bench, given, bursts)
            finally:
                bench.crowd.kill()
                bench.crowd.wait()


def _measured(bench: Bench, given: argparse.Namespace, bursts: list[int]) -> None:
    assert bench.heard() == "signed"
    print(f"{bench.places} devices; load average {os.getloadavg()[0]:.1f}", flush=True)
    print(f"connect   {bench.connect(False):.1f} s, again {bench.connect(True):.1f} s", flush=True)
    for count in bursts:
        print(
            f"burst     {count}: {1000 * min(bench.burst(count) for _ in range(3)):.0f} ms, best of three", flush=True
        )
    used = time.process_time()
    rate = bench.capacity(given.capacity, min(given.open, bench.places))
    each = 1e6 * (time.process_time() - used) / (rate * given.capacity)
    print(
        f"capacity  {rate:.0f} answers a second; {each:.0f} µs of processor time for each in this process", flush=True
    )
    if given.rate:
        profile = _profiled(bench) if given.profile else None
        found = 1000 * bench.steady(given.rate, given.seconds)
        if profile is not None:
            bench.hub.post(profile.disable)
            time.sleep(0.5)
            profile.dump_stats(given.profile)
        p50, p99, p999 = np.quantile(found, [0.5, 0.99, 0.999])
        print(f"steady    {len(found) / given.seconds:.0f} a second for {given.seconds:g} s:", end=" ")
        print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, p99.9 {p999:.1f} ms, at most {found.max():.0f} ms", flush=True)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"refused   {bench.refused}; {most:.0f} MB with torch; load average {os.getloadavg()[0]:.1f}", flush=True)


def _profiled(bench: Bench) -> cProfile.Profile:
    found, ready = cProfile.Profile(), threading.Event()

    def begin() -> None:
        found.enable()
        ready.set()

    bench.hub.post(begin)
    ready.wait()
    return found


if __name__ == "__main__":
    main()
