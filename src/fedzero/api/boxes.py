"""Boxes as a caller gives them, and as a recipe names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.api.coordinates import Choice, Coordinate, with_options
from fedzero.errors import Invalid
from fedzero.model.value import quoted
from fedzero.oracles.blackbox import AnyBox, BatchedBox, CommandBox, HttpBox, PythonBox


@dataclass(frozen=True)
class Function:
    """f(x), x an array of d numbers, returns a number. `name`: how the recipe calls it; default: its own name."""

    f: Callable[[NDArray[np.float64]], Any]
    name: str | None = None


@dataclass(frozen=True)
class Batched:
    """f(X), X an array (n, d), returns n numbers: for functions that are quicker with many points at once."""

    f: Callable[[NDArray[np.float64]], Any]
    name: str | None = None


def command(*argv: str) -> CommandBox:
    """A program that reads the point as a JSON list and prints a number as the last line of its output."""
    if not argv:
        raise Invalid("command() has no program: name it, and its arguments")
    return CommandBox(argv=argv)


def http(url: str, float32: bool = False) -> HttpBox:
    """A service that answers POST {"x": [...]} with a number. float32: x is rounded to float32, and sent as {"x32":
    base64} where the service reads that (docs/blackbox.md)."""
    return HttpBox(url=url, float32=True) if float32 else HttpBox(url=url)


Box = Callable[[NDArray[np.float64]], Any] | Function | Batched | AnyBox


def named_boxes(
    boxes: Sequence[Box], coordinates: tuple[Coordinate, ...]
) -> tuple[tuple[AnyBox, ...], dict[str, Callable[..., Any]]]:
    """Boxes as a recipe can name them, and the functions that go by these names: the same for the same call."""
    if isinstance(boxes, str) or not isinstance(boxes, Sequence) or not boxes:
        raise Invalid(f"boxes = {quoted(boxes)} is not valid: give a list with one box for every party")
    functions: dict[str, Callable[..., Any]] = {}
    named: list[AnyBox] = []
    for box in boxes:
        if isinstance(box, AnyBox):
            named.append(box)
            continue
        own = box if isinstance(box, Function | Batched) else Function(box)
        if not callable(own.f):
            raise Invalid(f"boxes has {quoted(own.f)}, which is not a function: give f(x), or a box such as http(url)")
        name = wish = own.name or str(getattr(own.f, "__qualname__", type(own.f).__qualname__))
        number = 1
        while functions.get(name, own.f) is not own.f:
            number += 1
            name = f"{wish}-{number}"
        functions[name] = own.f
        named.append(BatchedBox(name=name) if isinstance(own, Batched) else PythonBox(name=name))
    if any(isinstance(each, Choice) for each in coordinates):
        functions = {name: partial(with_options, f, coordinates) for name, f in functions.items()}
    return tuple(named), functions
