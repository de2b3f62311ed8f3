"""What the processes of test_blackbox_kill.py do: minimise two functions that write down each call they get, and die.

The functions are deterministic. A call is a line in the client's own file, written before anything else happens, so
that after a kill the file has every call that was ever made.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedzero import api as blackbox
from fedzero.methods import FedZO
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded
from fedzero.runs.progress import Silent

CLIENTS, TURN, ROUNDS = 2, 3, 4


@dataclass(frozen=True)
class Death:
    """When the process kills itself.

    call: during the n-th call that a client's box gets in this process; statement: just before or just after the n-th
    SQL statement; round: when that round is on record; pause: seconds a call takes.
    """

    call: tuple[int, int] | None = None
    statement: tuple[int, str] | None = None
    round: int | None = None
    pause: float = 0.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Watch(Silent):
    def __init__(self, death: Death):
        self.death = death

    def round(self, record: Any) -> None:
        if record.round == self.death.round:
            die()


def function(client: int, folder: Path, death: Death) -> Callable[[Any], float]:
    calls, diary = 0, folder / f"calls-{client}"

    def f(x: Any) -> float:
        nonlocal calls
        with diary.open("a") as file:
            file.write(hashlib.sha256(x.tobytes()).hexdigest()[:32] + "\n")
        if death.call == (client, calls):
            die()
        calls += 1
        time.sleep(death.pause)
        return float(((x - client) ** 2).sum() + np.cos(3 * x).sum())

    f.__qualname__ = f"party-{client}"
    return f


def light(death: Death) -> list[int]:
    """Count SQL statements, and die at the chosen one; the count so far."""
    steps, connect = [0], sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, *args: Any) -> Any:
            step, steps[0] = steps[0], steps[0] + 1
            if death.statement == (step, "before"):
                die()
            try:
                return super().execute(*args)
            finally:
                if death.statement == (step, "after"):
                    die()

    sqlite3.connect = lambda *args, **options: connect(*args, factory=Connection, **options)  # type: ignore[assignment]
    return steps


def go(folder: str, death: Death, options: dict[str, Any], report: str) -> None:
    torch.set_num_threads(1)
    where, steps = Path(folder), light(death)
    where.mkdir(parents=True, exist_ok=True)
    result = blackbox.minimise(
        [function(client, where, death) for client in range(CLIENTS)],
        [(-2.0, 3.0)] * 3,
        algorithm=FedZO(rate=0.02, directions=TURN - 1),
        progress=Watch(death),
        out=where / "run",
        **{"rounds": ROUNDS, "retries": 0, "evaluate": "log"} | options,
    )
    taken = steps[0]
    view = recorded.verified(where / "run", Environment())
    found = {"steps": taken, "x": result.x.tolist(), "reason": result.reason, "queries": result.queries}
    found |= {"rounds": result.rounds, "value": result.value, "refused": [r.refused for r in view.rounds]}
    found |= {"head": view.entries[-1].chain.hex(), "model": view.end.model.hex() if view.end else ""}
    Path(report).write_text(json.dumps(found | {"death": asdict(death)}))
