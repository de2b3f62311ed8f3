"""The labels of clients, of tasks whose shards have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.tasks.images import LabelledShards


def labels_in(shards: Any) -> Sequence[NDArray[Any]] | None:
    """The labels of every client's samples; None: the task has no classes."""
    if isinstance(shards, LabelledShards):
        return [shards.y.cpu().numpy()[part] for part in shards.parts]
    if hasattr(shards, "data") and hasattr(shards.data, "labels"):
        return [np.array(shards.data.labels)[part] for part in shards.parts]
    return None
