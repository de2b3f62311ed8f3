"""Make the Covertype files of experiment E7.

    python make_covertype.py ORIGINALS OUT     ORIGINALS/covtype.data.gz -> OUT/covertype/covtype.npz
                                                                            OUT/covertype/covertype-subset.npz

The original is at https://archive.ics.uci.edu/dataset/31/covertype (CC BY 4.0): 581,012 lines of ten numbers, four and
forty columns of which one is 1 (area and soil), and the class. Stored without loss: `num` (10, n) int16, `wilderness`
and `soil` as positions, `y` 1 to 7. The subset, which is in the package, has the first 200 of the 11,340 training rows
and the first 250 of the test rows (from row 15,121 on) of each class.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from originals import Array, first_of_each, main, save

from fedzero.errors import FedzeroError
from fedzero_papers.tasks.covertype import FEATURES, FILE, SOIL, SUBSET, TRAIN, VALIDATION, WILDERNESS

ORIGINAL = "covtype.data.gz"
SUBSET_TRAIN, SUBSET_TEST = 200, 250


def position(columns: Array) -> Array:
    """Which of the columns is 1, of every row."""
    if not ((columns == 0) | (columns == 1)).all() or not (columns.sum(axis=1) == 1).all():
        raise FedzeroError(f"{ORIGINAL} is not the original: a row has no or several areas or soils")
    found: Array = columns.argmax(axis=1).astype(np.uint8)
    return found


def arrays(table: Array) -> dict[str, Array]:
    """Rows of the original, (n, 55), as they are stored."""
    numeric, area, soil, y = np.split(table, np.cumsum([FEATURES - WILDERNESS - SOIL, WILDERNESS, SOIL]), axis=1)
    return {
        "num": np.ascontiguousarray(numeric.T),
        "wilderness": position(area),
        "soil": position(soil),
        "y": y[:, 0].astype(np.uint8),
    }


def make(
    originals: Path,
    out: Path,
    split: tuple[int, int] = (TRAIN, VALIDATION),
    subset: tuple[int, int] = (SUBSET_TRAIN, SUBSET_TEST),
) -> None:
    try:
        table = np.loadtxt(originals / ORIGINAL, np.int16, delimiter=",", ndmin=2)
    except (ValueError, EOFError) as error:
        raise FedzeroError(f"{originals / ORIGINAL} is not the original: {error}") from error
    if table.shape[1] != FEATURES + 1:
        raise FedzeroError(f"{originals / ORIGINAL} is not the original: it has {table.shape[1]} columns")
    save(out / FILE, arrays(table))
    train, test = split[0], sum(split)
    chosen = [
        first_of_each(range(1, 8), table[:train, -1], subset[0]),
        test + first_of_each(range(1, 8), table[test:, -1], subset[1]),
    ]
    save(out / Path(FILE).parent / Path(SUBSET).name, arrays(table[np.concatenate(chosen)]), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main(make, __doc__)
