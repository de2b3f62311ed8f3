"""CIFAR-10 (Krizhevsky 2009): 32×32 colour images, ten classes; a subset of 10,000 and 2,000, from the data folder.

The dataset has no explicit licence, so it does not travel with the package.
"""

from __future__ import annotations

import lzma
import zipfile
from pathlib import Path

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.tasks.images import Images

FILE = "cifar10/cifar10-subset.npz"
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(folder: Path | None) -> Images:
    """All images, (n, 32, 32, 3) bytes, and their labels 0 to 9."""
    if folder is None:
        raise FedzeroError("CIFAR-10 is not in the package: give --data DIR or set FEDZERO_DATA")
    path = folder / FILE
    try:
        with np.load(path) as data:
            images = Images(data["x_train"], data["y_train"], data["x_test"], data["y_test"])
    except FileNotFoundError:
        raise FedzeroError(f"{path} is missing: put the CIFAR-10 subset there, or point --data elsewhere") from None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, lzma.LZMAError) as error:
        raise FedzeroError(f"{path} cannot be read: {error}") from error
    for x, y in ((images.train_x, images.train_y), (images.test_x, images.test_y)):
        if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3) or y.shape != x.shape[:1] or (y > 9).any():
            raise FedzeroError(f"{path} is damaged: its parts are not 32×32 colour images of ten classes")
    return images
