"""What a task is made into, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta

from fedzero.directions import Keys
from fedzero.oracles import Objective, Shards
from fedzero.params import Params

Positive = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class Problem:
    """A task made concrete: where to start, what to minimise, who holds what.

    facts: what a reader of the run should know of it beside the recipe; part of the ledger, so a resume with other
    facts (another victim, other data) is refused.
    """

    params: Params
    objective: Objective
    shards: Shards
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a problem is built: keys of the run, device, the folder with the data (if any), and functions that were
    given by name, because a recipe cannot contain them."""

    keys: Keys
    device: torch.device
    data: Path | None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
