"""RCV1 (Lewis et al. 2004): news stories as sparse vectors of 47,236 term weights, in two classes.

The file is a sample of RCV1-v2 in compressed rows, not LIBSVM's `rcv1_train.binary`: same features, same rule for the
labels, other documents. Its licence is "research use", so it does not travel with the package.
"""

from __future__ import annotations

import lzma
import zipfile
from pathlib import Path

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.oracles.contract import F64
from fedzero_papers.oracles.rows import SparseRows

FILE = "rcv1/rcv1-binary-sample.npz"
TRAIN = 19_000
"""The first rows are for training, the rest for testing."""


def load(folder: Path) -> tuple[SparseRows, F64]:
    """All rows and their labels ±1."""
    path = folder / FILE
    try:
        with np.load(path) as data:
            offsets, indices = data["indptr"].astype(np.int64), data["indices"].astype(np.int64)
            values, labels = data["data"].astype(np.float64), data["y"].astype(np.float64)
            rows, width = (int(size) for size in data["shape"])
    except FileNotFoundError:
        raise FedzeroError(f"{path} is missing: put the RCV1 sample there, or point --data elsewhere") from None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, lzma.LZMAError) as error:
        raise FedzeroError(f"{path} cannot be read: {error}") from error
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
        raise FedzeroError(f"{path} is damaged: its parts do not make {rows} rows of {width} columns labelled ±1")
    return SparseRows(offsets, indices, values, width), labels
