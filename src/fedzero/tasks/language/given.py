"""A model and rows that a program has, in the place of names and files: what `fedzero.finetune` trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedzero.oracles import Objective
from fedzero.tasks.language.pretrained import Pretrained
from fedzero.tasks.language.texts import Row
from fedzero.tasks.partition import Indices

GIVEN = "given:"
"""How the name of a model, or of a file of rows, begins in a recipe where a program has them."""


@dataclass(eq=False)
class InMemoryModel:
    """`clients`: the rows of every client. `module` and `tokenizer`: None where the recipe names a model to load.

    `opened` is the model as it is trained, once the task is built: with its adapters, if it has any.
    """

    module: Any
    tokenizer: Any
    clients: Sequence[Sequence[Row]]
    test: Sequence[Row]
    opened: Pretrained | None = None
    reported: Sequence[Row] = ()
    """Rows of test data, where `test` are those for validation."""
    measuring: Callable[[Sequence[Row]], Objective] | None = None
    """The objective whose evaluation is of other rows, once the task is built."""

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.clients for row in rows]

    @property
    def trained(self) -> Any:
        """The module as it is trained."""
        assert self.opened is not None, "the task is built"
        return self.opened.module

    def parts(self) -> list[Indices]:
        """Positions of every client's rows among all of them."""
        ends = np.cumsum([len(rows) for rows in self.clients])
        return [np.arange(end - len(rows), end) for rows, end in zip(self.clients, ends, strict=True)]

    def content(self) -> bytes:
        """SHA-256 of all rows of the clients, however they are dealt out."""
        rows = sorted(json.dumps(dict(row), sort_keys=True, default=str) for row in self.rows)
        return hashlib.sha256("\n".join(rows).encode()).digest()

    def digest(self) -> str:
        more = [list(self.reported)] if self.reported else []
        rows = json.dumps([list(map(list, self.clients)), list(self.test), *more], sort_keys=True, default=str)
        return hashlib.sha256(rows.encode()).hexdigest()[:16]
