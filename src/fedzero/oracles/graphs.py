"""Forward passes recorded once and replayed as CUDA graphs: nothing is launched from Python a second time.

A recording is of one shape, one model and one capacity of terms: none, one, or up to `MAX_TERMS`. The terms lie at a
fixed address and are replaced between replays. Shapes are rounded up, so that batches of many sizes share few
recordings. Kernels of a small model fill a GPU only in part, so several points are evaluated at the same time, in lanes
with their own buffers. All recordings use one memory pool: the output of a replay is copied before the next. Layers
before the first trained one have a recording of their own, replayed once for all points of a batch. A recording of
points side by side is of one number of them, and makes their factors from terms at a fixed address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fedzero.directions import Domain, Terms, kernels
from fedzero.model.params import Params, View
from fedzero.oracles.capture import as_if_capturing, no_garbage_collection, on_stream
from fedzero.oracles.frozen_prefix import FrozenPrefix
from fedzero.oracles.low_rank import Neighbours, NeighboursBuffer, most_terms
from fedzero.oracles.packing import PackedBatch
from fedzero.oracles.piecewise import Piecewise

MAX_TERMS = 1024
"""Terms of a point at most: a client's steps before this one, and the probe."""
MAX_RECORDINGS = 64
"""The least recently used is dropped."""
ROWS, PROMPTS, TARGETS = 2, 8, 64
"""Rows and prompts of a batch, and targets where it has some, are padded to multiples of these."""
LANES, LANES_BYTES = 4, 64 << 20
"""Lanes at most, and the size of the buffers of all of them if there are several."""

Forward = Callable[[Tensor, Tensor, bool], Tensor]
"""Tokens and ends of a batch, and whether its rows are shared, to logits (B, answers)."""

BatchedForward = Callable[[Params, Neighbours, Tensor, Tensor, bool, Tensor | None], Tensor]
"""A base, points around it, tokens and ends of a batch, whether its rows are shared, and the output of the frozen
layers for it, to logits (points, B, answers)."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph, the outputs of its lanes, and what must live as long as it does."""

    graph: Any
    outputs: tuple[Tensor, ...]
    held: tuple[object, ...]


@dataclass(frozen=True, eq=False)
class InputBuffers:
    """What graphs of one shape read: tokens (3, R, T), ends (2 or 3, B), whether rows are shared.

    `prefix` writes to `hidden` (R, T, H) the output of the frozen layers, where there are any.
    """

    tokens: Tensor
    ends: Tensor
    shared: bool
    prefix: Captured | None = None
    hidden: Tensor | None = None

    def load(self, batch: PackedBatch) -> None:
        _, rows, width = batch.tokens.shape
        self.tokens.zero_()
        self.tokens[:, :rows, :width] = batch.tokens
        self.ends.zero_()
        self.ends[:, : batch.ends.shape[1]] = batch.ends
        if self.prefix is not None:
            self.prefix.graph.replay()


@dataclass(frozen=True, eq=False)
class Recording:
    """Passes at points, one in each lane: buffers of their terms, their inputs, and the graph.

    Of points side by side: a single lane, whose terms are the factors of all points.
    """

    terms: tuple[Any, ...]
    inputs: InputBuffers
    passes: Captured
    held: tuple[object, ...]


class Recorder:
    """Logits of a model at points, from recordings that are made when first needed."""

    def __init__(
        self,
        pieces: Piecewise,
        forward: Forward,
        prefix: FrozenPrefix | None = None,
        beside: BatchedForward | None = None,
    ):
        self.pieces, self.forward, self.prefix, self.beside = pieces, forward, prefix, beside
        self._pool: Any = None
        self._recordings: OrderedDict[tuple[Any, ...], Recording] = OrderedDict()
        self._inputs: WeakValueDictionary[tuple[Any, ...], InputBuffers] = WeakValueDictionary()

    def logits(self, base: Params, points: Sequence[Terms], batch: PackedBatch) -> Tensor:
        """(points, B, answers); a point has `MAX_TERMS` terms at most."""
        found: list[Tensor] = [batch.tokens] * len(points)
        loaded: InputBuffers | None = None
        padded = self.lanes(len(points)) > 1  # a point without terms joins the others, with a term that adds nothing
        stream = points[0].stream
        points = [Terms.of([0], [0.0], stream) if padded and not len(point) else point for point in points]
        for capacity in (0, 1, MAX_TERMS):
            which = [i for i, point in enumerate(points) if _capacity(point) == capacity]
            if not which:
                continue
            lanes = self.lanes(len(which)) if capacity else 1
            recording = self._recording(base, stream, capacity, lanes, batch)
            if recording.inputs is not loaded:
                loaded = recording.inputs
                loaded.load(batch)
            uploaded = recording.terms[0].upload([points[i] for i in which]) if capacity else None
            for first in range(0, len(which), lanes):
                some = which[first : first + lanes]
                if uploaded is not None:
                    for lane in range(len(some)):
                        recording.terms[lane].load(uploaded[first + lane])
                recording.passes.graph.replay()
                for lane, i in enumerate(some):
                    found[i] = recording.passes.outputs[lane][: batch.ends.shape[1]].clone()
        return torch.stack(found)

    def side_by_side(self, base: Params, points: Sequence[Terms], size: int, batch: PackedBatch) -> Tensor:
        """(points, B, answers), `size` points at a time."""
        terms = 1 << (most_terms(points) - 1).bit_length()
        key = (base, size, terms)
        recording = self._kept(key, batch, lambda inputs: self._record_beside(base, size, terms, inputs), 1)
        recording.inputs.load(batch)
        found = []
        for first in range(0, len(points), size):
            some = list(points[first : first + size])
            recording.terms[0].load(some + some[:1] * (size - len(some)))
            recording.passes.graph.replay()
            found.append(recording.passes.outputs[0][: len(some), : batch.ends.shape[1]].clone())
        return torch.cat(found)

    def lanes(self, points: int) -> int:
        """How many points at a time: the fewest that need no further replay, of those the buffers allow."""
        most = max(1, min(LANES, points, LANES_BYTES // max(1, self.pieces.scratch_bytes)))
        return -(-points // -(-points // most)) if points else 1

    def _recording(self, base: Params, stream: Domain, capacity: int, lanes: int, batch: PackedBatch) -> Recording:
        key = (base, stream if capacity else None, capacity, lanes)
        return self._kept(key, batch, lambda inputs: self._record(base, stream, capacity, lanes, inputs))

    def _kept(
        self, what: tuple[Any, ...], batch: PackedBatch, record: Callable[[InputBuffers], Recording], step: int = ROWS
    ) -> Recording:
        """The recording of `what`, a base and more, for the shape of a batch with its rows padded to so many."""
        rows, width = -(-batch.tokens.shape[1] // step) * step, batch.tokens.shape[2]
        kinds, prompts = batch.ends.shape
        least = PROMPTS if kinds == 2 else TARGETS
        shape = (rows, width, (kinds, -(-prompts // least) * least), batch.shared)
        key = (*what, *shape)
        if key not in self._recordings:
            self._recordings[key] = record(self._inputs_of(what[0], *shape))
            while len(self._recordings) > MAX_RECORDINGS:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        return self._recordings[key]

    def _inputs_of(self, base: Params, rows: int, width: int, prompts: tuple[int, int], shared: bool) -> InputBuffers:
        """The inputs of a shape: the same for all recordings, and kept as long as any of them."""
        key = (base, rows, width, prompts, shared)
        inputs = self._inputs.get(key)
        if inputs is None:
            tokens = torch.zeros(3, rows, width, dtype=torch.int64, device=base.device)
            ends = torch.zeros(prompts, dtype=torch.int64, device=base.device)
            self._inputs[key] = inputs = self._with_prefix(InputBuffers(tokens, ends, shared))
        return inputs

    def _with_prefix(self, inputs: InputBuffers) -> InputBuffers:
        if self.prefix is None:
            return inputs
        compute = partial(self.prefix.compute, partial(self.forward, inputs.tokens, inputs.ends, inputs.shared))
        with as_if_capturing():
            hidden = torch.empty_like(compute())  # outside the pool: other graphs read it
        captured = self._captured([lambda: hidden.copy_(compute())], inputs.tokens.device)
        return replace(inputs, prefix=captured, hidden=hidden)

    def _record(self, base: Params, stream: Domain, capacity: int, lanes: int, inputs: InputBuffers) -> Recording:
        terms = tuple(_terms(stream, capacity, base.device) for _ in range(lanes))

        def run(lane: int) -> Tensor:
            hidden = inputs.hidden
            prefix = nullcontext() if self.prefix is None or hidden is None else self.prefix.returning(hidden)
            with torch.no_grad(), prefix, self.pieces.at(View(base, terms[lane]), lane=lane):
                return self.forward(inputs.tokens, inputs.ends, inputs.shared)

        passes = self._captured([partial(run, lane) for lane in range(lanes)], base.device)
        return Recording(terms, inputs, passes, self.pieces.held)

    def _record_beside(self, base: Params, size: int, terms: int, inputs: InputBuffers) -> Recording:
        assert self.beside is not None
        near, beside = NeighboursBuffer(size, terms, base.device), self.beside

        def run() -> Tensor:
            return beside(base, near.neighbours(base), inputs.tokens, inputs.ends, inputs.shared, inputs.hidden)

        return Recording((near,), inputs, self._captured([run], base.device), ())

    def _captured(self, runs: Sequence[Callable[[], Tensor]], device: torch.device) -> Captured:
        """Runs recorded to be executed at the same time, each in a lane."""
        streams: list[Any] = [torch.cuda.Stream(device) for _ in runs]  # type: ignore[no-untyped-call]
        with as_if_capturing():
            for _ in range(2):  # kernels are compiled and chosen, buffers allocated, before anything is recorded
                for run, side in zip(runs, streams, strict=True):
                    with on_stream(side, device):
                        run()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool), no_garbage_collection():
            if len(runs) == 1:
                return Captured(graph, (runs[0](),), (streams,))
            here = torch.cuda.current_stream(device)
            outputs = []
            for side in streams:
                side.wait_stream(here)
            for run, side in zip(runs, streams, strict=True):
                with torch.cuda.stream(side):
                    outputs.append(run())
            for side in streams:
                here.wait_stream(side)
            return Captured(graph, tuple(outputs), (streams,))


def _capacity(terms: Terms) -> int:
    return len(terms) if len(terms) < 2 else MAX_TERMS


def _terms(stream: Domain, capacity: int, device: torch.device) -> Any:
    """Terms that can be replaced; with a capacity of zero, no terms."""
    if not capacity:
        return Terms.of([], [], stream)
    gpu: Any = kernels(device)
    buffer = gpu.TermsBuffer(stream, capacity, device)
    buffer.load(buffer.upload([Terms.of([0], [0.0], stream)])[0])
    return buffer
