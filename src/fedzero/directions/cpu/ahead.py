"""Compile kernels in other processes while a run reads its data; they leave the code in the folder of `compiled`.

`python -m fedzero.directions.cpu.ahead PART` compiles one part, by using it on a few numbers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from subprocess import DEVNULL

import torch

from fedzero.directions import cpu
from fedzero.directions.cpu import compiled
from fedzero.directions.spec import Domain
from fedzero.directions.terms import LowRank, Program, Stream, Terms


def _flat() -> None:
    """Folds of vectors; of matrices, too, where directions are not of rank one."""
    _fold(Domain.GAUSSIAN, 0)


def _rank1() -> None:
    """Folds of matrices along directions of rank one."""
    _fold(Domain.RANK1, 4)


def _fold(stream: Domain, columns: int) -> None:
    x = torch.zeros(16)
    cpu.perturb(x, torch.empty_like(x), Terms.of([1], [0.0], stream), 0, columns)
    cpu.advance(x, (), Program.of([Terms.of([1], [0.0], stream)], [0]), 0, columns)


PARTS: dict[str, Callable[[], None]] = {"flat": _flat, "rank1": _rank1}


def begin(stream: Stream) -> list[subprocess.Popen[bytes]]:
    """Processes that compile what folds along `stream` need and what is not there yet."""
    place = compiled.folder()
    if place is None or not sys.executable:
        return []
    of_rank_one = stream is Domain.RANK1 or isinstance(stream, LowRank)
    missing = [part for part in ("flat", *(["rank1"] if of_rank_one else [])) if not (place / f"{part}.done").exists()]
    found = []
    for part in missing:
        with suppress(OSError):  # without them the run compiles by itself
            command = [sys.executable, "-P", "-m", __name__, part]  # not from the current folder
            found.append(subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL))
    return found


def main(part: str) -> None:
    PARTS[part]()
    if (place := compiled.folder()) is not None:
        (place / f"{part}.done").touch()


if __name__ == "__main__":
    main(sys.argv[1])
