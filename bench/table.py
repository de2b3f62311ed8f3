"""A plain table for benches: every figure beside the baseline measured in the same run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime

import torch

from fedzero.callbacks import ignore


def machine() -> str:
    """What the figures were measured on."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return f"{device} · torch {torch.__version__} · {datetime.now(UTC):%Y-%m-%d}"


def seconds(work: Callable[[], object], repeats: int, warm: int = 0, wait: Callable[[], None] = ignore) -> list[float]:
    """On the clock, of several runs after `warm` others; wait: until a device has done what it was given."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return times


def best(work: Callable[[], object], repeats: int = 5, warm: int = 1) -> float:
    """Seconds of the quickest of several runs: the least disturbed by neighbours."""
    return min(seconds(work, repeats, warm))


def show(title: str, rows: list[tuple[str, ...]], header: tuple[str, ...]) -> None:
    print(f"\n{title}\n{machine()}")
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    for number, row in enumerate(table):
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *padded[1:]]))
        if number == 0:
            print("  ".join("-" * w for w in widths))
