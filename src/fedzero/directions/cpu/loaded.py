"""Imported to load all that numba needs to read a compiled kernel, and to run none, which would start threads."""

from __future__ import annotations

from numba.core.registry import cpu_target

import fedzero.directions.cpu

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()

__all__ = ["fedzero"]
