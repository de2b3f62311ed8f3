"""The folder of a run: `ledger.db`, and, when the run is finished, `model.safetensors`; with [privacy] also
`privacy.json`."""

from __future__ import annotations

from pathlib import Path

LEDGER, MODEL, PRIVACY = "ledger.db", "model.safetensors", "privacy.json"
DEVICES = "devices.db"
"""Of a run whose clients are devices: the gateway's keys, tickets and places."""


def folder_of(path: Path) -> Path:
    """The folder of a run, also where its ledger was named instead."""
    return path.parent if path.name == LEDGER else path
