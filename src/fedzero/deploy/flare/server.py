"""FLARE's server, started so that strangers keep nobody waiting.

As it is, its port shakes hands with one caller at a time before it looks at the next: whoever connects and says nothing
keeps every site from joining or coming back. Here each caller is waited for on a thread of its own, and not for ever.
"""

from __future__ import annotations

import runpy
import ssl
from typing import Any

from nvflare.fuel.f3.drivers import tcp_driver

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


if __name__ == "__main__":
    tcp_driver.TcpStreamServer = Port
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
