"""How many of some planted faults the tests find.

    python tools/planted_faults.py [--jobs 2] [--workers 2] [--only NUMBER …]

Every fault is one line of the source changed in a copy of the tree; the tests below run on it until the first failure.
Takes about a minute a fault and worker.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SCRATCH = Path("/dev/shm")
ROOT = Path(__file__).resolve().parent.parent
TESTS = ("methods", "conformance", "links", "ledger", "blackbox", "estimators", "protocol", "tasks")
SKIPPED = ("test_cli.py", "test_planted_faults.py")
"""The second looks at the list below, and would find every fault."""
FAULTS: tuple[tuple[str, str, str], ...] = (
    ("estimators/spsa.py", "(values[0::2] - values[1::2]) / (2 * radius)", "(values[0::2] - values[1::2]) / radius"),
    ("estimators/spsa.py", "found = (values[1:] - values[0]) / radius", "found = (values[1:] - values[1]) / radius"),
    ("links/combining.py", "total / sum(weights[client] for client in clients)", "total / len(clients)"),
    ("methods/rules/contract.py", "(factor / len(keys) * g", "(factor * g"),
    ("directions/keys.py", '"direction", round, step, direction, client)', '"direction", round, 0, direction, client)'),
    ("directions/keys.py", '"rounding", round, step)', '"rounding", 0, 0)'),
    ("ledger/store.py", "if chain != stored:", "if False:"),
    ("ledger/store.py", "seal is None or _seal(chain, at, seconds) != seal", "seal is None"),
    ("rounds/admission.py", "if reply.round != round:", "if reply.round < round:"),
    ("rounds/admission.py", "if reply.digest != right[c]]", "if False]"),
    ("rounds/tracker.py", "self.turns.counted[counted] + self._sync", "self.turns.counted[counted] + 1"),
    ("rounds/tracker.py", "self.oldest if pull_after is None", "int(self.known.max()) if pull_after is None"),
    ("protocol/client.py", "self._tried[0] == counted:", "True:"),
    ("links/quantise.py", "np.floor(exact + draw().random(len(values)))", "np.round(exact)"),
    ("links/chain.py", "else wanted - read, mine.loss)", "else wanted, mine.loss)"),
    (
        "links/trimmed_mean.py",
        "min(max(1, int(self.fraction * count)), (count - 1) // 2)",
        "int(self.fraction * count)",
    ),
    ("methods/zoadafl.py", "add_(delta * (1 - self.beta1))", "add_(delta)"),
    ("methods/zoadafl.py", "torch.maximum(vhat, v, out=vhat)", "vhat.copy_(v)"),
    ("methods/zofedht.py", "isotropic = math.sqrt(1 - self.alpha) if", "isotropic = (1 - self.alpha) if"),
    ("methods/scaffold.py", "/ all_turns - stayed[client]", "/ all_turns + stayed[client]"),
    ("methods/scaffold.py", "varied * (1 / state.clients)", "varied * 0.5"),
    ("methods/zones.py", "multipliers * (rate / N)", "multipliers * rate"),
    ("methods/dzopa.py", "apart * -self.gamma", "apart * self.gamma"),
    ("methods/fzoos.py", "gradient = own + gamma * correct(", "gradient = own + 0 * correct("),
    ("methods/fzoos.py", "torch.topk(unsure, count)", "torch.topk(-unsure, count)"),
    ("methods/fedprox.py", "1 - rate * self.gamma, K - 1 - k)", "1 - rate * self.gamma, k)"),
    (
        "model/schedules.py",
        "if round >= milestone:\n                rate",
        "if round > milestone:\n                rate",
    ),
    ("methods/rules/kernels.py", "power(self.beta1, step + 1)", "power(self.beta1, step + 2)"),
    ("ledger/outline.py", "self.moved = self.done", "self.moved = self.done - 1"),
    ("oracles/blackbox/objective.py", "if left < need:", "if left < 0:"),
)


def _left_out(tree: Path) -> Callable[[str, list[str]], set[str]]:
    """What is not copied: at the top of the tree what is no source, and caches. Packages of such names are copied."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        top = {".git", ".venv", "runs", "docs"} if Path(folder) == tree else set()
        return {name for name in names if name in top or re.fullmatch(r"\..*_cache|__pycache__|\.dev.*", name)}

    return ignored


def caught(number: int, workers: int, tree: Path) -> tuple[int, str]:
    """(number, the first test that fails; empty if none does)"""
    name, right, wrong = FAULTS[number]
    with tempfile.TemporaryDirectory(dir=SCRATCH if SCRATCH.is_dir() else None) as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy, ignore=_left_out(tree))
        path = copy / "src" / "fedzero" / name
        text = path.read_text()
        if right not in text:
            raise SystemExit(f"fault {number} cannot be planted: {name} has no {right!r}")
        path.write_text(text.replace(right, wrong, 1))
        python = f"{copy / 'src'}:{copy / 'papers' / 'src'}"
        environment = {**os.environ, "PYTHONPATH": python, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        tests = [str(copy / "tests" / each) for each in TESTS if (copy / "tests" / each).exists()]
        tests += [str(each) for each in (copy / "tests").glob("test_*.py") if each.name not in SKIPPED]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", str(workers), "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
        if any("::" not in name for name in failed):  # a module that cannot be imported shows nothing
            raise SystemExit(f"fault {number}: {done.stdout[-2000:]}")
        return number, (
            failed[0] if failed else f"exit {done.returncode}: {done.stdout[-300:]}" if done.returncode else ""
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="faults at the same time")
    parser.add_argument("--workers", type=int, default=2, help="of each pytest")
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of faults")
    given = parser.parse_args()
    numbers = given.only or range(len(FAULTS))
    found = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for number, test in pool.map(lambda n: caught(n, given.workers, given.tree), numbers):
            found += bool(test)
            print(f"{number:2} {'caught' if test else 'MISSED'} {FAULTS[number][0]:32} {test[:120]}", flush=True)
    print(f"{found} of {len(numbers)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
