"""Pictures of what came out, as PNG files inside the page; the page enlarges them without smoothing."""

from __future__ import annotations

import base64
import io

from PIL import Image

from fedzero.oracles import Pictures

MODES = {1: "L", 3: "RGB"}
"""Pillow's names for one and for three channels."""
MOST = 2_000
"""Pictures of a grid."""


def images(pictures: Pictures) -> list[list[str]]:
    """Every place of the grid as a data URI; none at all if sizes and bytes do not fit each other, or if there
    are more than anybody would look at."""
    p = pictures
    size, across = p.height * p.width * p.channels, len(p.columns)
    fits = p.channels in MODES and min(p.height, p.width) > 0 and len(p.pixels) == len(p.rows) * across * size
    if not fits or not p.pixels or len(p.rows) * across > MOST:
        return []
    cells = [data_uri(p, p.pixels[at : at + size]) for at in range(0, len(p.pixels), size)]
    return [cells[at : at + across] for at in range(0, len(cells), across)]


def data_uri(shape: Pictures, pixels: bytes) -> str:
    file = io.BytesIO()
    Image.frombytes(MODES[shape.channels], (shape.width, shape.height), pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
