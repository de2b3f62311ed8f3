"""The server's half of a job: passes orders of the supervisor on to sites, and their answers back.

Messages go through the core cell, one each way: no streaming, no acknowledgements, no timers. That is a layer below
FLARE's documented interface, so the tested range of versions is narrow; the two calls are `_call` here and `_listen` in
executor.py.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from nvflare.apis.controller_spec import Task
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from fedzero.deploy.flare.bridge import (
    CLOSED,
    LISTEN,
    PING,
    PINGS,
    READY_MOST,
    READY_SECONDS,
    Orders,
    connect,
    readable,
    receive,
    send,
)
from fedzero.deploy.flare.gate import keep_no_statistics

CHANNEL, TOPIC, ENDED, LIMIT = "fedzero", "order", "ended", "limit"
"""ENDED: FLARE's server says that a site will not answer, and why (GONE, LEFT or CLOSED); LIMIT: it is told how many
bytes an answer may have. See server.py."""
Ended = tuple[str, bytes]
FIRST_PING, LONGEST_PING, TOLD = 0.2, 3.0, 10.0
"""Seconds that a ping waits for an answer while sites start their processes; that the server has to take a message."""


class Relay(Controller):  # type: ignore[misc]
    """Named in a job's configuration; FLARE makes it, in a process of its own."""

    def start_controller(self, fl_ctx: Any) -> None: ...

    def stop_controller(self, fl_ctx: Any) -> None: ...

    def process_result_of_unknown_task(self, *_: Any) -> None: ...

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        keep_no_statistics()
        engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
        self._cell, self._sending = engine.get_cell().core_cell, threading.Lock()
        self._targets = {client.name: FQCN.join([client.get_fqcn(), job]) for client in engine.get_clients()}
        self._gone, self._open, self._limit = dict[str, bytes](), dict[str, int](), 0
        self._bridge: Connection | None = None
        self._cell.register_request_cb(CHANNEL, ENDED, self._ended)
        # the one task of a job, which sites have until it is over: see executor.py
        self.broadcast_forever(Task(LISTEN, Shareable()), fl_ctx)
        pool = ThreadPoolExecutor(2 * len(self._targets) + 4, thread_name_prefix="fedzero")
        here = self._ready(pool, abort_signal)
        # An end of file, or any error: the supervisor is gone, and the epoch over.
        with suppress(EOFError, OSError), connect(Path(fl_ctx.get_workspace().get_site_config_dir())) as bridge:
            try:
                with self._sending:
                    self._bridge = bridge
                    send(bridge, (job, here, os.getpid()))
                while not abort_signal.triggered:
                    if readable(bridge, 0.1):
                        number, orders, seconds, limit = receive(bridge, Orders)
                        self._expect(limit)
                        for site, order in orders.items():
                            pool.submit(self._pass_on, number, site, order, seconds, limit)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _ready(self, pool: ThreadPoolExecutor, abort_signal: Any) -> tuple[str, ...]:
        """Sites whose processes for this job answer; they come up after ours. A loaded machine answers late: each ping
        waits longer than the last."""
        everybody, began, seconds = set(self._targets), time.monotonic(), READY_MOST
        missing, ping = everybody, FIRST_PING
        while (missing := missing - self._gone.keys()) and not abort_signal.triggered:
            asked = sorted(missing)
            answers = pool.map(lambda site: self._call(site, PING, ping, 64)[0], asked)  # noqa: B023 - used at once
            missing -= {site for site, ok in zip(asked, answers, strict=True) if ok}
            ping = min(1.2 * ping, LONGEST_PING)
            waited = time.monotonic() - began
            if seconds == READY_MOST and 2 * len(missing) <= len(everybody):
                seconds = min(max(READY_SECONDS, 3 * waited), READY_MOST)
            if waited > seconds:
                break
            if missing:
                time.sleep(0.05)
        return tuple(sorted(everybody - missing - self._gone.keys()))

    def _expect(self, limit: int) -> None:
        """The server, which throws away what is longer, is told before the first order with a larger answer."""
        if limit > self._limit:
            message = Message({}, limit.to_bytes(8, "big"))
            self._cell.send_request(CHANNEL, LIMIT, FQCN.ROOT_SERVER, message, timeout=TOLD)
            self._limit = limit

    def _ended(self, request: Any) -> Any:
        """A site does not answer its open order: whoever waits for that need not. Of a closed connection the site may
        make another one, so it is asked again; a process that has ended, or a site that has left, is not."""
        if request.get_header(MessageHeaderKey.ORIGIN) == FQCN.ROOT_SERVER:
            site, why = msgspec.msgpack.decode(bytes(request.payload), type=Ended)
            with self._sending:
                if why != CLOSED:
                    self._gone.setdefault(site, why)
            self._answer(self._open.get(site, PINGS), site, False, why)
        return Message({}, b"-")

    def _pass_on(self, number: int, site: str, order: bytes, seconds: float, limit: int) -> None:
        if number != PINGS:
            self._open[site] = number
        try:
            why = self._gone.get(site)
            ok, answer = self._call(site, order, seconds, limit) if why is None else (False, why)
        except Exception as error:  # whatever FLARE raises: this site did not answer
            ok, answer = False, repr(error).encode()
        self._answer(number, site, ok, answer)

    def _answer(self, number: int, site: str, ok: bool, answer: bytes) -> None:
        """To the supervisor, once for every order; of pings, only that there was an answer."""
        with self._sending, suppress(OSError):  # closed: the epoch is over
            first = number != PINGS and self._open.get(site) == number and self._open.pop(site) == number
            if self._bridge is not None and (first or (ok and number == PINGS)):
                send(self._bridge, (number, site, ok, answer))

    def _call(self, site: str, order: bytes, seconds: float, limit: int) -> tuple[bool, bytes]:
        """One request, one reply. FLARE has checked that whoever answers has the certificate of that site."""
        reply = self._cell.send_request(
            CHANNEL, TOPIC, self._targets[site], Message({}, order), timeout=seconds, optional=True
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        if code != ReturnCode.OK:
            return False, str(code).encode()
        if not isinstance(reply.payload, bytes | bytearray):
            return False, b"sent no bytes"
        if len(reply.payload) > limit:
            return False, f"sent {len(reply.payload)} bytes where at most {limit} were expected".encode()
        return True, bytes(reply.payload)
