"""The runs of a stage on a Ray cluster, in the place of a pool of processes: one task a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from fedzero.engines.ray import Ray
from fedzero.engines.ray.on_ray import connected
from fedzero.engines.ray.spread import spread
from fedzero.ledger.folder import LEDGER
from fedzero_papers.experiments.contract import Job
from fedzero_papers.experiments.pool import Report, failure
from fedzero_papers.experiments.worker import Done, Failed, Message, Order, execute


class ClusterPool:
    """As `Pool`: a context manager that keeps the cluster from one stage to the next."""

    def __init__(self, how: Ray, root: Path, data: Path | None):
        self.how, self.root, self.data = how, root.resolve(), data
        self._connection = ExitStack()

    def __enter__(self) -> Self:
        self._connection.enter_context(connected((self.how.workers or 0) * self.how.cpus))
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def run(self, jobs: Sequence[tuple[Job, bool]], report: Report) -> None:
        """Make all runs. The first failure ends it."""

        def told(number: int, message: Message) -> None:
            job = jobs[number][0]
            if isinstance(message, Failed):
                raise failure(self.root, job, message)
            assert isinstance(message, Done)
            report(job, message)

        orders = [Order(job.recipe, self.root / job.folder, begun, self.data) for job, begun in jobs]
        if orders:
            spread(made, [(order,) for order in orders], self.root, self.how, told)


def made(order: Order) -> Message:
    """A task that Ray tries again finds what it had begun."""
    begun = (order.folder / LEDGER).exists()
    return execute(Order(order.recipe, order.folder, begun, order.data), lambda progress: None)
