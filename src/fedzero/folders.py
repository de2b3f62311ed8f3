"""Folders of a user: what can be made again, and what is remembered."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """FEDZERO_CACHE, or where this platform keeps caches."""
    named = os.environ.get("FEDZERO_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("fedzero", appauthor=False))


def state_folder() -> Path:
    """FEDZERO_STATE, or where this platform keeps what programs remember for a user."""
    named = os.environ.get("FEDZERO_STATE")
    return Path(named).expanduser() if named else Path(platformdirs.user_state_dir("fedzero", appauthor=False))
