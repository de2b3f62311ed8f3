"""Covertype (Blackard, Dean, Anderson 1998): what grows on a patch of forest, from 54 features of a map; seven classes.

The usual split: the first 11,340 rows (1,620 of each class) for training, the next 3,780 (540 of each) for validation,
the rest for testing. The package has the first 200 training and the first 250 test rows of each class. Both files are
made by `papers/data/make_covertype.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import FedzeroError
from fedzero.model.files import load_arrays
from fedzero.oracles.contract import F32

FILE, SUBSET = "covertype/covtype.npz", "data/covertype-subset.npz"
TRAIN, VALIDATION = 11_340, 3_780
SUBSET_TRAIN = 1_400
CLASSES, FEATURES = 7, 54
WILDERNESS, SOIL = 4, 40


@dataclass(frozen=True)
class Part:
    """Rows (n, 54), and their classes 0 to 6."""

    x: F32
    y: NDArray[np.int64]


@dataclass(frozen=True)
class Covertype:
    """To train a classifier on, to say how good it is, and to divide among clients."""

    train: Part
    validation: Part
    test: Part


@lru_cache(maxsize=2)
def load(full: bool, folder: Path | None) -> Covertype:
    """The whole dataset from the data folder, or the subset of the package, whose test rows serve for validation, too.

    The ten numeric features are standard scores by the training rows; area and soil are one-hot. Kept, because a
    process that makes many runs would spend more time unpacking than running.
    """
    if not full:
        path, first, second = Path(str(resources.files("fedzero_papers"))) / SUBSET, SUBSET_TRAIN, SUBSET_TRAIN
    elif folder is None:
        raise FedzeroError("task.full = true needs the Covertype file: give --data DIR or set FEDZERO_DATA")
    else:
        path, first, second = folder / FILE, TRAIN, TRAIN + VALIDATION
    x, y = _features(path, first)
    if len(y) <= second:
        raise FedzeroError(f"{path} has {len(y)} rows: {second} are for training and validation alone")
    rest = Part(x[second:], y[second:])
    return Covertype(Part(x[:first], y[:first]), Part(x[first:second], y[first:second]) if full else rest, rest)


def _features(path: Path, train: int) -> tuple[F32, NDArray[np.int64]]:
    """(n, 54) and classes 0 to 6."""
    numbers, area, soil, classes = load_arrays(path, "num", "wilderness", "soil", "y")
    numeric, y = numbers.T.astype(np.float32), classes.astype(np.int64) - 1
    rows, fits = len(y), numeric.shape == (len(y), FEATURES - WILDERNESS - SOIL) and len(area) == len(soil) == len(y)
    if not fits or rows == 0 or area.max() >= WILDERNESS or soil.max() >= SOIL or y.min() < 0 or y.max() >= CLASSES:
        raise FedzeroError(f"{path} is damaged: its parts do not make rows of {FEATURES} features in {CLASSES} classes")
    known = numeric[:train].astype(np.float64)
    centre, spread = known.mean(axis=0).astype(np.float32), known.std(axis=0).astype(np.float32)
    x = np.zeros((rows, FEATURES), np.float32)
    x[:, :10] = (numeric - centre) / np.where(spread > 0, spread, np.float32(1))
    x[np.arange(rows), 10 + area.astype(np.int64)] = 1
    x[np.arange(rows), 10 + WILDERNESS + soil.astype(np.int64)] = 1
    return x, y
