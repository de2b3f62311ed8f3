"""Clients that are devices: no Python process with PyTorch, but anything that speaks `fedzero-device/1`
(docs/device-protocol.md).

messages      frames, as typed values
codes         why a frame is refused
statements    what signatures are about
signing       Ed25519 and P-256
plan          what a device must know of a run, and what the profile has not
registry      keys, tickets and places, on disk
ticket        a ticket as an address
session       one device's session: bytes in, frames out
controls      what an operator says, and the traffic of places
limits        what an address or a place may ask
attempts      under which number a round is asked
graphs        a graph that devices fetch
hub           all sessions, in the thread of the web server
framing       web sockets, without input or output
sockets       a web socket of a device
application   polling
door          who may connect, and for how long without a word
serving       the web server
farewell      the end of a run
catching_up   what devices that lack rounds are sent
sums          the integers of runs with [privacy]
clients       the contract of engines
nested        the same at a host, whose server draws the cohort
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from fedzero.errors import FedzeroError
from fedzero.model.numbers import Natural, Positive, PositiveInt
from fedzero.protocol.engine import Clients
from fedzero.recipe.engines import Engine
from fedzero.recipe.view import RunView

MOST_CONNECTIONS = 10_000


class Devices(Engine, tag="devices"):
    """Clients are devices, which join by a ticket and keep their data (docs/device-protocol.md)."""

    listen: str = "127.0.0.1:8470"
    """Address and port of the gateway; port 0: a free one."""
    url: str = ""
    """The address at which devices reach it, where that is another one: of a tunnel, or a name of this machine."""
    certificate: str = ""
    """Of TLS: a PEM file with the chain. Without one the gateway listens on this machine alone."""
    key: str = ""
    """Of TLS: a PEM file with the key."""
    least: PositiveInt = 1
    """Devices that must be present before a round begins."""
    deadline: Positive = 60.0
    """Seconds that an exchange may take."""
    grace: Positive = 10.0
    """Seconds in which a device that lost its connection may come back to the round."""
    beat: Annotated[int, Meta(ge=1, le=3600)] = 20
    """Seconds between two signs of life of a device."""
    connections: Annotated[int, Meta(ge=1, le=MOST_CONNECTIONS)] = 6000
    """The most at once."""
    daily_bytes: Natural = 0
    """The most bytes of frames that a place may send and get in a day (UTC); 0: any number."""
    linger: Annotated[float, Meta(ge=0, le=3600)] = 15.0
    """Seconds for which the gateway stays open after the run, if devices are away that have not heard of its end."""
    origins: tuple[str, ...] = ()
    """Of pages from elsewhere that may connect, such as https://example.org."""

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        from fedzero.engines.devices.application import Gateway
        from fedzero.engines.devices.clients import DeviceClients
        from fedzero.engines.devices.farewell import farewell
        from fedzero.engines.devices.graphs import GraphFile
        from fedzero.engines.devices.hub import Hub
        from fedzero.engines.devices.nested import NestedDevices
        from fedzero.engines.devices.plan import OPTIONAL, Rates, encode, plan_of
        from fedzero.engines.devices.registry import Registry
        from fedzero.engines.devices.serving import listening, served
        from fedzero.engines.devices.sums import WIDEST
        from fedzero.methods.shared.seeded import SeededMethod
        from fedzero.oracles.portable.running import GraphObjective

        setup, replica = run.built()
        host, port = self._address()
        plan, method = encode(plan_of(setup)), setup.recipe.algorithm
        assert isinstance(method, SeededMethod)
        if run.environment.folder is None:
            raise FedzeroError("a gateway keeps its keys and places in the folder of a run, and there is none")
        if method.distribution == OPTIONAL:
            run.warn(f"{OPTIONAL} directions are an optional part of the profile: devices without them refuse this run")
        federation = setup.recipe.federation
        if self.least > federation.clients:
            raise FedzeroError(f"engine.least = {self.least} exceeds federation.clients = {federation.clients}")
        objective = setup.problem.objective
        graph = None
        if isinstance(objective, GraphObjective):
            graph = GraphFile(objective.graph.path, objective.graph.sha256)
        registry = Registry(run.environment.folder)
        try:
            at = listening(host, port)
            registry.url = self.url or _url(host, at.getsockname()[1], bool(self.certificate))
            mine = None if run.here is None else sorted(run.here)
            hub = Hub(registry, plan, federation.clients, self.beat, self.connections, mine, self.daily_bytes)
            hub.graph = graph
            wide = WIDEST * setup.plan.numbers if setup.recipe.privacy else 0
            largest = 2048 + setup.plan.chain.limit(setup.plan.numbers) + wide + 128
            gateway = Gateway(hub, self.origins, self.beat, max(largest, 1 << 14))
            tls = {"ssl_certfile": self.certificate, "ssl_keyfile": self.key} if self.certificate else {}
            with served(gateway, at, tls):
                run.warn(f"devices join at {registry.url}: `fedzero devices ticket {run.environment.folder}`")
                kind = DeviceClients if mine is None else NestedDevices
                yield kind(hub, run, Rates(method), self.deadline, self.grace, self.least)
                farewell(
                    hub, run, self.beat, self.linger, replica.round if replica.round >= setup.recipe.rounds else None
                )
            hub.close()
        finally:
            registry.close()
            if graph is not None:
                graph.close()

    def _address(self) -> tuple[str, int]:
        split = urlsplit(f"//{self.listen}")
        try:
            host, port = split.hostname or "", split.port
        except ValueError:
            host, port = "", None
        if not host or port is None:
            raise FedzeroError(f"engine.listen = {self.listen!r} is no address: write it as 127.0.0.1:8470")
        if bool(self.certificate) != bool(self.key):
            raise FedzeroError("engine.certificate and engine.key go together: give both")
        for path in filter(None, (self.certificate, self.key)):
            if not Path(path).is_file():
                raise FedzeroError(f"{path}: there is no such file of TLS")
        if not self.certificate and not _loopback(host):
            raise FedzeroError(
                f"engine.listen = {self.listen!r} is reached from other machines, and plain http is for this one: "
                "give engine.certificate and engine.key, or listen on 127.0.0.1 behind a tunnel (engine.url)"
            )
        return host, port


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(host: str, port: int, secure: bool) -> str:
    place = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{place}:{port}"
