"""The folder of a run: `ledger.db`, and, when the run is finished, `model.safetensors`."""

from __future__ import annotations

from pathlib import Path

LEDGER, MODEL = "ledger.db", "model.safetensors"


def folder_of(path: Path) -> Path:
    """The folder of a run, also where its ledger was named instead."""
    return path.parent if path.name == LEDGER else path
