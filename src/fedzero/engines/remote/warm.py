"""Imported in the process that hosts are forked from: what every host needs, once for all of them."""

from __future__ import annotations

from typing import get_args

import fedzero.directions.cpu.loaded
import fedzero.engines.remote.bare
from fedzero import plugins

for _group in get_args(plugins.Group):
    plugins.kinds(_group)

__all__ = ["fedzero"]
