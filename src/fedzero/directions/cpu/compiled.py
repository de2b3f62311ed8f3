"""Where compiled kernels are kept: once for each machine and user, whichever checkout or environment they come from.

numba keeps them beside the source file, so every new checkout compiled everything again, for half a minute. Here a
folder of the user's cache is named after all that the machine code depends on: the sources, numba and the processor.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

from fedzero.folders import cache_folder

_SOURCES = ("cpu/kernels.py", "spec.py", "terms.py")
"""Files whose constants are part of the machine code."""
_NAME = 24


def kernel(function: Callable[..., Any]) -> Any:
    """A compiled function that is kept. Division by zero gives infinity or NaN, as IEEE has it and as on a GPU."""
    made: Any = njit(nogil=True, error_model="numpy")(function)
    made._cache = _Cache(function)
    return made


@cache
def folder() -> Path | None:
    """None where the cache cannot be written, or where somebody else could write machine code into it."""
    path = cache_folder() / "kernels" / _name()
    try:
        for each in (path.parent, path):  # parents that are made with it have the mode that everything new has
            each.parent.mkdir(parents=True, exist_ok=True)
            each.mkdir(0o700, exist_ok=True)
            about = each.lstat()
            if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
    except OSError:
        return None
    return path if os.access(path, os.W_OK) else None


def _name() -> str:
    hasher = hashlib.sha256()
    for part in (numba.__version__, llvmlite.__version__, get_host_cpu_name(), _features(), *map(_text, _SOURCES)):
        hasher.update(hashlib.sha256(part.encode()).digest())
    return hasher.hexdigest()[:_NAME]


def _features() -> str:
    try:
        return str(get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM does not know this processor's features
        return ""


def _text(name: str) -> str:
    return (Path(__file__).parent.parent / name).read_text(encoding="utf-8")


class _Locator(_CacheLocator):
    """In `folder`, whose name says all that could be out of date."""

    def __init__(self, place: Path, line: int):
        self._place, self._line = place, line

    def get_cache_path(self) -> str:
        return str(self._place)

    def get_source_stamp(self) -> str:
        return self._place.name

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator | None:
        place = folder()
        return None if place is None else cls(place, py_func.__code__.co_firstlineno)


class _Places(CompileResultCacheImpl):
    _locator_classes = [_Locator, *CompileResultCacheImpl._locator_classes]  # noqa: RUF012


class _Cache(FunctionCache):
    _impl_class = _Places
