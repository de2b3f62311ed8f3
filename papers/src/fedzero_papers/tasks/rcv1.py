"""RCV1 (Lewis et al. 2004): news stories as sparse vectors of 47,236 term weights, in two classes.

The file is a sample of RCV1-v2 in compressed rows, not LIBSVM's `rcv1_train.binary`: same features, same rule for the
labels, other documents. Its licence is "research use", so it does not travel with the package;
`papers/data/make_rcv1.py` makes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.model.files import load_arrays
from fedzero.oracles.contract import F64
from fedzero_papers.oracles.rows import SparseRows

FILE = "rcv1/rcv1-binary-sample.npz"
TRAIN = 19_000
"""The first rows are for training, the rest for testing."""


def load(folder: Path) -> tuple[SparseRows, F64]:
    """All rows and their labels ±1."""
    offsets, indices, values, labels, shape = load_arrays(folder / FILE, "indptr", "indices", "data", "y", "shape")
    offsets, indices = offsets.astype(np.int64), indices.astype(np.int64)
    values, labels = values.astype(np.float64), labels.astype(np.float64)
    rows, width = map(int, shape) if shape.shape == (2,) else (-1, -1)
    whole = (
        offsets.shape == (rows + 1,)
        and labels.shape == (rows,)
        and offsets[0] == 0
        and offsets[-1] == len(indices) == len(values)
        and bool((np.diff(offsets) >= 0).all())
        and bool(((indices >= 0) & (indices < width)).all())
        and bool((np.abs(labels) == 1).all())
        and bool(np.isfinite(values).all())
    )
    if not whole:
        raise FedzeroError(f"{folder / FILE} is damaged: its parts do not make {rows} rows of {width} columns, ±1")
    return SparseRows(offsets, indices, values, width), labels
