"""Forward passes recorded once and replayed (CUDA graphs): nothing is launched from Python a second time.

A recording is of one shape, one model and one number of terms: none, one, or up to `MANY`. The terms lie at a fixed
place and are replaced between replays. Shapes are rounded up, so that batches of many sizes share few recordings.
Kernels of a small model fill a GPU only in part, so several points are evaluated side by side, in lanes with buffers
of their own. All recordings take their memory from one pool: what a replay leaves is copied away before the next.
Layers below the first trained one have a recording to themselves, replayed once for all points of a sheet.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fedzero.directions import Domain, Terms, kernels
from fedzero.model.params import Params, View
from fedzero.oracles.packing import PackedBatch
from fedzero.oracles.piecewise import Piecewise
from fedzero.oracles.stem import FrozenPrefix

MANY = 1024
"""Terms of a point at most: a client's steps before this one, and the probe."""
KEPT = 64
"""Recordings kept; the one longest unused goes first."""
ROWS, PROMPTS = 2, 8
"""To multiples of these the rows of a sheet and its prompts are filled up."""
LANES, LANES_BYTES = 4, 64 << 20
"""Lanes at most, and what buffers of all lanes may take; one lane has what it needs."""

Forward = Callable[[Tensor, Tensor, bool], Tensor]
"""Tokens and ends of a sheet, and whether its rows are shared, to logits (B, answers)."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph, what its lanes leave when it is replayed, and what must live as long as it does."""

    graph: Any
    found: tuple[Tensor, ...]
    held: tuple[object, ...]


@dataclass(frozen=True, eq=False)
class InputBuffers:
    """Where sheets of one shape are laid for graphs to read: tokens (3, R, T), ends (2, B), whether rows are shared.

    `below` leaves in `hidden` (R, T, H) what layers below the first trained one make of a sheet, if any can be spared.
    """

    tokens: Tensor
    ends: Tensor
    shared: bool
    below: Captured | None = None
    hidden: Tensor | None = None

    def lay(self, sheet: PackedBatch) -> None:
        _, rows, width = sheet.tokens.shape
        self.tokens.zero_()
        self.tokens[:, :rows, :width] = sheet.tokens
        self.ends.zero_()
        self.ends[:, : sheet.ends.shape[1]] = sheet.ends
        if self.below is not None:
            self.below.graph.replay()


@dataclass(frozen=True, eq=False)
class Recording:
    """Passes at points, one in each lane: the terms that can be replaced, the desk they read from, what they leave."""

    live: tuple[Any, ...]
    desk: InputBuffers
    passes: Captured
    held: tuple[object, ...]


class Recorder:
    """Logits of a model at points, from recordings that are made when first needed."""

    def __init__(self, pieces: Piecewise, forward: Forward, stem: FrozenPrefix | None = None):
        self.pieces, self.forward, self.stem = pieces, forward, stem
        self._pool: Any = None
        self._kept: OrderedDict[tuple[Any, ...], Recording] = OrderedDict()
        self._desks: WeakValueDictionary[tuple[Any, ...], InputBuffers] = WeakValueDictionary()

    def logits(self, base: Params, points: Sequence[Terms], sheet: PackedBatch) -> Tensor:
        """(points, B, answers); a point has `MANY` terms at most."""
        found: list[Tensor] = [sheet.tokens] * len(points)
        laid: InputBuffers | None = None
        lone = self.lanes(len(points)) > 1  # a point without terms joins the others, with a term that adds nothing
        stream = points[0].stream
        points = [Terms.of([0], [0.0], stream) if lone and not len(point) else point for point in points]
        for capacity in (0, 1, MANY):
            which = [i for i, point in enumerate(points) if _capacity(point) == capacity]
            if not which:
                continue
            lanes = self.lanes(len(which)) if capacity else 1
            recording = self._recording(base, stream, capacity, lanes, sheet)
            if recording.desk is not laid:
                laid = recording.desk
                laid.lay(sheet)
            bank = recording.live[0].bank([points[i] for i in which]) if capacity else None
            for first in range(0, len(which), lanes):
                some = which[first : first + lanes]
                if bank is not None:
                    for lane in range(len(some)):
                        recording.live[lane].take(bank[first + lane])
                recording.passes.graph.replay()
                for lane, i in enumerate(some):
                    found[i] = recording.passes.found[lane][: sheet.ends.shape[1]].clone()
        return torch.stack(found)

    def lanes(self, points: int) -> int:
        """How many points at a time: as few as make the fewest turns, of those there is room for."""
        most = max(1, min(LANES, points, LANES_BYTES // max(1, self.pieces.scratch_bytes)))
        return -(-points // -(-points // most)) if points else 1

    def _recording(self, base: Params, stream: Domain, capacity: int, lanes: int, sheet: PackedBatch) -> Recording:
        rows, width = -(-sheet.tokens.shape[1] // ROWS) * ROWS, sheet.tokens.shape[2]
        prompts = -(-sheet.ends.shape[1] // PROMPTS) * PROMPTS
        shape = (rows, width, prompts, sheet.shared)
        key = (id(base), stream if capacity else None, capacity, lanes, *shape)
        if key not in self._kept:
            self._kept[key] = self._record(base, stream, capacity, lanes, self._desk(base, *shape))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _desk(self, base: Params, rows: int, width: int, prompts: int, shared: bool) -> InputBuffers:
        """The desk for a shape: one for all recordings, and as long as any of them is kept."""
        key = (id(base), rows, width, prompts, shared)
        desk = self._desks.get(key)
        if desk is None:
            tokens = torch.zeros(3, rows, width, dtype=torch.int64, device=base.device)
            ends = torch.zeros(2, prompts, dtype=torch.int64, device=base.device)
            self._desks[key] = desk = self._with_stem(InputBuffers(tokens, ends, shared))
        return desk

    def _with_stem(self, desk: InputBuffers) -> InputBuffers:
        if self.stem is None:
            return desk
        made = partial(self.stem.made, partial(self.forward, desk.tokens, desk.ends, desk.shared))
        with rehearsing():
            hidden = torch.empty_like(made())  # of no pool: it is read by other graphs
        below = self._captured([lambda: hidden.copy_(made())], desk.tokens.device)
        return replace(desk, below=below, hidden=hidden)

    def _record(self, base: Params, stream: Domain, capacity: int, lanes: int, desk: InputBuffers) -> Recording:
        live = tuple(_live(stream, capacity, base.device) for _ in range(lanes))

        def run(lane: int) -> Tensor:
            spared = nullcontext() if self.stem is None or desk.hidden is None else self.stem.given(desk.hidden)
            with torch.no_grad(), spared, self.pieces.at(View(base, live[lane]), lane=lane):
                return self.forward(desk.tokens, desk.ends, desk.shared)

        passes = self._captured([partial(run, lane) for lane in range(lanes)], base.device)
        return Recording(live, desk, passes, (base, *self.pieces.held))

    def _captured(self, runs: Sequence[Callable[[], Tensor]], device: torch.device) -> Captured:
        """Runs recorded side by side, each in a lane."""
        streams = [_stream(device) for _ in runs]
        with rehearsing():
            for _ in range(2):  # kernels are compiled and chosen, buffers made, before anything is recorded
                for run, side in zip(runs, streams, strict=True):
                    with _aside(side, device):
                        run()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool), _uncollected():
            if len(runs) == 1:
                return Captured(graph, (runs[0](),), (streams,))
            here = torch.cuda.current_stream(device)
            found = []
            for side in streams:
                side.wait_stream(here)
            for run, side in zip(runs, streams, strict=True):
                with torch.cuda.stream(side):
                    found.append(run())
            for side in streams:
                here.wait_stream(side)
            return Captured(graph, tuple(found), (streams,))


def _capacity(terms: Terms) -> int:
    return len(terms) if len(terms) < 2 else MANY


def _live(stream: Domain, capacity: int, device: torch.device) -> Any:
    """Terms that can be replaced; where there are none, none."""
    if not capacity:
        return Terms.of([], [], stream)
    gpu: Any = kernels(device)
    live = gpu.LiveTerms(stream, capacity, device)
    live.take(live.bank([Terms.of([0], [0.0], stream)])[0])
    return live


@contextmanager
def rehearsing() -> Iterator[None]:
    """Whoever asks whether a stream is being recorded is told yes: a rehearsal goes the way the recording will.

    Some releases of transformers make a causal mask in a recording that they leave out otherwise. A compiled layer
    that first meets it there would have to be compiled there, which cannot be done.
    """
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: a graph of some earlier run that were freed now would spoil this recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _aside(side: Any, device: torch.device) -> Iterator[None]:
    """On another stream, as what precedes a recording has to be."""
    here = torch.cuda.current_stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield
    here.wait_stream(side)
