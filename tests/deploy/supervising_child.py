"""A process that wants to be the supervisor of a project; forked from a server that has fedzero loaded."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from fedzero.deploy.server.queue import supervising
from fedzero.errors import FedzeroError


def serve(project: str, pipe: Connection) -> None:
    """Says `ready`, waits for a word, and says what came of it; a supervisor goes on until it is killed."""
    pipe.send("ready")
    pipe.recv()
    try:
        with supervising(Path(project)):
            pipe.send("serves")
            pipe.recv()
    except FedzeroError:
        pipe.send("refused")
