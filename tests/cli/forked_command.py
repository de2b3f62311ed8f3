"""`fedzero` in a process of its own that is forked from one which has loaded it: what the command does, without the
seconds that imports take. Imported by the fork server and by its children."""

from __future__ import annotations

import os
import resource
import sys

import fedzero.api  # noqa: F401  (what the children would import)
from fedzero.cli import main


def run(arguments: list[str], streams: tuple[str, str], limit: int | None, memory: int | None) -> None:
    """Exit status and streams are those of the command. limit: the largest file it may write, in bytes; memory: of
    addresses, in bytes."""
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.argv = ["fedzero", *arguments]
    main()
