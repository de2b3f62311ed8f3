"""Ray, imported only here: connecting to or starting a cluster, its workers, calls, and their failures.

Ray takes care of placement, restarts and resources. It restarts a worker that died with the same arguments.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from fedzero.engines.ray import Ray
from fedzero.engines.ray.worker import Blueprint, Worker
from fedzero.errors import FedzeroError

Ref = Any
"""A reference to a future result, or to a value that is kept for all workers."""
INLINE = 100_000
"""Larger messages (in bytes) are put in the object store once instead of being sent to every worker."""


class WorkerRestarting(Exception):
    """The worker died, or cannot be reached, before it answered; Ray starts it again."""


class WorkerDead(WorkerRestarting):
    """The worker died, and Ray does not start it again."""


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise FedzeroError("engine = 'ray' needs Ray: pip install 'fedzero[ray]'") from None
    return ray


@contextmanager
def connected(cores: float = 0) -> Iterator[Any]:
    """Ray: the connection that this process has, the cluster at RAY_ADDRESS, or a new cluster on this machine with at
    least `cores` cores, which ends with the block."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if "RAY_ADDRESS" in os.environ:
        try:
            ray.init(**quiet)
        except ConnectionError as error:
            raise FedzeroError(f"RAY_ADDRESS = {os.environ['RAY_ADDRESS']}: no cluster answers ({error})") from None
    else:
        count = max(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, -int(-cores // 1))
        ray.init(address="local", num_cpus=count, include_dashboard=False, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Actors:
    """Long-lived actors, one per worker, and the device on which they compute."""

    ray: Any
    handles: Sequence[Any]
    device: str


_kept: list[Actors] = []


@contextmanager
def keeping(how: Ray) -> Iterator[Actors]:
    """Workers that all runs of this process share inside the block, so that they are started only once."""
    with _started(how) as actors:
        _kept.append(actors)
        try:
            yield actors
        finally:
            _kept.pop()


@contextmanager
def workers(how: Ray) -> Iterator[Actors]:
    """Workers of a run: the kept ones, or new ones that end with the run."""
    if not _kept:
        with _started(how) as actors:
            yield actors
        return
    kept = _kept[-1]
    if (how.workers or 0) > len(kept.handles):
        raise FedzeroError(f"engine.workers = {how.workers}, but {len(kept.handles)} workers are kept for all runs")
    yield replace(kept, handles=kept.handles[: how.workers])


@contextmanager
def _started(how: Ray) -> Iterator[Actors]:
    with connected((how.workers or 0) * how.cpus) as ray:
        has = ray.cluster_resources()
        gpus = how.gpus_each(has.get("GPU", 0))
        fitting = int(has.get("GPU", 0) / gpus if gpus else has.get("CPU", 0) / how.cpus)
        actor = ray.remote(Worker).options(
            num_cpus=how.cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        handles = [actor.remote() for _ in range(how.workers or max(1, fitting))]
        try:
            yield Actors(ray, handles, "cuda" if gpus else "cpu")
        finally:
            for handle in handles:
                ray.kill(handle)


class WorkerPool:
    """The workers of one run, which build what they need from a blueprint."""

    def __init__(self, actors: Actors, blueprint: Blueprint):
        self._ray, self._actors, self.size = actors.ray, actors.handles, len(actors.handles)
        self._run, self._blueprint = uuid4().hex, actors.ray.put(blueprint)

    def about(self, worker: int) -> Ref:
        """A worker's process and base model, once it has built everything that the run needs."""
        return self._actors[worker].about.remote(self._run, self._blueprint)

    def call(self, worker: int, method: str, *arguments: Any) -> Ref:
        return self._actors[worker].call.remote(method, *arguments)

    def put(self, value: Any) -> Ref:
        """Store a value once for all workers of a machine; a call with this reference as argument gets the value."""
        return self._ray.put(value)

    def first(self, refs: Collection[Ref], seconds: float | None = None) -> list[Ref]:
        """The first of these values that is ready; empty if none is after so many seconds."""
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=seconds)
        return list(ready)

    def result(self, ref: Ref) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            if isinstance(error.cause, FedzeroError):
                raise error.cause from None
            if isinstance(error.cause, errors.RaySystemError):  # the worker cannot read its arguments
                why = str(error.cause).strip().splitlines()[-1].strip()
                advice = "install what the run needs on all machines, and its objects in a module that can be imported"
                raise FedzeroError(f"a worker cannot load what it was sent ({why}): {advice}") from None
            raise
        except errors.ActorDiedError as error:
            raise WorkerDead(str(error)) from error
        except (errors.RayActorError, errors.ObjectLostError, errors.OutOfMemoryError) as error:
            raise WorkerRestarting(str(error)) from error

    def restart(self, worker: int) -> None:
        """Kill the worker; Ray starts it again, from the base model."""
        self._ray.kill(self._actors[worker], no_restart=False)


def inlined(pool: WorkerPool, messages: Sequence[bytes]) -> list[Any]:
    """Messages as arguments of calls to several workers."""
    return [pool.put(message) if len(message) > INLINE else message for message in messages]
