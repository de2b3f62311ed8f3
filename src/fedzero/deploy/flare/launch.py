"""From nothing to a federation, with NVIDIA FLARE: try it on one machine, serve, join.

federate(recipe, …)   server and sites as processes of this machine, mutual TLS and all; for trying and for tests
serve(project, …)     the supervisor: the server's process, the ledger, epoch after epoch until the run is done
join(kit, …)          a site's process, started again whenever it ends
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fedzero.deploy.conduct import Service, conduct
from fedzero.deploy.flare import processes
from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.epochs import Epochs, WaitPolicy
from fedzero.deploy.site import Settings
from fedzero.errors import FedzeroError
from fedzero.run.loop import Watch
from fedzero.run.recipe import Recipe
from fedzero.run.session import LEDGER, Environment

FEDERATION = "federation"
"""The project of a federation that is only tried, in the folder of its run."""


@contextmanager
def service_of(project: Path, policy: WaitPolicy, deadline: float) -> Iterator[Service]:
    """The server of a project, up for a while; sites that are provisioned meanwhile are let in."""
    epochs = Epochs(project, kits.Project.of(project).sites, policy)
    try:
        yield Service(epochs, lambda: kits.Project.of(project).sites, deadline, policy.say)
    finally:
        epochs.close()


def serve(
    project: Path,
    recipe: Recipe | None,
    folder: Path,
    environment: Environment,
    watch: Watch,
    policy: WaitPolicy,
    deadline: float = 60.0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Play a run to its end with the sites of a project, whoever of them comes, goes and returns."""
    with service_of(project, policy, deadline) as service:
        return conduct(recipe, folder, environment, watch, service, overwrite)


def federate(
    recipe: Recipe | None,
    sites: int,
    folder: Path,
    environment: Environment,
    watch: Watch,
    policy: WaitPolicy,
    deadline: float = 60.0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """A whole federation on this machine."""
    if (folder / LEDGER).exists() and recipe is not None and not overwrite:
        raise FedzeroError(f"{folder} already holds a run: --overwrite starts anew, --out chooses another folder")
    project = folder / FEDERATION
    names = [f"site-{number}" for number in range(1, sites + 1)]
    if not (project / "federation.json").exists():
        kits.provision(project, names, port=free_port())
    names = list(kits.Project.of(project).sites)
    variables = {"OMP_NUM_THREADS": "1"}  # as many processes as sites share this machine
    if environment.secret is not None:
        variables["FEDZERO_SECRET"] = environment.secret.decode(errors="surrogateescape")
    settings = Settings(data=None if environment.data is None else str(environment.data.resolve()), threads=1)
    over = threading.Event()
    for name in names:
        configure(kits.kit_of(project, name), settings)
    stay = [
        threading.Thread(target=join, args=(kits.kit_of(project, name), policy.say, variables), kwargs={"over": over})
        for name in names
    ]
    try:
        for thread in stay:
            thread.start()
        server = Environment(environment.data, replaying=environment.replaying)  # the secret is the sites'
        return serve(project, recipe, folder, server, watch, policy, deadline, overwrite)
    finally:
        over.set()
        for thread in stay:
            thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configure(kit: Path, settings: Settings) -> None:
    """What a site decides for itself, in its own file."""
    given = {name: value for name, value in msgspec.to_builtins(settings).items() if value is not None}
    text = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in given.items())
    (kit / "local" / kits.SETTINGS).write_text(text, encoding="utf-8")


def settings_of(kit: Path) -> Settings:
    if not (kit / "startup" / "fed_client.json").exists():
        raise FedzeroError(f"{kit} is no site's kit: take the folder kits/NAME that `fedzero provision` made")
    return Settings.read(kit / "local" / kits.SETTINGS)


def join(
    kit: Path,
    say: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    patience: float = 60.0,
    over: threading.Event | None = None,
) -> None:
    """Be a site until interrupted, or until it is `over`; a process that ends is started again."""
    settings_of(kit)
    target, console = _server_of(kit), kit / "console.txt"
    pause, told, over = 1.0, over is not None, over or threading.Event()
    process: subprocess.Popen[bytes] | None = None
    try:
        while not over.is_set():
            began = time.monotonic()
            if not processes.until(patience, lambda: over.is_set() or processes.listening(*target), 0.5):
                say(f"no server answers at {target[0]}:{target[1]} yet; still trying")
                continue
            process = processes.start(kit, environment)
            if not told:
                say(f"{kit.name} joins the federation at {target[0]}:{target[1]}; Ctrl-C leaves it")
                told = True
            while process.poll() is None and not over.wait(0.2):
                pass
            if process.returncode is None:
                return
            pause = 1.0 if time.monotonic() - began > 60 else min(2 * pause, 30.0)
            say(f"{kit.name}'s process ended with {process.returncode} (see {console}); again in {pause:g} s")
            over.wait(pause)
    finally:
        if process is not None:
            processes.end(process)


def _server_of(kit: Path) -> tuple[str, int]:
    try:
        start: dict[str, Any] = msgspec.json.decode((kit / "startup" / "fed_client.json").read_bytes())
        host, _, port = start["servers"][0]["service"]["target"].rpartition(":")
        return ("127.0.0.1" if host == "localhost" else host), int(port)
    except (OSError, KeyError, ValueError, msgspec.DecodeError) as error:
        raise FedzeroError(f"{kit} does not say where its server is: {error}") from error
