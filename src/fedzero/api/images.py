"""A folder of images as a pair of tensors: a folder for each class, as image collections are kept.

photos/cat/1.png, photos/dog/2.jpg, …
x, y = fedzero.images("photos", size=32)          # (n, 3, 32, 32) from 0 to 1, and the numbers of the classes
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedzero.api import given
from fedzero.errors import Invalid
from fedzero.model.numbers import PositiveInt

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
Mode = Literal["L", "RGB"]
Folder = str | os.PathLike[str]


def images(
    folder: Folder, size: int | tuple[int, int] | None = None, mode: Mode = "RGB", classes: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Images and classes of a folder, in the order of their paths: float32 (n, channels, height, width) and int64 (n,).

    size: height and width to which images are scaled; default: that of the images, which must be the same.
    mode: "RGB", or "L" for grey. classes: names of folders in the order of their numbers; default: sorted.
    """
    place = given.path(folder, "folder")
    shape = None if size is None else _shape(size)
    (mode,), (classes,) = given.each(Mode, mode=mode), given.each(tuple[str, ...] | None, classes=classes)
    names = class_names([place]) if classes is None else list(classes)
    found = [(path, number) for number, name in enumerate(names) for path in _files(place / name)]
    if not found:
        raise Invalid(f"{place} has no images in folders of classes: give one with {place.name}/CLASS/IMAGE.png")
    x = _stacked((_opened(path, shape, mode) for path, _ in found), [path for path, _ in found], str(place))
    return torch.from_numpy(x), torch.tensor([number for _, number in found])


def class_names(folders: Iterable[Folder]) -> list[str]:
    """The classes of several folders: names of their folders with images, sorted."""
    found: set[str] = set()
    for folder in folders:
        place = Path(folder)
        if not place.is_dir():
            raise Invalid(f"{place} is no folder: give one with a folder of images for each class, or data")
        found |= {inner.name for inner in place.iterdir() if inner.is_dir() and not inner.name.startswith(".")}
    return sorted(found)


def pixels(pictures: Sequence[Any], whose: str) -> NDArray[np.float32]:
    """Images of pillow of one size as float32 from 0 to 1, (n, channels, height, width)."""
    kinds = {"L" if picture.mode in ("1", "L") else "RGB" for picture in pictures}
    mode = "L" if kinds == {"L"} else "RGB"
    return _stacked((_array(picture, None, mode) for picture in pictures), range(len(pictures)), whose)


def _shape(size: Any) -> tuple[int, int]:
    height, width = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    height, width = given.each(PositiveInt, size=height)[0], given.each(PositiveInt, size=width)[0]
    return height, width


def _files(folder: Path) -> list[Path]:
    inside = folder.rglob("*") if folder.is_dir() else ()
    return sorted(path for path in inside if path.suffix.lower() in SUFFIXES and path.is_file())


def _opened(path: Path, shape: tuple[int, int] | None, mode: str) -> NDArray[np.float32]:
    try:
        with Image.open(path) as image:
            return _array(ImageOps.exif_transpose(image), shape, mode)
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise Invalid(f"{path} is no image that can be read ({error}): take it out of the folder") from error


def _array(image: Any, shape: tuple[int, int] | None, mode: str) -> NDArray[np.float32]:
    plain = image.convert(mode)
    if shape is not None and plain.size != shape[::-1]:
        plain = plain.resize(shape[::-1], Image.Resampling.BILINEAR)
    found: NDArray[np.float32] = np.asarray(plain, np.float32) / np.float32(255)
    return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)


def _stacked(arrays: Iterable[NDArray[np.float32]], names: Sequence[Any], whose: str) -> NDArray[np.float32]:
    found: list[NDArray[np.float32]] = []
    for name, array in zip(names, arrays, strict=True):
        if found and array.shape != found[0].shape:
            sizes = [f"{width} × {height}" for _, height, width in (found[0].shape, array.shape)]
            raise Invalid(
                f"{whose} has images of several sizes, {sizes[0]} in {names[0]} and {sizes[1]} in {name}: "
                "scale them, such as fedzero.images(folder, size=32)"
            )
        found.append(array)
    return np.ascontiguousarray(np.stack(found))
