"""With how many threads a run is computed: sums over a merged batch are split among them, so last bits depend on it."""

from __future__ import annotations

import os

from msgspec import UnsetType

from fedzero.ledger.records import Start
from fedzero.model.params import Params
from fedzero.recipe.recipe import Recipe


def used(recipe: Recipe, start: Start) -> int | None:
    """How many a run goes on with; None: all that there are."""
    if not recipe.engine.merge:
        return 1
    return None if isinstance(start.threads, UnsetType) else start.threads


def doubt(start: Start, recipe: Recipe, params: Params) -> str:
    """Why a resumed run may end in other last bits, if so: sums over a batch are taken by so many threads."""
    if not recipe.engine.merge or next(iter(params.tensors.values())).device.type != "cpu":
        return ""
    if isinstance(start.threads, UnsetType):
        return (
            "the ledger does not say with how many threads the run was started: with another number than then, the "
            "last bits of its values may differ"
        )
    if start.threads > (cores := os.cpu_count() or 1):
        return (
            f"the run was started with {start.threads} threads, and this machine has {cores} cores: the last bits of "
            "its values may differ"
        )
    return ""
