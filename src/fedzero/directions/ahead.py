"""What a run will need of kernels, compiled in the background while it reads its data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedzero.directions.terms import Stream


@contextmanager
def compiling(device: torch.device, stream: Stream | None, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Begin to compile what folds along `stream` need; what it gives waits until that is done, and says so.

    On a GPU kernels are compiled where they are used. What is not waited for ends with the block.
    """
    if device.type != "cpu" or stream is None:
        yield lambda: None
        return
    from fedzero.directions.cpu import ahead  # imports numba

    processes = ahead.begin(stream)

    def wait() -> None:
        if any(process.poll() is None for process in processes):
            say("compiling kernels for this processor, once for each release of fedzero")
        for process in processes:
            process.wait()

    try:
        yield wait
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
