"""A site's own key: which site it is, for other sites. It is made here, and its private half never leaves."""

from __future__ import annotations

import os
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.model import files

FILE = "identity.key"
"""In the folder of all runs of a site."""
SIZE = 32


def identity_of(keep: Path) -> bytes:
    """The private key; it is made at the first call."""
    path = keep / FILE
    if not path.exists():
        files.write(path, os.urandom(SIZE), durable=True, private=True)
    found = files.read(path, SIZE + 1)
    if len(found) != SIZE:
        raise FedzeroError(f"{path} is damaged: restore it, or delete it and let the others pin this site anew")
    return found
