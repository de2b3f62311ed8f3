"""The process that serves the page of a run: it talks to strangers, and has nothing that is worth having or breaking.

It has the listening socket, a channel to the process of the run, limits of its own on files and memory, and the lowest
priority. It ends when its standard input does: the run is over, or its process is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedzero.web import limits
from fedzero.web.application import LivePage
from fedzero.web.asking import Source
from fedzero.web.channel import Settings, receive

GRACE = 3
"""Seconds for last changes to reach their readers."""
LOWEST = 19


def main(listening: int, channel: int) -> None:
    """The numbers of two open files."""
    os.nice(LOWEST)
    most = limits.restrain()
    logging.disable()  # whatever strangers do, nothing is written because of it
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(socket.socket(fileno=listening), Connection(channel), most))


async def serve(listening: socket.socket, channel: Connection, most: int) -> None:
    source, settings = Source(channel), receive(channel, Settings)
    config = uvicorn.Config(
        LivePage(source, settings).application(),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[("Connection", "close")],
        backlog=limits.BACKLOG,
        timeout_graceful_shutdown=GRACE,
    )
    server = uvicorn.Server(config)
    connections = limits.Connections(most, lambda: H11Protocol(config, server.server_state, {}))
    config.http = cast(Any, lambda **_: connections.protocol())
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # a socket that cannot be accepted is tried again in a second

    def end() -> None:
        loop.remove_reader(0)
        connections.end_waiting()
        source.ending.set()
        server.should_exit = True

    loop.add_reader(0, end)
    sweeping = asyncio.create_task(connections.sweep_for_ever())
    try:
        await server.serve([listening])
    finally:
        sweeping.cancel()
