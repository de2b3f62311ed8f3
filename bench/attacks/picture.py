"""Originals and reconstructions side by side: one line for each setting, one column for each share of d."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from bench.attacks.digits import side_of

from fedzero.oracles.contract import F64
from fedzero.report.axes import new_axes

GAP = 1


def strip(digits: F64) -> F64:
    """Digits (k, p) beside each other, grey levels of each stretched to [0, 1]."""
    side = side_of(digits.shape[1])
    low, high = digits.min(1, keepdims=True), digits.max(1, keepdims=True)
    tiles = ((digits - low) / np.maximum(high - low, 1e-12)).reshape(-1, side, side)
    padded = np.pad(tiles, ((0, 0), (0, 0), (0, GAP)), constant_values=0.5)
    return np.concatenate(list(padded), axis=1)[:, :-GAP]


def draw(pictures: Sequence[tuple[str, F64, Mapping[float, F64]]], shares: Sequence[float], out: Path) -> None:
    """pictures: name, originals (k, p), and by share what was found (k, p)."""
    figure = new_axes()[0].figure
    figure.clear()
    figure.set_size_inches(1.75 * (len(shares) + 2), 0.47 * len(pictures) + 0.4)
    axes = figure.subplots(len(pictures), len(shares) + 1, squeeze=False)
    for line, (name, originals, found) in zip(axes, pictures, strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        for ax, digits in zip(line, [originals, *(found.get(share) for share in shares)], strict=True):
            ax.set_xticks([])
            ax.set_yticks([])
            for edge in ax.spines.values():
                edge.set_visible(False)
            if digits is not None:
                ax.imshow(1 - strip(digits), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    for ax, title in zip(axes[0], ["originals", *(f"P·R = {share:g} d" for share in shares)], strict=True):
        ax.set_title(title, fontsize=9)
    figure.savefig(out, dpi=100, pil_kwargs={"optimize": True})
