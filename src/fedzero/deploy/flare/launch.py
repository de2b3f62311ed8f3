"""From nothing to a federation, with NVIDIA FLARE: try it on one machine, serve, join.

federate(recipe, …)   server and sites as processes of this machine, mutual TLS and all; for trying and for tests
service_of(project)   the server's process, epoch after epoch, for as long as it is needed
join(kit, …)          a site's process, started again whenever it ends
"""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import msgspec
from msgspec import Struct

from fedzero.deploy.flare import Flare, address, presence, processes
from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.epochs import WaitPolicy
from fedzero.deploy.flare.forking import fork_server
from fedzero.deploy.flare.presence import Kind
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.site import Settings
from fedzero.deploy.site.terms import UNLIMITED
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.transport import Answering
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.model import files
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.rounds.loop import Watch
from fedzero.runs.growing import UNCHANGED, Growth
from fedzero.runs.summary import Summary

FEDERATION = "federation"
"""The project of a federation on one machine, in the folder of its run."""
REMIND_EVERY, LOOK_EVERY = 60.0, 0.5
"""Seconds between two sentences of a site that finds no server, and two looks at what it is doing."""


@contextmanager
def service_of(project: Path, policy: WaitPolicy) -> Iterator[Service]:
    """The server of a project; sites that are provisioned meanwhile can join."""
    flare = Flare(project=str(project), minimum=policy.minimum, patience=policy.patience, deadline=policy.deadline)
    with flare.open(_their_own, policy.report) as link:
        yield Service(
            link,
            lambda: kits.Project.of(project).sites,
            policy.deadline,
            policy.report,
            link.idle,
            policy.minimum,
            policy.patience,
        )


def _their_own(name: str) -> Answering:
    raise FedzeroError(f"{name} is a site, which runs what it has installed")


def federate(
    recipe: Recipe | None,
    sites: int,
    folder: Path,
    environment: Environment,
    watch: Watch,
    policy: WaitPolicy,
    overwrite: bool = False,
    tasks: Mapping[str, str] | None = None,
    said: Growth = UNCHANGED,
) -> Summary:
    """A run in a federation on this machine; the summary of what came out. tasks: those of sites, by name. said: how to
    extend the run in the folder."""
    if (folder / LEDGER).exists() and recipe is not None and not overwrite:
        raise FedzeroError(f"{folder} already holds a run: --overwrite starts anew, --out chooses another folder")
    project = folder / FEDERATION
    if not (project / kits.PROJECT).exists():
        policy.report(f"making certificates for {sites} sites in {project}")
        kits.provision(project, [f"site-{number}" for number in range(1, sites + 1)], port=free_port())
    variables = {"OMP_NUM_THREADS": "1"}  # as many processes as sites share this machine
    if environment.secret is not None:
        variables["FEDZERO_SECRET"] = environment.secret.decode(errors="surrogateescape")
    data = None if environment.data is None else str(environment.data.resolve())
    settings = Settings(data=data, threads=1, tasks=dict(tasks or {}), terms=UNLIMITED)
    found = [kits.kit_of(project, name) for name in kits.Project.of(project).sites]
    over = Event()
    with fork_server() as address, ThreadPoolExecutor(len(found)) as pool:  # waits for its threads at the end
        try:
            for kit in found:
                configure(kit, settings)
                pool.submit(join, kit, policy.report, {**variables, **address}, over)
            with service_of(project, policy) as service:
                without_secret = dataclasses.replace(environment, secret=None)  # only sites have it
                return run_at_sites(recipe, folder, without_secret, watch, service, overwrite, said)
        finally:
            over.set()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configure(kit: Path, settings: Settings) -> None:
    """What a site decides for itself, in its own file."""
    files.write(kit / "local" / kits.SETTINGS, msgspec.toml.encode(settings))


def settings_of(kit: Path) -> Settings:
    if not (kit / "startup" / "fed_client.json").exists():
        raise FedzeroError(f"{kit} is not the kit of a site: take the folder kits/NAME that `fedzero provision` made")
    return Settings.read(kit / "local" / kits.SETTINGS)


def join(
    kit: Path,
    report: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
    over: Event | None = None,
    show: Callable[[Kind, str], None] = lambda kind, text: None,
) -> None:
    """Be a site until interrupted, or until it is `over`; a process that ends is started again.

    show: is told a few times a second what the site is doing.
    """
    settings_of(kit)
    host, port = server_of(kit)
    pause, over = 1.0, over or Event()
    presence.clear(kit)
    show("searching", f"{kit.name} is looking for the server at {host}:{port}")
    process: subprocess.Popen[bytes] | None = None
    try:
        while not over.is_set():
            began = time.monotonic()
            if not processes.until(REMIND_EVERY, lambda: over.is_set() or processes.listening(host, port), 0.5):
                report(f"no server answers at {host}:{port} yet; still trying")
                continue
            process = processes.start(kit, variables)
            while process.poll() is None and not over.wait(LOOK_EVERY):
                show(*presence.presence(kit, process.pid, host, port))
            if process.returncode is None:
                return
            pause = 1.0 if time.monotonic() - began > 60 else min(2 * pause, 30.0)
            console = kit / "console.txt"
            report(f"{kit.name}'s process ended with {process.returncode} (see {console}); again in {pause:g} s")
            over.wait(pause)
    finally:
        if process is not None:
            processes.end(process)


class _Service(Struct, frozen=True):
    target: str


class _Server(Struct, frozen=True):
    service: _Service


class _Startup(Struct, frozen=True):
    """What of FLARE's own file in a kit says where the server is."""

    servers: tuple[_Server, ...]


def server_of(kit: Path) -> tuple[str, int]:
    """Host and port as a kit has them; refused where this machine cannot find the host."""
    try:
        (server, *_) = files.decoded(kit / "startup" / "fed_client.json", _Startup).servers
        host, _, port = server.service.target.rpartition(":")
        address.check(host, int(port))
    except (OSError, ValueError, FedzeroError) as error:
        raise FedzeroError(f"{kit} does not say where its server is: {error}") from error
    address.resolve(host)
    return address.reachable(host), int(port)
