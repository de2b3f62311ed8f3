"""Fuzz every decoder: `make fuzz`, or for some of them

    python tests/fuzz/fuzz.py --cases 100000 --seconds 60 --target reply --target toml

First guided by coverage, where atheris is installed (`pip install 'fedzero[fuzz]'`), for a part of the cases, then by
chance from the kept corpus. Each has a process of its own: one that dies, hangs or eats memory is a finding, too. A
finding is an exception of a kind that the target does not declare, counted once for each place that raises it; its
bytes are kept in --findings.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
SHARES = {"prompt": 0.5, "state": 0.1, "settings": 0.05, "json": 0.05, "update": 0.02, "toml": 0.01, "shown": 0.01}
SHARES |= {"sum": 0.01, "statement": 0.05, "budget": 0.002}
SHARES |= {"patch": 0.005, "file": 0.004, "queries": 0.002, "ledger": 0.001}
"""Of the cases, for targets that make files, fold updates or parse text; 1 for all others."""
BY_COVERAGE = 0.05
"""Of a target's cases; they take five times as long as those by chance."""
GUIDED = ["fedzero.protocol", "fedzero.deploy", "fedzero.ledger", "fedzero.links", "fedzero.runs", "fedzero.lines"]
GUIDED += [
    "fedzero.gatherings",
    "fedzero.privacy",
    "fedzero.model",
    "fedzero.tasks",
    "fedzero.plugins",
    "fedzero.methods",
    "fedzero.engines",
    "fedzero_client",
    "targets",
    "tomllib",
]
HANGS, MEMORY = 20, 3000
"""Seconds a case may take, and megabytes that a process may have."""


class Tally:
    """What one process has tried and found, in a file that outlasts it."""

    def __init__(self, name: str, out: Path, findings: Path, cases: int, seconds: float):
        from targets import attempt

        self.attempt, self.name, self.out, self.findings = attempt, name, out, findings
        self.cases, self.seconds = cases, seconds
        self.done, self.began, self.found = 0, time.monotonic(), dict[str, str]()
        self.process, self.first, self.warm = psutil.Process(), 0, max(1000, cases // 10)

    def __call__(self, data: bytes) -> None:
        try:
            self.attempt(self.name, data)
        except Exception as error:
            self._keep(error, data)
        self.done += 1
        if self.done == self.warm:
            self.first = self.process.memory_info().rss
        if self.done % 1000 == 0 or self.over:
            self.write()

    @property
    def over(self) -> bool:
        return self.done >= self.cases or time.monotonic() - self.began >= self.seconds

    def _keep(self, error: Exception, data: bytes) -> None:
        where = [f for f in traceback.extract_tb(error.__traceback__) if "fedzero" in f.filename]
        place = (
            f"{type(error).__name__} at {Path(where[-1].filename).name}:{where[-1].lineno}" if where else repr(error)
        )
        if place not in self.found:
            self.found[place] = "".join(traceback.format_exception_only(error)).strip()[:300]
            self.findings.mkdir(parents=True, exist_ok=True)
            (self.findings / f"{self.name}-{len(self.found)}.bin").write_bytes(data)

    def write(self) -> None:
        now = self.process.memory_info().rss
        took = time.monotonic() - self.began
        said = {"cases": self.done, "seconds": took, "first": self.first or now, "last": now, "found": self.found}
        self.out.write_text(json.dumps(said))


def by_coverage(name: str, out: Path, findings: Path, cases: int, seconds: float) -> None:
    import atheris

    with atheris.instrument_imports(include=GUIDED, enable_loader_override=False):
        tally = Tally(name, out, findings, cases, seconds)
    with tempfile.TemporaryDirectory() as fresh:
        options = [f"-runs={cases}", f"-max_total_time={int(seconds)}", f"-timeout={HANGS}", f"-rss_limit_mb={MEMORY}"]
        options += ["-max_len=65536", "-verbosity=0", "-print_final_stats=0", f"-artifact_prefix={findings}/{name}-"]
        atheris.Setup([sys.argv[0], *options, fresh, str(HERE / "corpus" / name)], tally)
        atheris.Fuzz()


def by_chance(name: str, out: Path, findings: Path, cases: int, seconds: float, seed: int) -> None:
    tally = Tally(name, out, findings, cases, seconds)
    from mutating import kept, mutated

    corpus = kept(tally.name)
    for case in corpus:
        tally(case)
    for number in count():
        for case in mutated(corpus, 1000, seed + 1_000_003 * number):
            tally(case)
            if tally.over:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="cases of a fast target; slow ones have a part of it")
    parser.add_argument("--seconds", type=float, default=60.0, help="that a target may take at most")
    parser.add_argument("--target", action="append", help="only this one; may be repeated")
    parser.add_argument("--findings", type=Path, default=Path("runs/fuzz"), help="folder for what was found")
    parser.add_argument("--seed", type=int, default=0, help="of the cases by chance")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--by", choices=("coverage", "chance"), help="one of the two; default: both")
    given = parser.parse_args()
    if given.one is not None:
        sys.path.insert(0, str(HERE))
        work = by_coverage if given.by == "coverage" else partial(by_chance, seed=given.seed)
        work(given.target[0], given.one, given.findings, given.cases, given.seconds)
        return 0
    guided = importlib.util.find_spec("atheris") is not None
    ways = [given.by] if given.by else ["coverage", "chance"] if guided else ["chance"]
    total, findings = 0, 0
    print(f"{'target':12} {'by':9} {'cases':>10} {'cases/s':>9} {'MB begin':>9} {'MB end':>7}  findings")
    for name in given.target or sorted(path.name for path in (HERE / "corpus").iterdir()):
        for by in ways:
            share = SHARES.get(name, 1.0) * (BY_COVERAGE if by == "coverage" and len(ways) > 1 else 1.0)
            said, trouble = child(name, by, max(100, int(given.cases * share)), given)
            total += said["cases"]
            findings += len(said["found"]) + bool(trouble)
            rate, begin, end = said["cases"] / max(said["seconds"], 1e-9), said["first"] / 1e6, said["last"] / 1e6
            found = f"{len(said['found'])} {trouble}".rstrip()
            print(f"{name:12} {by:9} {said['cases']:10,} {rate:9,.0f} {begin:9.0f} {end:7.0f}  {found}")
            for place, text in said["found"].items():
                print(f"    {place}: {text}")
            sys.stdout.flush()
    print(f"{'all':22} {total:10,} {'':27}  {findings}")
    return 1 if findings else 0


def child(name: str, by: str, cases: int, given: Any) -> tuple[dict[str, Any], str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "tally.json"
        command = [sys.executable, __file__, "--one", str(out), "--by", by, "--target", name, "--cases", str(cases)]
        command += ["--seconds", str(given.seconds), "--findings", str(given.findings), "--seed", str(given.seed)]
        given.findings.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = json.loads(out.read_text()) if out.exists() else None
    empty = {"cases": 0, "seconds": 0.0, "first": 0, "last": 0, "found": {}}
    last = [line for line in done.stderr.splitlines() if "ERROR" in line or "Error" in line][-1:]
    return said or empty, "" if done.returncode == 0 else f"process ended with {done.returncode}: {' '.join(last)}"


if __name__ == "__main__":
    sys.exit(main())
