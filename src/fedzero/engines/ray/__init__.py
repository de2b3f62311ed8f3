"""A simulation on the workers of a Ray cluster: each has a replica and the local clients, and plays slices of a cohort.

worker       a worker's process: a replica, the local clients, a slice in, replies out
query_log    the log of queries of a black box that is called on a worker; the server makes it durable
slices       parts of a cohort that are played together, and repeated if their worker dies
engine       the driver's side: the clients of the whole cluster
spread       whole runs, one task each
on_ray       connects, starts, calls; the only module that imports Ray
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError
from fedzero.model.numbers import PositiveInt
from fedzero.protocol.engine import Clients
from fedzero.recipe.engines import Engine
from fedzero.recipe.view import RunView

T = TypeVar("T")


class Ray(Engine, tag="ray"):
    """Clients on workers of a Ray cluster: the one at RAY_ADDRESS, or one of this machine's own that ends with the run.
    Each worker has a copy of the model, which it updates itself."""

    workers: PositiveInt | None = None
    """How many; default: as many as the cluster has cores (or GPUs) for."""
    cpus: Annotated[float, Meta(gt=0)] = 1.0
    """Cores of a worker, and with `merge` its threads."""
    gpus: Annotated[float, Meta(ge=0)] | None = None
    """GPUs of a worker; 0.25: four workers share one. Default: 1 where `device` allows it and the cluster has any."""
    slices: PositiveInt = 1
    """Parts of a cohort, for each worker. With more than one, a worker that is done takes parts that others have not
    begun: for cores of uneven speed, and models whose directions cost little, since each part makes them again."""

    def gpus_each(self, present: float) -> float:
        """GPUs of a worker, or of a task of `spread`, on a cluster with so many of them."""
        return self.gpus if self.gpus is not None else float(self.device != "cpu" and present >= 1)

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        """Workers are made before the driver's own replica moves: objects of this process are sent as they are now."""
        if run.observe is not ignore:
            raise FedzeroError("local steps can be observed in one process only: use the local engine")
        from fedzero.engines.ray.engine import on_cluster  # which imports what workers need

        with on_cluster(self, run) as clients:
            yield clients

    def spread(
        self, work: Callable[..., T], calls: Sequence[tuple[Any, ...]], folder: Path, told: Callable[[int, T], None]
    ) -> list[T]:
        from fedzero.engines.ray.spread import spread  # needs an extra

        return spread(work, calls, folder, self, told)
