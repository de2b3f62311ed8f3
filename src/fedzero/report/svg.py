"""From matplotlib's SVG file to markup that lives inside a page.

Matplotlib knows only fixed colours, and numbers its ids from 1 in every file. Here agreed stand-in colours become CSS
variables, so one drawing serves light, dark and print; ids get a prefix, so many drawings share a page; and the style
sheet, metadata and fixed size, which would reach outside the drawing or outside the page, go.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
XLINK = "{http://www.w3.org/1999/xlink}"

SERIES = tuple(f"#0000f{i}" for i in range(6))
INK, MUTED, GRID, PAPER = "#000001", "#000002", "#000003", "#000004"

# Each variable comes with a fallback for a drawing that is cut out of its page.
FALLBACK = ("#0b6fb8", "#c8500a", "#0a8a66", "#a8518a", "#8a6d00", "#5a606c")
VARIABLES: dict[str, str] = {
    **{stand_in: f"var(--series-{i}, {FALLBACK[i]})" for i, stand_in in enumerate(SERIES)},
    INK: "var(--ink, #222)",
    MUTED: "var(--muted, #666)",
    GRID: "var(--grid, #ddd)",
    PAPER: "var(--card, #fff)",
}

_COLOUR = re.compile("|".join(VARIABLES))
_FONT = re.compile(r"'[^']*'(, ?'[^']*')*(, ?(sans-serif|serif|monospace))?")
_URL = re.compile(r"url\(#")


def inline(document: str, prefix: str, label: str) -> str:
    """The `<svg>` element of a matplotlib document, safe beside others; `label` is what a screen reader says."""
    ET.register_namespace("", SVG)
    root = ET.fromstring(document)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        if (identity := element.attrib.pop("id", None)) is not None and element.tag != f"{{{SVG}}}g":
            element.set("id", f"{prefix}-{identity}")
        if (path := element.get("d")) is not None:
            element.set("d", " ".join(path.split()))
        if (target := element.attrib.pop(f"{XLINK}href", None)) is not None:
            element.set("href", f"#{prefix}-{target.removeprefix('#')}")
        if (clip := element.get("clip-path")) is not None:
            element.set("clip-path", _URL.sub(f"url(#{prefix}-", clip))
        if (style := element.get("style")) is not None:
            element.set("style", restyle(style))
        element.text, element.tail = tidy(element.text), tidy(element.tail)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return ET.tostring(root, encoding="unicode")


def tidy(text: str | None) -> str | None:
    return text if text is None or text.strip() else None


def restyle(style: str) -> str:
    """Stand-in colours to variables, and matplotlib's font to the page's."""
    style = _COLOUR.sub(lambda match: VARIABLES[match[0]], style)
    return _FONT.sub("var(--sans, sans-serif)", style) if style.startswith("font") else style
