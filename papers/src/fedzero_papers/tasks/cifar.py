"""CIFAR-10 (Krizhevsky 2009): 32×32 colour images, ten classes; a subset of 10,000 and 2,000, from the data folder.

The dataset has no explicit licence, so it does not travel with the package; `papers/data/make_cifar10.py` makes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.model.files import load_arrays
from fedzero.tasks.images import Images

FILE = "cifar10/cifar10-subset.npz"
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(folder: Path | None) -> Images:
    """All images, (n, 32, 32, 3) bytes, and their labels 0 to 9."""
    if folder is None:
        raise FedzeroError("CIFAR-10 is not in the package: give --data DIR or set FEDZERO_DATA")
    images = Images(*load_arrays(folder / FILE, "x_train", "y_train", "x_test", "y_test"))
    for x, y in ((images.train_x, images.train_y), (images.test_x, images.test_y)):
        if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3) or y.shape != x.shape[:1] or (y > 9).any():
            raise FedzeroError(f"{folder / FILE} is damaged: its parts are not 32×32 colour images of ten classes")
    return images
