"""Recording work on a GPU as a CUDA graph: what it needs around it, and work that is recorded the second time."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Replayed:
    """Work that always does the same, at the same addresses: on a GPU it is recorded the second time, and replayed.

    It must leave nothing in Python that it would have to do again. Recordings with the same pool of memory may not run
    at the same time.
    """

    def __init__(self, device: torch.device, recorded: bool = True, pool: Any = None):
        self.device, self.pool = device, pool
        self._records, self._warm = recorded and device.type == "cuda", False
        self._graph: Any = None

    def __call__(self, work: Callable[[], object]) -> None:
        if self._records and self._warm and self._graph is None:
            self._record(work)
        if self._graph is not None:
            self._graph.replay()
        elif self._records:
            self._first(work)
        else:
            work()

    def _first(self, work: Callable[[], object]) -> None:
        """Kernels are compiled and chosen, buffers allocated, before anything is recorded."""
        side: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with as_if_capturing(), on_stream(side, self.device):
            work()
        self._warm = True

    def _record(self, work: Callable[[], object]) -> None:
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool), no_garbage_collection():
                work()
        except RuntimeError as error:  # such as a model that reads a number back from the GPU
            warnings.warn(f"a GPU's work is not recorded, which is slower: {error}", RuntimeWarning, stacklevel=3)
            self._records = False
        else:
            self._graph = graph


@contextmanager
def as_if_capturing() -> Iterator[None]:
    """`torch.cuda.is_current_stream_capturing()` is true, so that a warm-up takes the path of the recording.

    Some releases of transformers make a causal mask in a recording that they leave out otherwise. A compiled layer
    that first gets it in the recording would be compiled there, which is impossible.
    """
    original = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = original


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Freeing a graph of an earlier run would invalidate the recording in progress."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def on_stream(side: Any, device: torch.device) -> Iterator[None]:
    """On another stream, as warm-ups have to be."""
    here = torch.cuda.current_stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield
    here.wait_stream(side)
