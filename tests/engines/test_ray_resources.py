"""The share of a cluster that a worker and a task of `spread` take; needs no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedzero.engines.ray import Ray
from fedzero.engines.ray import spread as spreading

CASES = [
    (Ray(), 2, 1.0),
    (Ray(), 0, 0.0),
    (Ray(device="cpu"), 2, 0.0),
    (Ray(gpus=0.25), 2, 0.25),
    (Ray(gpus=0), 2, 0.0),
]


class Cluster:
    """A Ray that plays a task at once."""

    def __init__(self, gpus: float):
        self.resources, self.taken = {"CPU": 4.0, "GPU": gpus} if gpus else {"CPU": 4.0}, dict[str, Any]()

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, work: Any) -> Any:
        cluster = self

        class Task:
            def options(self, **options: Any) -> Any:
                cluster.taken = options
                return self

            def remote(self, *arguments: Any) -> Any:
                return work(*arguments)

        return Task()

    def put(self, value: Any) -> Any:
        return value

    def wait(self, refs: list[Any], num_returns: int) -> Any:
        return refs[:1], refs[1:]

    def get(self, ref: Any) -> Any:
        return ref

    class exceptions:  # noqa: N801 - as Ray has it
        class RayTaskError(Exception):
            pass


@pytest.mark.parametrize(("how", "gpus", "each"), CASES)
def test_a_whole_run_takes_as_many_gpus_as_a_worker(
    how: Ray, gpus: float, each: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(gpus)

    @contextmanager
    def connected(cores: float = 0) -> Iterator[Any]:
        yield cluster

    monkeypatch.setattr(spreading, "connected", connected)
    monkeypatch.setattr(spreading.torch, "set_num_threads", lambda count: None)
    assert spreading.spread(abs, [(-3,)], tmp_path, how, lambda number, found: None) == [3]
    assert cluster.taken["num_gpus"] == how.gpus_each(gpus) == each
