"""Where a run computes: a device, set up so that the same run gives the same numbers again."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache

import torch

from fedzero.errors import FedzeroError


def device_of(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise FedzeroError("engine.device = 'cuda' but torch sees no CUDA device: use 'cpu' or 'auto'")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        # A finite difference divides the noise of a loss by μ: full float32, and the same kernels every time.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    else:
        keep_freed_memory()
    return torch.device(wanted)


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks: forward passes allocate the same megabytes again and again, and getting them
    from the kernel, page by page, took nearly half of a round. Without glibc this does nothing."""
    trim_threshold, mmap_threshold, one_gigabyte = -1, -3, 1 << 30
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, one_gigabyte)
        libc.mallopt(mmap_threshold, one_gigabyte)


def thread_count() -> int:
    return torch.get_num_threads()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads on a CPU for a while; the last bits of a loss depend on them."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def workers(count: int) -> ThreadPoolExecutor:
    """So many threads, each of which computes alone. To be used inside `threads(1)`: MKL counts for all of them."""
    return _workers(count, os.getpid())


@cache
def _workers(count: int, pid: int) -> ThreadPoolExecutor:
    """One pool for each process: threads do not survive a fork."""
    return ThreadPoolExecutor(count, "fedzero-point", initializer=torch.set_num_threads, initargs=(1,))
