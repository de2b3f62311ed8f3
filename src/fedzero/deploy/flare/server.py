"""FLARE's server, started so that strangers keep nobody waiting, and no site ends what others do.

As it is, its port shakes hands with one caller at a time before it looks at the next: whoever connects and says nothing
keeps every site from joining or coming back. Here each caller is waited for on a thread of its own, and not for ever.

As it is, a site that says that its process for a job has ended ends the job for all sites. Here the job is told, and
goes on with the others.
"""

from __future__ import annotations

import runpy
import ssl
from typing import Any

from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
from nvflare.private.fed.server.fed_server import FederatedServer

from fedzero.deploy.flare.relay import CHANNEL, ENDED

HANDSHAKE = 10.0
"""Seconds a caller has to show its certificate."""
PROGRAM = "nvflare.private.fed.app.server.server_train"


class Port(tcp_driver.TcpStreamServer):  # type: ignore[misc]
    """The port of FLARE's tcp driver; whether it is a TLS port at all is the driver's business."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        if isinstance(self.socket, ssl.SSLSocket):
            # not in accept(), which is called on one thread
            self.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]

    def finish_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            request.settimeout(HANDSHAKE)
            try:
                request.do_handshake()
            except OSError as error:
                tcp_driver.log.warning(f"{client_address} was turned away: {error}")
                return
            request.settimeout(None)
        super().finish_request(request, client_address)


_noted = FederatedServer.process_job_failure


def job_ended_at_site(server: Any, request: Any) -> Any:
    """In the place of FLARE's `process_job_failure`, which does the rest with a code that ends no job."""
    site = server.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
    job = None
    if isinstance(request.payload, dict):
        job = request.payload.get(JobFailureMsgKey.JOB_ID)
        request.payload = {**request.payload, JobFailureMsgKey.CODE: None}
    noted = _noted(server, request)
    if site is not None and isinstance(job, str) and job in server.engine.run_processes:
        target = FQCN.join([FQCN.ROOT_SERVER, job])
        server.cell.core_cell.fire_and_forget(CHANNEL, ENDED, target, Message({}, site.name.encode()), optional=True)
    return noted


if __name__ == "__main__":
    FederatedServer.process_job_failure = job_ended_at_site
    tcp_driver.TcpStreamServer = Port
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
