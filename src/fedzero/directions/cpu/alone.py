"""numba, imported and used without the settings of a file in the current folder.

numba reads `.numba_config.yaml` from wherever it is imported, and again whenever it compiles. Such a file can name a
folder of compiled code, whose index is a pickle: in a folder that somebody else sent it would run his code. Settings of
the environment (`NUMBA_…`) are the user's own, and count. The module is imported before anything else imports numba.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAME = ".numba_config.yaml"


@contextmanager
def _without_yaml() -> Iterator[None]:
    """numba leaves the file alone, with a warning, where it cannot parse it: so not even a broken one is read."""
    missing: Any = object()
    before: Any = sys.modules.get("yaml", missing)
    sys.modules["yaml"] = None  # type: ignore[assignment]  # importing it is an ImportError
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is missing:
            del sys.modules["yaml"]
        else:
            sys.modules["yaml"] = before


with _without_yaml():
    _settings: Any = importlib.import_module("numba.core.config")
if _settings._config_fname != NAME:
    raise ImportError(f"this release of numba keeps settings in another file than {NAME}: fedzero has to know of it")
_settings._config_fname = ""
_settings.reload_config()  # where a program imported numba before, what it took from the file is forgotten
