"""What the scripts of this folder share: the command line, the choice of rows, files that are the same each time."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import FedzeroError
from fedzero.model.files import draft_of

Array = NDArray[Any]


def first_of_each(classes: range, labels: Array, count: int) -> Array:
    """Positions of the first `count` labels of each class, in order; an error where a class has fewer."""
    found = [np.flatnonzero(labels == label)[:count] for label in classes]
    fewest = min(len(positions) for positions in found)
    if fewest < count:
        raise FedzeroError(f"{count} of each class are wanted, but one class has only {fewest}: is the file complete?")
    return np.sort(np.concatenate(found))


def save(path: Path, arrays: dict[str, Array], method: int = zipfile.ZIP_LZMA) -> None:
    """An .npz file; the same arrays give the same bytes. LZMA makes it a quarter smaller than what NumPy writes."""
    with draft_of(path) as draft, zipfile.ZipFile(draft, "w") as file:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            file.writestr(info, content.getvalue(), method)
    print(f"{path}: {path.stat().st_size:,} bytes")


def main(make: Callable[[Path, Path], None], about: str | None) -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("originals", type=Path, help="folder with the downloaded files")
    parser.add_argument("out", type=Path, help="data folder to write to, which --data then names")
    given = parser.parse_args()
    try:
        make(given.originals, given.out)
    except (FedzeroError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
