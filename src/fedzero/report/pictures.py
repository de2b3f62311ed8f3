"""Pictures of what came out, as PNG files inside the page: a grid with captions, enlarged without smoothing."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Sequence

from fedzero.oracles import Pictures
from fedzero.report.history import History
from fedzero.report.text import printable

GREY, COLOUR = 0, 2
"""PNG's numbers for one and for three channels."""


def png(pixels: bytes, height: int, width: int, channels: int) -> bytes:
    """A PNG file of bytes (height, width, channels), 1 or 3 channels; the same file for the same pixels.

    Signature, header, compressed rows (each begins with a 0: not filtered), end.
    """
    row = width * channels
    rows = b"".join(b"\0" + pixels[y * row : (y + 1) * row] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def images(pictures: Pictures) -> list[list[bytes]]:
    """The PNG file of every place in the grid; none at all if sizes and bytes do not fit each other."""
    p = pictures
    size = p.height * p.width * p.channels
    fits = min(p.height, p.width) > 0 and p.channels in (1, 3) and len(p.pixels) == len(p.rows) * len(p.columns) * size
    if not fits:
        return []
    cells = [png(p.pixels[at : at + size], p.height, p.width, p.channels) for at in range(0, len(p.pixels), size)]
    return [cells[row : row + len(p.columns)] for row in range(0, len(cells), len(p.columns))]


def pictures(histories: Sequence[History]) -> str:
    """The section of the page, with a grid for every run that has pictures; nothing if none has."""
    grids = [_grid(h, h.pictures, len(histories) > 1) for h in histories if h.pictures is not None]
    return f"<section><h2>What came out</h2>{''.join(grids)}</section>" if grids else ""


def _grid(history: History, shown: Pictures, named: bool) -> str:
    title = f"{_safe(history.name)}: {_safe(shown.title)}" if named else _safe(shown.title)
    found = images(shown)
    if not found:
        return f'<p class="note">{title}: the pictures on record cannot be shown.</p>'
    cells = ["<span></span>", *(f"<span>{_safe(column)}</span>" for column in shown.columns)]
    for row, files in zip(shown.rows, found, strict=True):
        cells.append(f'<span class="row">{_safe(row)}</span>')
        for column, file in zip(shown.columns, files, strict=True):
            data = base64.b64encode(file).decode("ascii")
            cells.append(f'<img alt="{_safe(f"{row}, {column}")}" src="data:image/png;base64,{data}">')
    return (
        f'<figure class="pictures"><figcaption>{title}</figcaption>'
        f'<div style="--columns:{len(shown.columns)}">{"".join(cells)}</div></figure>'
    )


def _safe(text: str) -> str:
    return html.escape(printable(text))
