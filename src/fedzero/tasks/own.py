"""A model, data and a loss that a program has: what `fedzero.train` trains, and what a site declares as its own.

A recipe cannot hold them, so it names them, and the process that runs it has them by that name. The parameters the run
began with are kept in its folder: everything that needs no data (replay, verify, patch, report) works without them.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from msgspec import UNSET, UnsetType
from torch import Tensor, nn

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.checkpoint import load_base
from fedzero.model.fixed import FACT, Fixed
from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.oracles import Objective
from fedzero.oracles.chunked import Chunked
from fedzero.oracles.criteria import Batch, Criterion, Supervised, refuse_ignored
from fedzero.oracles.module import ModuleObjective
from fedzero.oracles.reported import TEST, Reported
from fedzero.oracles.rows import OfPersons
from fedzero.tasks.contract import BASE, DEALT_OUT, BuildContext, Problem, Task
from fedzero.tasks.finite import expect_finite, expect_finite_loss, expect_finite_model
from fedzero.tasks.fitting import OwnObjective, check_fit
from fedzero.tasks.partition import drawn
from fedzero.tasks.samples import Dealt, Indices, Samples, content

TESTED = 1000
"""Samples in a pass of an evaluation."""
PROBED = 8
"""Samples that are evaluated twice before a run begins."""


NO_MODULE = (
    "the model of this run is made by code that its ledger does not have: open it with that code, "
    "fedzero.Run.open(folder, model=…), a module or a function that makes it; run.replay() needs none, and gives what "
    "was trained"
)


class Own(Task, tag="own"):
    """A model, data and a loss of your own, from Python: see `fedzero.train` and `fedzero.site_task`."""

    name: str = "task"
    """How the process that runs the recipe calls them."""
    batch: PositiveInt = 32
    exact: bool = False
    """Points of rank-one directions at weights of their own, as those of others are: slower, and the bits of a view."""
    chunk: PositiveInt | UnsetType = UNSET
    """Samples of a batch that are evaluated at a time, where memory is short; without it, all of them."""

    @property
    def label(self) -> str:
        return self.name

    def module(self, context: BuildContext, given: nn.Module | None = None) -> nn.Module:
        if given is None:
            raise FedzeroError(NO_MODULE)
        return given

    def build(self, clients: int, context: BuildContext) -> Problem:
        found = context.functions.get(self.name)
        if isinstance(found, LocalTask):
            return found.build(clients, self.batch, self.exact, self.chunk or 0)
        return without_data(clients, context, self.name)


def without_data(clients: int, context: BuildContext, name: str) -> Problem:
    """The parameters that a run began with, from its folder: enough to replay it."""
    missing = f"the model and the data of {name!r} are not in the recipe: repeat the call that began the run"
    if context.folder is None or not (context.folder / BASE).exists():
        raise FedzeroError(missing)
    nothing = Nothing(clients, missing)
    return Problem(load_base(context.folder / BASE, context.device), nothing, nothing, incomplete=missing)


@dataclass(frozen=True)
class Nothing:
    """In the place of an objective and of data that are elsewhere."""

    clients: int
    missing: str

    def losses(self, *_: Any) -> NoReturn:
        raise FedzeroError(self.missing)

    gradient = evaluate = batch = losses


@dataclass(frozen=True, eq=False)
class LocalTask:
    """A module, what is measured of it, and the samples of every client; `test` are those of evaluations.

    `everywhere`: the data of one site, whatever numbers its clients have. `reported`: test data, where `test` are those
    for validation.
    """

    module: nn.Module
    criterion: Criterion
    clients: Sequence[Samples]
    test: Sequence[Samples]
    everywhere: bool = False
    reported: Sequence[Samples] = ()
    persons: Sequence[Indices] | None = None
    """Of the rows of every client, as numbers, if it is known whose they are."""

    def measuring(self, data: Sequence[Samples], chunk: int = 0) -> Objective:
        """The objective whose evaluation is of these data."""
        device = next(self.module.parameters()).device
        check_fit(self.module, self.criterion, [("data", samples) for samples in data], device, self._check)
        batches = list(_passes(data, device, min(TESTED, chunk or TESTED)))
        return OwnObjective(ModuleObjective(self.module, batches, self.criterion))

    def build(self, clients: int, batch: int, exact: bool = False, chunk: int = 0) -> Problem:
        if self.everywhere:  # a site may begin with several runs, and several times
            alone = replace(self, module=copy.deepcopy(self.module), everywhere=False)
            return alone._built(clients, batch, exact, chunk, private=True)
        if clients != len(self.clients):
            raise FedzeroError(f"there are data of {len(self.clients)} clients, but federation.clients = {clients}")
        return self._built(clients, batch, exact, chunk)

    def _built(self, clients: int, batch: int, exact: bool, chunk: int, private: bool = False) -> Problem:
        params, device = Params.of_module(self.module), next(self.module.parameters()).device
        shards: Any = OwnShards(self.clients, clients, batch, device, self._check)
        shards = shards if self.persons is None else OfPersons(shards, self.persons)
        named = [(f"client {number}", samples) for number, samples in enumerate(self.clients)]
        if self.test is not self.clients:
            named += [("test", samples) for samples in (*self.test, *self.reported)]
        check_fit(self.module, self.criterion, named, device, self._check)
        probe = self.clients[0].batch(np.arange(min(PROBED, len(self.clients[0]))), device)
        losses = repeatable(self.module, self.criterion, probe)
        self._expect_finite(params, losses, device)
        scalar = losses.dim() == 0
        vmapped = device.type != "cpu" and _vmaps(self.module, self.criterion, probe, params)
        test = list(_passes(self.test, device, min(TESTED, chunk or TESTED)))
        whole = OwnObjective(ModuleObjective(self.module, test, self.criterion, vmapped, not scalar, exact))
        objective: Objective = Chunked(whole, chunk) if chunk else whole
        if self.reported:
            objective = Reported(objective, {TEST: self.measuring(self.reported, chunk)})
        fixed, model, data = Fixed.of_module(self.module, params), about_model(self.module, params), self._about_data()
        if fixed is not None:
            model[FACT] = str(fixed)
        if private:
            return Problem(params, objective, shards, model, private_facts=data, keep_base=True, fixed=fixed)
        return Problem(params, objective, shards, model | data, keep_base=True, fixed=fixed)

    def _expect_finite(self, params: Params, first: Tensor, device: torch.device) -> None:
        """first: losses of the first samples of client 0."""
        expect_finite_model(params)

        def losses(batch: Batch) -> Tensor:
            with torch.no_grad():
                return self.criterion.losses(self.module, batch)

        expect_finite(self.clients, (self.test, self.reported), losses, device)
        expect_finite_loss(first, "client 0")

    def _check(self, batch: Batch) -> None:
        if isinstance(self.criterion, Supervised):
            if not (isinstance(batch, tuple | list) and len(batch) == 2):
                raise FedzeroError(
                    "`loss` is of pairs (x, y), but a batch is something else: give `objective`, a function of the "
                    "model and a batch"
                )
            refuse_ignored(self.criterion.loss, batch[1])

    def _about_data(self) -> dict[str, str]:
        hashed = hashlib.sha256()
        for samples in (*self.clients, *self.test, *self.reported):
            hashed.update(samples.digest())
        count = sum(len(samples) for samples in self.clients)
        about = {"data": f"{count:,} samples of {len(self.clients):,} clients, {hashed.hexdigest()[:16]}"}
        if isinstance(self.clients, Dealt):  # a part's digest is of positions
            whole = self.clients.whole
            about[DEALT_OUT] = f"{len(whole):,} samples, {whole.digest().hex()[:16]}"
        return about


class OwnShards:
    """Batches are drawn from a client's own samples, without replacement."""

    def __init__(
        self,
        samples: Sequence[Samples],
        clients: int,
        size: int,
        device: torch.device,
        check: Callable[[Batch], None] = lambda batch: None,
    ):
        self.samples, self.clients, self.size, self.device, self.check = samples, clients, size, device, check

    no_rows = ""

    def rows(self, client: int) -> int:
        return len(self.samples[client % len(self.samples)])

    held = rows

    def part(self, client: int) -> int:
        """Clients with equal numbers have the same samples."""
        return client % len(self.samples)

    def content(self) -> bytes:
        """SHA-256 of all samples, however they are dealt out."""
        if isinstance(self.samples, Dealt):
            return self.samples.whole.digest()
        return hashlib.sha256(b"".join(sorted(each.digest() for each in self.samples))).digest()

    def taken(self, client: int, places: Indices) -> Batch:
        batch = self.samples[client % len(self.samples)].batch(places, self.device)
        self.check(batch)
        return batch

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Batch:
        return self.taken(client, drawn(np.arange(self.rows(client)), self.size, keys, round, step, client))


def _passes(parts: Sequence[Samples], device: torch.device, size: int) -> Iterator[Batch]:
    for samples in parts:
        for first in range(0, len(samples), size):
            yield samples.batch(np.arange(first, min(first + size, len(samples))), device)


def about_model(module: nn.Module, params: Params) -> dict[str, str]:
    """The fact about a module of somebody's own."""
    name, total = type(module).__name__, sum(p.numel() for p in module.parameters())
    return {"model": f"{name}, {total:,} parameters, {params.size:,} of them trained, {_structure(module)}"}


def _structure(module: nn.Module) -> str:
    """Digest of a module without its trained parameters: layers, shapes, frozen weights and buffers."""
    hashed = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(module)).encode())  # addresses say nothing
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad} | dict(module.named_buffers())
    for name, tensor in module.state_dict(keep_vars=True).items():
        about = f"{tuple(tensor.shape)} {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
        hashed.update(f"{name} {about}".encode())
    for name, tensor in frozen.items():
        hashed.update(name.encode() + content(tensor))
    return hashed.hexdigest()[:16]


def repeatable(module: nn.Module, criterion: Criterion, batch: Batch) -> Tensor:
    """The losses of a batch, which must be the same a second time and leave the module as it was."""
    module.eval()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    (losses, first), (_, second) = (_traced(module, criterion, batch) for _ in range(2))
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise FedzeroError(
                f"evaluating the model changes its buffer {name!r} even in eval mode: two evaluations would not be of "
                "the same function; keep it fixed"
            )
    for (name, once), (_, again) in zip(first, second, strict=False):
        if not _same(once, again):
            place = f"the layer {name!r} ({type(module.get_submodule(name)).__name__})" if name else "the model"
            raise FedzeroError(
                f"{place} gives other values for the same input and weights the second time, so random numbers play a "
                "part in it, and two evaluations would differ by more than a step: turn them off in eval mode"
            )
    if not isinstance(losses, Tensor):
        raise FedzeroError(f"the loss is a {type(losses).__name__}: return a tensor, one number or one for each sample")
    return losses


Trace = list[tuple[str, list[Tensor]]]
"""What every part of a module gave, in order, by the part's name."""


def _traced(module: nn.Module, criterion: Criterion, batch: Batch) -> tuple[Tensor, Trace]:
    outputs: Trace = []
    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: outputs.append((name, _tensors(output))))
        for name, part in module.named_modules()
    ]
    try:
        with torch.no_grad():
            losses = criterion.losses(module, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return losses, [*outputs, ("", _tensors(losses))]


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output.clone()]
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(first, second, strict=True))


def _vmaps(module: nn.Module, criterion: Criterion, probe: Batch, params: Params) -> bool:
    """Whether torch can evaluate several copies of the module at once, to the numbers of one after the other."""
    objective = ModuleObjective(module, (), criterion, together=True)
    stacked = {name: torch.stack([tensor, tensor]) for name, tensor in params.tensors.items()}
    try:
        with torch.no_grad():
            both = torch.vmap(lambda tensors: objective.losses_of(tensors, [probe]))(stacked)
            return torch.allclose(both[1], objective.losses_of(params.tensors, [probe]), rtol=1e-4, atol=1e-5)
    except RuntimeError:  # an operation without a batching rule, or in place
        return False
