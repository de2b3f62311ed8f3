"""Numbers for people: 84 KB, 1.2 million, 3 min 5 s. Units are decimal, 1 KB = 1000 B."""

from __future__ import annotations

from math import isfinite

DASH = "–"
BYTES = ("B", "KB", "MB", "GB", "TB", "PB")
COUNTS = ("", "k", "M", "G", "T")
WORDS = ("", "", "million", "billion", "trillion")


def scaled(value: float, units: tuple[str, ...], digits: int) -> str:
    """`value` in the largest unit that keeps it at 1 or above, to `digits` significant digits.

    Digits before the point are never cut: 115,752 B is 116 KB, not 120 KB.
    """
    if not isfinite(value):
        return DASH
    for unit in units:
        text = f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}"
        if abs(float(text)) < 1000 or unit == units[-1]:
            break
        value /= 1000
    number = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{number} {unit}".rstrip()


def human_bytes(value: float, digits: int = 2) -> str:
    """84 KB, 6.9 MB, 116 KB; with three digits 84.2 KB and 6.94 MB."""
    return scaled(value, BYTES, digits)


def human_count(value: float) -> str:
    """For axes: 250 k, 1.2 M."""
    return scaled(value, COUNTS, 2)


def human_words(value: int) -> str:
    """For prose: 28,938, then 1.3 billion."""
    return f"{value:,}" if abs(value) < 1_000_000 else scaled(value, WORDS, 3)


def human_seconds(value: float) -> str:
    if not isfinite(value):
        return DASH
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    hours, minutes, seconds = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def human_loss(value: float) -> str:
    """Four significant digits: 0.2914, 1.234e-06."""
    return f"{value:#.4g}".removesuffix(".") if isfinite(value) else "not finite"


def percent(value: float | None) -> str:
    return DASH if value is None or not isfinite(value) else f"{100 * value:.1f} %"


def times(ratio: float) -> str:
    """How many times as much: 1.4, 83, 1,240, 19 million."""
    if ratio >= 999_999.5:
        return scaled(ratio, WORDS, 2)
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:,.0f}"
