"""The crew: worker processes that share out the runs of a stage."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from fedzero.errors import FedzeroError
from fedzero.run import recipe as recipes
from fedzero_papers.experiments import worker
from fedzero_papers.experiments.contract import Job
from fedzero_papers.experiments.worker import Done, Failed, Message, Order, Progress

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
Report = Callable[[Job, Progress | Done], None]


class Worker:
    """One worker, and what it is doing."""

    def __init__(self, threads: int):
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.line: Connection
        self.line, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=worker.serve, args=(theirs,), daemon=True)
        with _environment(dict.fromkeys(THREADS, str(threads))), _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()
        self.job: Job | None = None

    def give(self, job: Job, order: Order) -> None:
        self.job = job
        self.line.send(order)

    def hear(self) -> Message:
        """The next message; a worker that died is a failure with a sentence."""
        try:
            message: Message = self.line.recv()
            return message
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode
            how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
            return Failed(f"its process {how}; finished rounds are kept, and the same command goes on from there")


class Crew:
    """At most `size` workers, started when there is work for them; a context manager that ends them."""

    def __init__(self, size: int, root: Path, data: Path | None):
        self.size, self.root, self.data = size, root, data
        self._hands: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Killing is gentle enough: an entry of a ledger is whole or not there.
        for hand in self._hands:
            hand.process.kill()
        for hand in self._hands:
            hand.process.join()
            hand.line.close()
        self._hands.clear()

    def run(self, jobs: Sequence[tuple[Job, bool]], report: Report) -> None:
        """Make all runs; each comes with whether it was begun before. The first failure ends it."""
        todo = list(reversed(jobs))
        while len(self._hands) < min(self.size, len(todo)):
            # By the size of the crew, not by what is left to do: the number of threads can change a loss's last bits.
            self._hands.append(Worker(threads=max(1, cores() // self.size)))
        for hand in self._hands[: len(todo)]:
            self._employ(hand, *todo.pop())
        while busy := {hand.line: hand for hand in self._hands if hand.job is not None}:
            for line in wait(list(busy)):
                assert isinstance(line, Connection)
                hand = busy[line]
                job, message = hand.job, hand.hear()
                assert job is not None
                if isinstance(message, Failed):
                    raise self._failure(job, message)
                report(job, message)
                if isinstance(message, Done):
                    hand.job = None
                    if todo:
                        self._employ(hand, *todo.pop())

    def _employ(self, hand: Worker, job: Job, begun: bool) -> None:
        data = None if self.data is None else str(self.data)
        hand.give(job, Order(str(self.root / job.folder), recipes.canonical(job.recipe), begun, data))

    def _failure(self, job: Job, failed: Failed) -> FedzeroError:
        where = ""
        if failed.trace:
            path = self.root / job.folder / "error.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(failed.trace, encoding="utf-8")
            where = f" (trace in {path})"
        return FedzeroError(f"run {job.folder}: {failed.sentence}{where}")


def cores() -> int:
    """Those this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Libraries read their thread counts when they are loaded, so they must be there before the process is."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A terminal sends Ctrl-C to workers, too; only the parent is to answer it. A new process inherits the deafness."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread: no Ctrl-C comes here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
