"""FLARE's process of a site, which tells the server that it leaves.

As it is, SIGTERM ends it at once, and the server learns from missing heartbeats that the site is gone. Here the site
logs out first, in at most `SECONDS`.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading
from contextlib import suppress
from typing import Any

from nvflare.private.fed.client.fed_client_base import FederatedClientBase

PROGRAM = "nvflare.private.fed.app.client.client_train"
SECONDS = 2.0
"""How long a site tries to tell the server that it leaves."""
_started = FederatedClientBase.start_heartbeat
_registered: list[FederatedClientBase] = []


def heartbeat_started(client: Any, *arguments: Any, **options: Any) -> None:
    """In the place of FLARE's `start_heartbeat`: the client is known to the server from here on."""
    _registered.append(client)
    _started(client, *arguments, **options)


def leave(*_: object) -> None:
    """SIGTERM. Another thread speaks to the server: this one may hold a lock of FLARE's."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for client in _registered:
        saying = threading.Thread(target=_log_out, args=(client,), daemon=True)
        saying.start()
        saying.join(SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _log_out(client: Any) -> None:
    with suppress(Exception):  # the server may be gone
        client.close()


if __name__ == "__main__":
    FederatedClientBase.start_heartbeat = heartbeat_started
    signal.signal(signal.SIGTERM, leave)
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
