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
from contextlib import suppress
from pathlib import Path

from fedzero.deploy.flare.project import HEARTBEAT, ORGANISATION, SERVER

DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG; of a parent with threads it is the thread that counts."""
JOB_PROGRAMS = ("nvflare.private.fed.app.client.worker_process", "nvflare.private.fed.app.server.runner_process")
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def start(kit: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """The process of a kit, server or site; it ends when this one does, however that ends."""
    which = "server" if kit.name == SERVER else "client"
    module = "fedzero.deploy.flare.server" if which == "server" else "nvflare.private.fed.app.client.client_train"
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
    clear(kit)
    around = {**os.environ, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "4", **(environment or {})}
    with (kit / "console.txt").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=around, preexec_fn=_die_with_parent
        )


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(DIE_WITH_PARENT, signal.SIGTERM)
    os.setsid()  # Ctrl-C is for whoever started it


def leftovers(kit: Path) -> list[int]:
    """Job processes of a kit whose parent is gone. FLARE's end by themselves, in seconds, but for one whose parent died
    while it was starting: that one waits for ever, and busily."""
    mine, jobs = f" {kit.resolve()} ", []
    for path in Path("/proc").glob("[0-9]*"):
        command = _command(path)
        if mine in command and any(program in command for program in JOB_PROGRAMS):
            jobs.append(path)
    return [int(job.name) for job in jobs if mine not in _command(job.parent / str(_parent(job)))]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def clear(kit: Path) -> None:
    """End what an earlier process of a kit left behind."""
    for pid in leftovers(kit):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
    """Processes that `start` gave, kindly first, and the job processes that they leave."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        arguments: list[str] = list(process.args)  # type: ignore[arg-type]
        clear(Path(arguments[arguments.index("-s") - 1]))
