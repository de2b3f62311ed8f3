"""Folds on the CPU beside torch's randn-and-add; many points of a small vector at once beside one by one.

`python -m bench.cpu.directions [1000]`: with folds of 1,000 terms, which take minutes.
"""

from __future__ import annotations

import math
import sys

import torch
from bench.table import best, show

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params

N = 1 << 24
POINTS, TERMS = 11, 5
"""An ask of ten probes and the place they surround, some steps into a client's walk."""


def folds() -> None:
    x = torch.zeros(N)
    side = math.isqrt(N)
    params = Params({"w": torch.zeros(side, side)})
    half = Params({"w": torch.zeros(side, side, dtype=torch.bfloat16)})

    def terms(count: int, stream: Domain) -> Terms:
        return Terms.of(range(count), [1e-3] * count, stream)

    baseline = N / best(lambda: x.add_(torch.randn(N), alpha=1e-3))
    rows = [("torch randn-and-add", f"{baseline / 1e6:.0f}", "1.0")]

    def row(name: str, work: object, count: int = 1, repeats: int = 5) -> None:
        rate = N * count / best(work, repeats)  # type: ignore[arg-type]
        rows.append((name, f"{rate / 1e6:.0f}", f"{rate / baseline:.1f}"))

    row("torch in-place add", lambda: x.add_(1.0))
    for stream in (Domain.RANK1, Domain.RADEMACHER, Domain.GAUSSIAN):
        name = stream.name.lower()
        row(f"{name} fold, 1 term", lambda s=stream: params.fold(terms(1, s)))
        row(f"{name} fold, 10 terms", lambda s=stream: params.fold(terms(10, s)), 10)
        row(f"{name} fold, 10 terms, bfloat16", lambda s=stream: half.fold(terms(10, s)), 10)
        if "1000" in sys.argv:
            row(f"{name} fold, 1,000 terms", lambda s=stream: params.fold(terms(1000, s)), 1000, 1)

    def checksum() -> None:
        params._digest = None
        params.digest()

    row("digest", checksum)
    show(f"CPU folds, {N:,} parameters", rows, ("", "M numbers/s", "× randn-and-add"))


def points() -> None:
    rows = []
    for size in (50, 784, 28_938):
        params = Params.of_vector(torch.zeros(size))
        asked = [Terms.of(range(p, p + TERMS), [1e-3] * TERMS, Domain.GAUSSIAN) for p in range(POINTS)]
        alone = best(lambda p=params, a=asked: torch.stack([p.view(terms).vector() for terms in a]), 200)
        together = best(lambda p=params, a=asked: p.at(a), 200)
        rows.append((f"{size:,}", f"{alone * 1e6:.0f}", f"{together * 1e6:.0f}", f"{alone / together:.1f}"))
    show(f"{POINTS} points of {TERMS} terms", rows, ("parameters", "views, µs", "at once, µs", "ratio"))


def main() -> None:
    folds()
    points()


if __name__ == "__main__":
    main()
