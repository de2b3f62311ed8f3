"""FedAvg on the quadratic (docs/ledger.md, "Methods"): from nothing, and from the checkpoint and the dense updates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from recompute.file import File, floats
from recompute.quadratic import Quadratic
from recompute.rounds import bounded, cohort, mean, rate_at, weights


def difference(recipe: Mapping[str, Any], task: Quadratic, x: np.ndarray, round: int, client: int) -> np.ndarray:
    """x_i − x after K steps of a client."""
    a, end, velocity = recipe["algorithm"], x, np.zeros_like(x)
    for k in range(a["local_steps"]):
        velocity = np.float32(a["momentum"]) * velocity + np.float32(1 - a["momentum"]) * task.gradient(
            end, round, k, client
        )
        end = end + np.float32(-rate_at(a["rate"], round)) * velocity
    return end - x


def trained(recipe: Mapping[str, Any], root: bytes) -> np.ndarray:
    """The last model, from the recipe alone."""
    task = Quadratic(recipe, root)
    x = np.zeros(task.d, np.float32)
    for round in range(recipe["rounds"]):
        drawn = cohort(recipe, root, round)
        given, _ = bounded({c: difference(recipe, task, x, round, c) for c in drawn}, recipe["federation"]["bound"])
        x = x + mean(given, weights(drawn))
    return x


def restored(file: File) -> np.ndarray:
    """The last model, from what the file keeps: the checkpoint, and the dense updates after it."""
    saved = file.of("saved")[-1]
    assert hashlib.sha256(file.checkpoint).digest() == saved["state"]
    x = floats(file.checkpoint)
    for record in file.rounds[saved["round"] :]:
        body = file.dense[record["round"]]
        assert hashlib.sha256(body).digest() == record["update"]
        kind, round, values = msgspec.msgpack.decode(body)
        assert (kind, round) == (2, record["round"])
        x = x + floats(values)
    return x
