"""FLARE's processes, started plainly: what its shell scripts do in the end, without their restart loops."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fedzero.engines.nvflare.kits import HEARTBEAT, ORGANISATION, SERVER

DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG; of a parent with threads it is the thread that counts."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def start(kit: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """The process of a kit, server or site; it ends when this one does, however that ends."""
    which = "server" if kit.name == SERVER else "client"
    module = "fedzero.engines.nvflare.server" if which == "server" else "nvflare.private.fed.app.client.client_train"
    values = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config"]
    if which == "client":
        values += [f"uid={kit.name}", f"heart_beat_interval={HEARTBEAT}"]
    command = [
        sys.executable,
        "-u",
        "-m",
        module,
        "-m",
        str(kit.resolve()),
        "-s",
        f"fed_{which}.json",
        "--set",
        *values,
    ]
    around = {**os.environ, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "4", **(environment or {})}
    with (kit / "console.txt").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=around, preexec_fn=_die_with_parent
        )


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(DIE_WITH_PARENT, signal.SIGTERM)
    os.setsid()  # Ctrl-C is for whoever started it


def listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def until(seconds: float, condition: object, pause: float = 0.1) -> bool:
    """Wait until `condition()` holds, at most so long; whether it does."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def end(*processes: subprocess.Popen[bytes]) -> None:
    """Processes of ours, kindly first. FLARE's job processes end by themselves when their parents are gone."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
