"""What the processes of test_ask_tell.py do: ask, write down, tell, until the run is finished."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from blackbox_child import Death, light

from fedzero.api import Optimiser, shared_fzoos
from fedzero.estimators.surrogate import Transfer
from fedzero.methods import FedZO

ROUNDS, DIRECTIONS = 6, 7
POINTS = ROUNDS * (DIRECTIONS + 1) + 2
"""of a party in the whole run: a turn asks f(x) and one point in every direction; two evaluations"""


def f(x: Any, party: int) -> float:
    return float(((x - 0.3 * (party + 1)) ** 2).sum())


def optimiser(folder: str | Path, **options: Any) -> Optimiser:
    method = FedZO(rate=0.01, directions=DIRECTIONS, local_steps=1)
    return Optimiser(
        (-1, 1), dimension=4, out=folder, **{"rounds": ROUNDS, "algorithm": method, "lease": 0.5} | options
    )


def work(folder: str, parties: int, death: Death = Death(), pause: float = 0.0) -> None:  # noqa: B008  (frozen)
    """Every evaluation is a line in a file of this folder, written before its value is told."""
    torch.set_num_threads(1)
    light(death)
    mine = optimiser(folder, parties=parties)
    while not mine.finished:
        points = mine.ask(2)
        for point in points:
            with Path(folder, "evaluated").open("a") as file:
                file.write(f"{point.id}\n")
            time.sleep(pause)
            mine.tell(point, f(point.x, point.party))
        if not points:
            time.sleep(0.01)


SURROGATE = msgspec.structs.replace(shared_fzoos(4), local_steps=2, transfer=Transfer(count=50))
"""the default method, with less to compute"""


def a_few(folder: str, threads: int, asks: int) -> None:
    """Some asks of two rounds of it, in a process with so many threads."""
    torch.set_num_threads(threads)
    mine = optimiser(folder, algorithm=SURROGATE, rounds=2)
    for _ in range(asks):
        for point in mine.ask(99):
            mine.tell(point, f(point.x, point.party))
