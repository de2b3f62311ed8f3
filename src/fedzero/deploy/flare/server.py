"""FLARE's server, started so that strangers keep nobody waiting, and no site ends what others do.

As it is, a site that says that its process for a job has ended ends the job for all sites. Here the job is told, and
goes on with the others. It is also told at once when a site leaves, and soon after one has closed its connection: FLARE
itself waits for heartbeats. What reaches the server from sites at all is in port.py and gate.py.
"""

from __future__ import annotations

import logging
import runpy
from threading import Lock, Timer
from typing import Any

import msgspec
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
from nvflare.private.fed.server.fed_server import FederatedServer

from fedzero.deploy.flare.bridge import CLOSED, GONE, LEFT
from fedzero.deploy.flare.gate import Gate, keep_no_statistics, may_be_called
from fedzero.deploy.flare.port import LIMITS, Port, frame_arrived, hang_up
from fedzero.deploy.flare.project import SUPERVISOR
from fedzero.deploy.flare.rate import Rate
from fedzero.deploy.flare.relay import CHANNEL, ENDED, LIMIT

PROGRAM = "nvflare.private.fed.app.server.server_train"
BACK = 3.0
"""Seconds in which a site whose connection was lost may connect again; FLARE's tries after one."""

_noted, _quit = FederatedServer.process_job_failure, FederatedServer.quit_client
_registered, _processed = FederatedServer._register_cellnet_cbs, CoreCell.process_message
_greeted = ConnManager.update_endpoint
log = logging.getLogger(__name__)


def tell(server: Any, job: str, site: str, why: bytes) -> None:
    """To a job: this site does not answer."""
    if job in server.engine.run_processes:
        target, message = FQCN.join([FQCN.ROOT_SERVER, job]), Message({}, msgspec.msgpack.encode((site, why)))
        server.cell.core_cell.fire_and_forget(CHANNEL, ENDED, target, message, optional=True)


def site_of(server: Any, request: Any) -> Any:
    return server.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))


def job_ended_at_site(server: Any, request: Any) -> Any:
    """In the place of FLARE's `process_job_failure`, which does the rest with a code that ends no job."""
    site, job = site_of(server, request), None
    if isinstance(request.payload, dict):
        job = request.payload.get(JobFailureMsgKey.JOB_ID)
        request.payload = {**request.payload, JobFailureMsgKey.CODE: None}
    noted = _noted(server, request)
    if site is not None and isinstance(job, str):
        tell(server, job, site.name, GONE)
    return noted


def site_leaves(server: Any, request: Any) -> Any:
    """In the place of FLARE's `quit_client`."""
    site = site_of(server, request)
    answer = _quit(server, request)
    if site is not None and site_of(server, request) is None:
        for job in list(server.engine.run_processes):
            tell(server, job, site.name, LEFT)
    return answer


class Connections(EndpointMonitor):  # type: ignore[misc]
    """Tells a job of a site whose process for it has closed its connection, unless it connects again in time."""

    def __init__(self, server: Any):
        self._server, self._lost, self._lock = server, set[str](), Lock()

    def state_change(self, endpoint: Endpoint) -> None:
        """FLARE holds a lock meanwhile: nothing is sent from here."""
        site, _, job = endpoint.name.partition(".")
        if endpoint.state != EndpointState.DISCONNECTED or job not in self._server.engine.run_processes:
            return
        with self._lock:
            if endpoint.name in self._lost or site == FQCN.ROOT_SERVER:
                return
            self._lost.add(endpoint.name)
        waiting = Timer(BACK, self._look, (endpoint.name, site, job))
        waiting.daemon = True
        waiting.start()

    def _look(self, name: str, site: str, job: str) -> None:
        with self._lock:
            self._lost.discard(name)
        if not self._server.cell.core_cell.is_cell_connected(name):
            tell(self._server, job, site, CLOSED)


def registered(server: Any) -> None:
    """In the place of FLARE's `_register_cellnet_cbs`, after which the server's cell is complete."""
    _registered(server)

    def expect(request: Any) -> Message:
        """A job says how long an answer may be; no site is let through with such a message."""
        job = str(request.get_header(MessageHeaderKey.ORIGIN)).partition(".")[2]
        LIMITS.keep(set(server.engine.run_processes))
        LIMITS.expect(job, int.from_bytes(request.payload, "big"))
        return Message({}, b"-")

    SERVERS.append(server)
    server.cell.core_cell.register_request_cb(CHANNEL, LIMIT, expect)
    server.cell.core_cell.communicator.register_monitor(Connections(server))


GATE = Gate()
SERVERS: list[Any] = []
"""FLARE's, once it is complete; there is one in a process."""
LINES: dict[str, Rate] = {}
"""What is logged of a site: 20 lines at once, one a second."""


def refuse(site: str, why: str) -> None:
    if not LINES.setdefault(site, Rate(20, 1)).wait():
        log.warning(f"refused a message of {site} {why}")


def greeted(manager: ConnManager, connection: Any, data: Any) -> None:
    """In the place of FLARE's `update_endpoint`, which keeps every name that the parts of a site give themselves."""
    site = connection.conn.get_conn_properties().get(DriverParams.PEER_CN.value)
    name = data.get(HandshakeKeys.ENDPOINT_NAME) if isinstance(data, dict) else None
    jobs = [job for server in SERVERS for job in list(server.engine.run_processes)]
    if site not in (None, SUPERVISOR) and not may_be_called(name, site, jobs):
        refuse(site, "that names no part of it")
        hang_up(connection.conn.sock)
        raise CommError(CommError.BAD_DATA, "not the name of a part of this site")
    _greeted(manager, connection, data)


def message_arrived(cell: Any, endpoint: Any, connection: Any, number: int, message: Any) -> None:
    """In the place of FLARE's `process_message`, which does not ask who may say what."""
    name = connection.get_conn_properties().get(DriverParams.PEER_CN.value)
    if name is None:  # the server's own job
        GATE.asked(message.headers)
    elif name != SUPERVISOR and (why := GATE.refused(name, message.headers, len(message.payload or b""))):
        refuse(name, why)
        return
    _processed(cell, endpoint, connection, number, message)


if __name__ == "__main__":
    FederatedServer.process_job_failure = job_ended_at_site
    FederatedServer.quit_client = site_leaves
    FederatedServer._register_cellnet_cbs = registered
    tcp_driver.TcpStreamServer = Port
    ConnManager.process_frame = frame_arrived
    ConnManager.update_endpoint = greeted
    CoreCell.process_message = message_arrived
    keep_no_statistics()
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
