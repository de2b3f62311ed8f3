"""The server's half of a job: passes orders of the supervisor on to sites, and their answers back.

Messages go through the core cell, one each way: no streaming, no acknowledgements, no timers. That is a layer below
FLARE's documented interface, so the tested range of versions is narrow; the two calls are `_call` here and `_listen` in
answer.py.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.impl.controller import Controller
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from fedzero.deploy.flare.bridge import BRIDGE_FILE, receive, send

CHANNEL, TOPIC = "fedzero", "order"
PING = b"ping"
READY_SECONDS = 30.0
"""How long sites may take to start their processes for a job; who takes longer has no part in it."""


class Relay(Controller):  # type: ignore[misc]
    """Named in a job's configuration; FLARE makes it, in a process of its own."""

    def start_controller(self, fl_ctx: Any) -> None: ...

    def stop_controller(self, fl_ctx: Any) -> None: ...

    def process_result_of_unknown_task(self, *_: Any) -> None: ...

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
        where = json.loads((Path(fl_ctx.get_workspace().get_site_config_dir()) / BRIDGE_FILE).read_text())
        self._cell = engine.get_cell().core_cell
        self._targets = {client.name: FQCN.join([client.get_fqcn(), job]) for client in engine.get_clients()}
        here = self._ready(abort_signal)
        supervisor = socket.socket(socket.AF_UNIX)
        supervisor.connect(where["socket"])
        lock, over = threading.Lock(), threading.Event()
        send(supervisor, "hello", where["token"], job, here, os.getpid())
        threading.Thread(target=_end_with, args=(abort_signal, over, supervisor), daemon=True).start()
        pool = ThreadPoolExecutor(2 * len(here) + 4, thread_name_prefix="fedzero")
        try:
            while (frame := receive(supervisor)) is not None and frame[0] == "ask":
                _, ask, orders, seconds, limit, pings = frame
                left = [len(orders)]
                for site, order in orders.items():
                    pool.submit(self._pass_on, supervisor, lock, left, ask, site, order, seconds, limit)
                for site in pings:
                    pool.submit(self._ping, supervisor, lock, site)
        except OSError:
            pass  # the supervisor is gone, or the job was aborted: either way the epoch is over
        finally:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            supervisor.close()

    def _ready(self, abort_signal: Any) -> list[str]:
        """Sites whose processes for this job answer; they come up after ours."""
        missing, end = set(self._targets), time.monotonic() + READY_SECONDS
        while missing and time.monotonic() < end and not abort_signal.triggered:
            missing -= {site for site in sorted(missing) if self._call(site, PING, 0.2, 64)[0]}
            if missing:
                time.sleep(0.05)
        return sorted(set(self._targets) - missing)

    def _pass_on(
        self,
        supervisor: socket.socket,
        lock: threading.Lock,
        left: list[int],
        ask: int,
        site: str,
        order: bytes,
        seconds: float,
        limit: int,
    ) -> None:
        try:
            ok, answer = self._call(site, order, seconds, limit)
        except Exception as error:  # whatever FLARE raises: this site did not answer
            ok, answer = False, repr(error).encode()
        with lock:
            left[0] -= 1
            try:
                send(supervisor, "got", ask, site, ok, answer)
                if not left[0]:
                    send(supervisor, "done", ask)
            except OSError:
                pass  # the epoch is over

    def _ping(self, supervisor: socket.socket, lock: threading.Lock, site: str) -> None:
        if self._call(site, PING, 0.5, 64)[0]:
            with lock:
                send(supervisor, "pong", site)

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


def _end_with(abort_signal: Any, over: threading.Event, supervisor: socket.socket) -> None:
    """An abort must wake whoever waits for the supervisor's next word."""
    while not abort_signal.triggered and not over.wait(0.1):
        pass
    with suppress(OSError):
        supervisor.shutdown(socket.SHUT_RDWR)
