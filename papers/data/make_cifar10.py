"""Make the CIFAR-10 subset of experiment E6.

    python make_cifar10.py ORIGINALS OUT     ORIGINALS/cifar-10-python.tar.gz -> OUT/cifar10/cifar10-subset.npz

The original is at https://www.cs.toronto.edu/~kriz/cifar.html. Taken are the first 1,000 training and the first 200
test images of each class, in the original's order (batches 1 to 5, then the test batch), as (n, 32, 32, 3) bytes;
`idx_train` and `idx_test` are their positions there.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from originals import Array, first_of_each, main, save

from fedzero.errors import FedzeroError

ORIGINAL, FILE = "cifar-10-python.tar.gz", "cifar10/cifar10-subset.npz"
TRAIN, TEST = 1_000, 200
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""All that a batch needs: a dictionary with one array of bytes and a list of labels."""


class BatchUnpickler(pickle.Unpickler):
    """Reads the pickles of the original, which Python 2 wrote; refuses all that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise FedzeroError(f"{ORIGINAL} asks for {module}.{name}: this is not the original")
        return ALLOWED[module, name]


def read(archive: tarfile.TarFile, name: str) -> tuple[Array, Array]:
    """Images (n, 32, 32, 3) and labels (n,) of one batch, as bytes."""
    member = archive.extractfile(f"cifar-10-batches-py/{name}")
    assert member is not None
    batch = BatchUnpickler(io.BytesIO(member.read()), encoding="bytes").load()
    pixels = np.asarray(batch[b"data"], np.uint8)  # red, green, blue, each 32 rows of 32
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(batch[b"labels"], np.uint8)


def make(originals: Path, out: Path, train: int = TRAIN, test: int = TEST) -> None:
    with tarfile.open(originals / ORIGINAL) as archive:
        try:
            batches = [read(archive, f"data_batch_{number}") for number in range(1, 6)]
            tests = read(archive, "test_batch")
        except (KeyError, ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise FedzeroError(f"{originals / ORIGINAL} is not the original: {error}") from error
    arrays: dict[str, Array] = {}
    trains = np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])
    for part, (x, y), count in (("train", trains, train), ("test", tests, test)):
        chosen = first_of_each(range(10), y, count)
        arrays |= {f"x_{part}": x[chosen], f"y_{part}": y[chosen], f"idx_{part}": chosen.astype(np.int32)}
    save(out / FILE, arrays)


if __name__ == "__main__":
    main(make, __doc__)
