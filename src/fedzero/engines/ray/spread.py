"""Whole runs, one Ray task each: tuning and experiments use all cores of a cluster in this way.

Every run is an ordinary run in a folder that all machines of the cluster see. Ray repeats a task that dies, and the run
continues from its ledger.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import torch

from fedzero.engines.ray import Ray
from fedzero.engines.ray.on_ray import connected
from fedzero.errors import FedzeroError
from fedzero.model import files

T = TypeVar("T")
RETRIES = 3
MARK = ".cluster"
"""In the folder of all runs, while they are made: a word by which a machine shows that it sees the folder."""


def spread(
    work: Callable[..., T], calls: Sequence[tuple[Any, ...]], folder: Path, how: Ray, told: Callable[[int, T], None]
) -> list[T]:
    """The results of work(*call) for every call, in tasks of `how.cpus` cores. told: is called with the number and the
    result of each call when it is done."""
    folder, word, found = folder.resolve(), uuid4().hex, dict[int, T]()
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / MARK, word)
    try:
        with connected((how.workers or 0) * how.cpus) as ray:
            task = ray.remote(_done).options(
                num_cpus=how.cpus,
                num_gpus=how.gpus_each(ray.cluster_resources().get("GPU", 0)),
                max_retries=RETRIES,
                scheduling_strategy="SPREAD",
            )
            common, waiting = ray.put(work), list(enumerate(calls))
            most, running = how.workers or len(calls), dict[Any, int]()
            while waiting or running:
                for number, call in waiting[: most - len(running)]:
                    running[task.remote(common, call, folder, word, max(1, int(how.cpus)))] = number
                waiting = [each for each in waiting if each[0] not in running.values()]
                (ready,), _ = ray.wait(list(running), num_returns=1)
                number = running.pop(ready)
                try:
                    found[number] = ray.get(ready)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, FedzeroError) else error from None
                told(number, found[number])
    finally:
        (folder / MARK).unlink(missing_ok=True)
    return [found[number] for number in range(len(calls))]


def _done(work: Callable[..., T], call: tuple[Any, ...], folder: Path, word: str, threads: int) -> T:
    mark = folder / MARK
    if not mark.exists() or files.read(mark, files.SMALL).decode() != word:
        raise FedzeroError(
            f"{socket.gethostname()} does not see {folder}: whole runs need a folder that all machines share"
        )
    torch.set_num_threads(threads)
    return work(*call)
