"""The data set of a run, known by its content, whatever the recipe makes of it.

A server chooses recipes, names of runs, models and batches; it does not choose the rows. So what has to hold over all
of them is counted by data set. Digests stay at the site.

    data_set(shards)      SHA-256 of the rows; of tasks that cannot say it, all count as one data set
    content_of(shards)    the same where whoever chose the recipe has the data, too
    part_of(shards, i)    which rows client i has: no row is in two parts of a run
"""

from __future__ import annotations

import hashlib
from typing import Protocol, runtime_checkable

OTHERS = hashlib.sha256(b"the data of tasks that do not tell their content").digest()
"""A recipe says how text is cut and which rows are used, so a digest of the result would be the server's choice."""


@runtime_checkable
class Told(Protocol):
    """Shards that can tell their data apart from others without the recipe."""

    def content(self) -> bytes:
        """SHA-256 of the rows, the same for all recipes."""
        ...

    def part(self, client: int) -> int:
        """Clients with equal numbers have the same rows, others have none in common."""
        ...


def data_set(shards: object) -> bytes:
    return hashlib.sha256(shards.content()).digest() if isinstance(shards, Told) else OTHERS


def part_of(shards: object, client: int) -> int:
    return shards.part(client) if isinstance(shards, Told) else client


@runtime_checkable
class HasContent(Protocol):
    """Shards whose data have a content, whatever the recipe makes of them."""

    def content(self) -> bytes: ...


def content_of(shards: object) -> bytes:
    """The data set of a run of this process, whose recipes are its user's own: also of tasks with files, which have
    names."""
    return hashlib.sha256(shards.content()).digest() if isinstance(shards, HasContent) else OTHERS
