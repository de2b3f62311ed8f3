"""Colours and letters of the pictures in docs/figures: those of the report, light and dark."""

from __future__ import annotations

from dataclasses import dataclass

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"


@dataclass(frozen=True)
class Theme:
    """Colours; `series` are told apart with any colour vision."""

    paper: str
    card: str
    ink: str
    muted: str
    grid: str
    edge: str
    series: tuple[str, ...]


THEMES = {
    "light": Theme(
        paper="#f7f7f4",
        card="#ffffff",
        ink="#16181d",
        muted="#5b6270",
        grid="#e6e6e1",
        edge="#d9d9d2",
        series=("#0b6fb8", "#c8500a", "#0a8a66", "#a8518a", "#8a6d00", "#5a606c"),
    ),
    "dark": Theme(
        paper="#101216",
        card="#181b20",
        ink="#eceef2",
        muted="#9ba3b2",
        grid="#2a2e36",
        edge="#333843",
        series=("#5cb3f0", "#ff9152", "#41cfa2", "#e89ccb", "#e3bf4c", "#b4bbc8"),
    ),
}
