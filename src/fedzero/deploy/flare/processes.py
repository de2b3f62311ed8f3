"""FLARE's processes, started plainly: what its shell scripts do in the end, without their restart loops."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from fedzero.deploy.flare.project import HEARTBEAT, ORGANISATION, SERVER

DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG; of a parent with threads it is the thread that counts."""
SITE_JOB = "nvflare.private.fed.app.client.worker_process"
JOB_PROGRAMS = {SITE_JOB, "nvflare.private.fed.app.server.runner_process"}
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def start(kit: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """The process of a kit, server or site; it ends when this one does, however that ends."""
    role, module = "client", "fedzero.deploy.flare.client"
    values = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config"]
    if kit.name == SERVER:
        role, module = "server", "fedzero.deploy.flare.server"
    else:
        values += [f"uid={kit.name}", f"heart_beat_interval={HEARTBEAT}"]
    options = ["-m", str(kit.resolve()), "-s", f"fed_{role}.json", "--set", *values]
    command = [sys.executable, "-u", "-m", module, *options]
    clear(kit)
    safe = {"PYTHONSAFEPATH": "1"}  # nor do job processes look for modules in the current folder first
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "4", **safe, **(environment or {})}
    with (kit / "console.txt").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=variables, preexec_fn=die_with_parent
        )


def die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(DIE_WITH_PARENT, signal.SIGTERM)
    os.setsid()  # Ctrl-C is for whoever started it


def leftovers(kit: Path) -> list[int]:
    """Job processes of a kit whose parent is gone. FLARE's end by themselves, in seconds, but for one whose parent died
    while it was starting: that one waits for ever, and busily."""
    processes = {process.pid: process.info for process in psutil.process_iter(["cmdline", "ppid"])}
    mine = {pid for pid, found in processes.items() if str(kit.resolve()) in (found["cmdline"] or ())}
    jobs = [pid for pid in mine if JOB_PROGRAMS & set(processes[pid]["cmdline"])]
    return [pid for pid in jobs if processes[pid]["ppid"] not in mine]


def clear(kit: Path) -> None:
    """End what an earlier process of a kit left behind."""
    for pid in leftovers(kit):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        try:
            return probe.connect_ex((host, port)) == 0
        except OSError:  # a name that cannot be found for the moment
            return False


def until(seconds: float, condition: Callable[[], object], pause: float = 0.1) -> bool:
    """Wait until a condition holds, at most so long; whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def end(*processes: subprocess.Popen[bytes]) -> None:
    """Ask processes that `start` gave to end, kill those that do not, and the job processes that they leave."""
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
