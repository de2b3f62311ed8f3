"""MNIST and Fashion-MNIST: the packaged real subsets, or the full IDX files from a data folder."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.errors import FedzeroError
from fedzero.model.files import load_arrays, opened, read
from fedzero.tasks.partition import DrawnShards, Indices

Dataset = Literal["mnist", "fashion"]
FOLDERS = {"mnist": "mnist", "fashion": "fashion-mnist"}
"""Where the four IDX files of a dataset lie within the data folder."""
STATISTICS = {"mnist": (0.1307, 0.3081), "fashion": (0.2860, 0.3530)}
"""Mean and deviation of the training pixels, in units of 255."""

LARGEST = 1 << 28
"""Bytes of an IDX file, unpacked: five times that of the training images."""


@dataclass(frozen=True)
class Images:
    """Grey images and labels, as bytes."""

    train_x: NDArray[np.uint8]
    train_y: NDArray[np.uint8]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.uint8]


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, gzipped or not."""
    if not path.exists() and path.with_suffix("").exists():
        path = path.with_suffix("")
    try:
        raw = _unpacked(path) if path.suffix == ".gz" else read(path, LARGEST)
    except FileNotFoundError:
        raise FedzeroError(f"{path} is missing: put the four IDX files there, or point --data elsewhere") from None
    except (OSError, EOFError, zlib.error) as error:
        raise FedzeroError(f"{path} cannot be read: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise FedzeroError(f"{path} is not an IDX file of bytes")
    header = 4 + 4 * raw[3]
    shape = [int(size) for size in np.frombuffer(raw[4:header].ljust(4 * raw[3], b"\xff"), ">i4")]
    if len(raw) < header or min(shape, default=0) < 0 or len(raw) - header != math.prod(shape):
        raise FedzeroError(f"{path} is cut short or damaged: {len(raw)} bytes for shape {tuple(shape)}")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _unpacked(path: Path) -> bytes:
    with opened(path, LARGEST) as file, gzip.GzipFile(fileobj=file) as packed:
        raw = packed.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise FedzeroError(f"{path} unpacks to more than {LARGEST:,} bytes: put the right file there")
    return raw


def load_idx(folder: Path) -> Images:
    """The four files of MNIST (or Fashion-MNIST) under their usual names."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    images = Images(*(read_idx(folder / f"{part}-ubyte.gz") for part in parts))
    for x, y in ((images.train_x, images.train_y), (images.test_x, images.test_y)):
        if len(x) != len(y):
            raise FedzeroError(f"{folder}: {len(x)} images with {len(y)} labels")
    return images


def load_subset(dataset: Dataset = "mnist") -> Images:
    """5,000 real images that travel with the package: 400 training and 100 test images of each class."""
    with (resources.files("fedzero") / "data" / f"{dataset}-subset.npz").open("rb") as file:
        return Images(*load_arrays(file, "train_x", "train_y", "test_x", "test_y"))


def load(dataset: Dataset, full: bool, folder: Path | None) -> Images:
    """The whole dataset from the data folder, or the subset of the package."""
    if not full:
        return load_subset(dataset)
    if folder is None:
        raise FedzeroError(f"task.full = true needs the {dataset} IDX files: give --data DIR or set FEDZERO_DATA")
    return load_idx(folder / FOLDERS[dataset])


def tensors(
    x: NDArray[np.uint8], y: NDArray[np.uint8], device: torch.device, dataset: Dataset = "mnist"
) -> tuple[Tensor, Tensor]:
    """Normalised float32 images (n, 1, 28, 28) and int64 labels."""
    mean, deviation = STATISTICS[dataset]
    pixels = torch.from_numpy(x.astype(np.float32) / 255)
    return ((pixels - mean) / deviation)[:, None].to(device), torch.from_numpy(y.astype(np.int64)).to(device)


class LabelledShards(DrawnShards):
    """A batch is images (or other rows) of x, and their labels of y. name: of the data, whichever of them a recipe
    takes."""

    def __init__(self, x: Tensor, y: Tensor, parts: Sequence[Indices], batch: int, name: str = ""):
        super().__init__(parts, batch, self._pick)
        self.x, self.y, self.name = x, y, name

    def content(self) -> bytes:
        return hashlib.sha256(self.name.encode()).digest()

    def _pick(self, part: Indices) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(part).to(self.x.device)
        return self.x.index_select(0, index), self.y.index_select(0, index)
