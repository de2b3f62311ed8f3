"""The pool of worker processes that share out the runs of a stage."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Self

from fedzero.errors import FedzeroError
from fedzero.model.files import write
from fedzero_papers.experiments import worker
from fedzero_papers.experiments.contract import Job
from fedzero_papers.experiments.worker import Done, Failed, Message, Order, Progress

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
Report = Callable[[Job, Progress | Done], None]


class Worker:
    """One worker process, and the job it has."""

    def __init__(self, threads: int):
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=worker.serve, args=(theirs,), daemon=True)
        with _inherited(threads):
            self.process.start()
        theirs.close()
        self.job: Job | None = None

    def assign(self, job: Job, order: Order) -> None:
        self.job = job
        self.connection.send(order)

    def receive(self) -> Message:
        """The next message; a worker that died is a failure with a sentence."""
        try:
            message: Message = self.connection.recv()
            return message
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode
            how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
            return Failed(f"its process {how}; finished rounds are kept, and the same command resumes the run")


class Pool:
    """At most `size` workers, started when there is work for them; a context manager that ends them."""

    def __init__(self, size: int, root: Path, data: Path | None):
        self.size, self.root, self.data = size, root, data
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A kill does no harm: an entry of a ledger is whole or not there.
        for each in self._workers:
            each.process.kill()
        for each in self._workers:
            each.process.join()
            each.connection.close()
        self._workers.clear()

    def run(self, jobs: Sequence[tuple[Job, bool]], report: Report) -> None:
        """Make all runs; each comes with whether it was begun before. The first failure ends it."""
        todo = list(reversed(jobs))
        while len(self._workers) < min(self.size, len(todo)):
            # By the size of the pool, not by what is left to do: the number of threads can change a loss's last bits.
            self._workers.append(Worker(threads=max(1, cores() // self.size)))
        for each in self._workers[: len(todo)]:
            self._assign(each, *todo.pop())
        while busy := {each.connection: each for each in self._workers if each.job is not None}:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                each = busy[connection]
                job, message = each.job, each.receive()
                assert job is not None
                if isinstance(message, Failed):
                    raise failure(self.root, job, message)
                report(job, message)
                if isinstance(message, Done):
                    each.job = None
                    if todo:
                        self._assign(each, *todo.pop())

    def _assign(self, each: Worker, job: Job, begun: bool) -> None:
        each.assign(job, Order(job.recipe, self.root / job.folder, begun, self.data))


def failure(root: Path, job: Job, failed: Failed) -> FedzeroError:
    path = root / job.folder / "error.txt"
    if failed.trace:
        write(path, failed.trace)
    return FedzeroError(f"run {job.folder}: {failed.sentence}" + (f" (trace in {path})" if failed.trace else ""))


def cores() -> int:
    """Those this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _inherited(threads: int) -> Iterator[None]:
    """What a new process inherits: thread counts, which libraries read when they are loaded, and that it ignores
    Ctrl-C, which a terminal sends to workers, too, and which only the parent is to answer."""
    before = {name: os.environ[name] for name in THREADS if name in os.environ}
    listens = threading.current_thread() is threading.main_thread()  # no Ctrl-C comes to other threads
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if listens else None
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name in THREADS:
            del os.environ[name]
        os.environ.update(before)
        if listens:
            signal.signal(signal.SIGINT, handler)
