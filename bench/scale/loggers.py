"""What loggers cost in a round of the demo: processor time, since the machine may do other things at the same time.

    python -m bench.scale.loggers [ROUNDS [TIMES]]

Runs without a logger and with each alternate in one process. A logger's cost in a round is the processor time of its
thread for points, and of the calls in the thread of the run. Imports, opening, the page and closing come once. All runs
have the same head.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

from bench.table import machine, show

import fedzero
from fedzero.loggers import reporter

KINDS = (None, "tensorboard", "mlflow", "wandb")


class Measured(reporter.Reporter):
    """Counts what it takes the thread of the run."""

    made: ClassVar[list[Measured]] = []

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.calls = 0.0
        Measured.made.append(self)

    def round(self, result: Any) -> None:
        began = time.thread_time()
        super().round(result)
        self.calls += time.thread_time() - began


class Clock(fedzero.Callback):
    def begin(self, run: Any) -> None:
        self._began = time.process_time()

    def end(self, result: Any) -> None:
        self.seconds = time.process_time() - self._began


def main(rounds: int, times: int) -> None:
    from fedzero import loggers

    loggers.Reporter = Measured  # type: ignore[misc]
    os.environ["WANDB_MODE"] = "offline"
    heads, plain = set(), []
    round_costs, once = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for turn in range(times):
            for kind in KINDS:
                clock = Clock()
                folder = Path(place) / f"{turn}-{kind}"
                run = fedzero.run("demo", rounds=rounds, out=folder, progress=False, callbacks=[clock], report_to=kind)
                heads.add(run.summary.ledger_head)
                if kind is None:
                    plain.append(clock.seconds / rounds)
                    continue
                told = Measured.made[-1]
                round_costs[kind].append((told.writing + told.calls) / rounds)
                once[kind].append(told.all - told.writing)
        os.chdir("/")
    whole = statistics.median(plain)
    rows = [("a round without a logger", f"{1e3 * whole:.0f} ms", "", "")]
    for kind in round_costs:
        cost = statistics.median(round_costs[kind])
        rows.append((kind, f"{1e3 * cost:.2f} ms", f"{cost / whole:.2%}", f"{once[kind][0]:.1f} s"))
    title = f"Loggers of the demo · {machine()}"
    show(title, rows, ("", "processor time of a round", "share", "once, the first time in a process"))
    print(f"{times} alternations of {rounds} rounds; {len(heads)} head")


if __name__ == "__main__":
    main(*[int(each) for each in (*sys.argv[1:], *("100", "3")[len(sys.argv) - 1 :])])
