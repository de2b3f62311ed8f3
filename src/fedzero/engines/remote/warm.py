"""The process from which hosts are forked imports this module, and with it everything that every host needs."""

from __future__ import annotations

from typing import get_args

import fedzero.directions.cpu.loaded
import fedzero.engines.remote.bare
from fedzero import plugins

for _group in get_args(plugins.Group):
    plugins.kinds(_group)

__all__ = ["fedzero"]
