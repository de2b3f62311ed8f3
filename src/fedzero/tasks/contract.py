"""What a task is: a frozen struct that builds a problem.

class Rosenbrock(Task, tag="rosenbrock"):
    dimension: PositiveInt = 10

    def build(self, clients: int, context: BuildContext) -> Problem: …
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from fedzero.callbacks import ignore
from fedzero.directions import Keys
from fedzero.errors import FedzeroError, Sendable
from fedzero.model.fixed import Fixed
from fedzero.model.params import Params
from fedzero.model.value import TaggedConfig
from fedzero.oracles import Metrics, Objective, Pictures, Readied, Sample, Shards
from fedzero.oracles.blackbox import Metered
from fedzero.oracles.portable import Oracle

FIXED = "fixed.safetensors"
"""Frozen weights and buffers of the module, beside the base: see `model.fixed`."""
BASE = "base.safetensors"
"""The parameters a run began with, in its folder, where they cannot be made again from the recipe."""
DEALT_OUT = "dataset"
"""The fact about the dataset that a partition deals out; releases until 0.2.1 did not write it."""


@dataclass(frozen=True)
class Problem:
    """A task made concrete: where to start, what to minimise, which client has which data.

    facts: what a reader should know besides the recipe; part of the ledger, so a resume with other facts (another
    victim, other data) is refused. metered: the objective, where every query is logged and may count against a budget;
    the log is in the ledger, or at a site in a file of its own. pictures: of the result, where it is an image.
    samples: what a language model says, of rows that may be on the ledger of a server that has them.
    keep_base: the parameters go into the run's folder, because the recipe alone does not make them. incomplete: why
    there are parameters but no data, if so; such a run can be replayed, not resumed. private_facts: of data that this
    site alone has; they are kept there and never sent. Where they are not None, an evaluation is the lower median over
    sites. fixed: what the module has beside the parameters, kept in the run's folder with them where it is small.
    """

    params: Params
    objective: Objective
    shards: Shards
    facts: Mapping[str, str] = field(default_factory=dict)
    metered: Metered | None = None
    pictures: Callable[[Params], Pictures] | None = None
    samples: Callable[[Params], Sequence[Sample]] | None = None
    keep_base: bool = False
    incomplete: str = ""
    private_facts: Mapping[str, str] | None = None
    fixed: Fixed | None = None

    def ready(self) -> None:
        """Find what the objective calls: a run is about to begin, or to go on. Reading a ledger evaluates nothing, so
        it never comes here, and imports and starts nothing that a recipe names."""
        if isinstance(self.objective, Readied):
            self.objective.ready()

    def measure(self, params: Params, after: int, last: bool = False) -> Metrics:
        """The metrics of a model after so many rounds; last: no round follows."""
        return self.objective.evaluate(params) if self.metered is None else self.metered.measure(params, after, last)


Phase = Callable[[str], None]
"""Is told what is going on that takes a while."""


@dataclass(frozen=True)
class BuildContext:
    """Keys of the run, device, the folder with the data (if any), functions and other objects by name, which a recipe
    cannot hold, and the folder of the run.

    phase: is told what takes long while a task is built, such as "training a victim". trusted: whether the recipe may
    name code, programs, services and files of this machine; at a site, to which it was sent, it may not. files: what a
    site has declared, by the names that recipes have for it. model: where a site has whatever model a recipe names.
    foreign: the recipe came with a ledger that this user has not started and does not trust: nothing that it names is
    run, imported or fetched. person: the column that names the person of a row, if units are persons: the shards of a
    task with columns are `PersonShards` then.
    """

    keys: Keys
    device: torch.device
    data: Path | None
    functions: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    phase: Phase = ignore
    trusted: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    foreign: bool = False
    person: str = ""

    def path(self, name: str, key: str) -> str:
        """What the value of a recipe's key, the path of a file or a folder, means on this machine.

        A recipe that was sent to a site names what the site has declared; of anything else the site does not even look
        whether it is there.
        """
        if name in self.files or self.trusted:
            return self.files.get(name, name)
        raise Sendable(
            f"{key} = {name!r} is not among the files that this site has declared: the site can declare it, "
            "`fedzero join KIT --file NAME=PATH`"
        )


def refuse_foreign(what: str) -> NoReturn:
    """Not run, imported or fetched: `what` the recipe of a foreign ledger names."""
    raise FedzeroError(
        f"the ledger names {what}, and this user has not started this run here: give --trust (in Python, trust=True) "
        "if you know where it comes from"
    )


class Task(TaggedConfig):
    """What is optimised, on whose data. The fields are the keys of a recipe's `[task]` table."""

    @property
    def least_loss(self) -> float:
        """No loss of the task is below it: what somebody says that is, is not believed."""
        return -math.inf

    @property
    def label(self) -> str:
        """The name of the task in tables and pages."""
        return str(self.__struct_config__.tag)

    def build(self, clients: int, context: BuildContext) -> Problem:
        """Load data and model; raise `FedzeroError` for what is missing or does not fit."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse, when a recipe is read, what decodes and no run can be given. Recipes of ledgers are not checked."""

    def at_site(self, model: str | None) -> Task:
        """The task at a site that keeps the model at another path than the recipe's."""
        return self

    def runs(self, functions: Mapping[str, Any]) -> list[str]:
        """What the task would run, import or call of what its recipe names, apart from what is in `functions`."""
        return []

    def fetches(self) -> list[str]:
        """What the task may fetch from elsewhere, such as a model of a hub."""
        return []

    def module(self, context: BuildContext, given: nn.Module | None = None) -> nn.Module | None:
        """The module whose parameters a run trains, without data: `given`, before training, or made as the recipe says;
        None: the task trains none. Raise `FedzeroError` where it must be given."""
        return given

    def oracle(self, context: BuildContext) -> Oracle:
        """What `fedzero export-oracle` makes a graph of: logits of rows of numbers. Refused where it has none."""
        raise FedzeroError(f"task.kind = {self.__struct_config__.tag!r} is not a classification of rows of numbers")

    def portable(self) -> Task:
        """The task as a patch contains it, without local paths."""
        return self

    def open_base(self, base: str, context: BuildContext, out: Path, tokenizer: str | None = None) -> Base | None:
        """The base model of a patch, to be saved to `out`, where it is more than a safetensors file; else None."""
        return None


@dataclass(frozen=True)
class Base:
    """A base model that a patch is applied to; `save(merge)` writes it, with its adapters merged or not."""

    params: Params
    save: Callable[[bool], None]
