"""A site's half of a job: orders in, answers out. `deploy.site`, which knows nothing of FLARE, does the work."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from fedzero.deploy.flare.bridge import NUMBER, PING
from fedzero.deploy.flare.project import SETTINGS
from fedzero.deploy.flare.relay import CHANNEL, TOPIC

LOOK_EVERY = 0.5
"""Seconds between two looks whether the job is over; FLARE's signal cannot be waited for."""


class SiteExecutor(Executor):  # type: ignore[misc]
    """Named in a job's configuration; FLARE makes it, in a process of its own.

    Its one task lasts as long as the job: a site that has a task does not ask the server for another one every two
    seconds, which was most of what an idle site sent and received. Orders come beside it, by `_on`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._working, self._latest = threading.Lock(), 0
        # a log of queries is used from the thread that opened it
        self._worker = ThreadPoolExecutor(1)
        self._site: Any = None
        self._over = threading.Event()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        while not (abort_signal.triggered or self._over.wait(LOOK_EVERY)):
            pass
        return make_reply(ReturnCode.TASK_ABORTED)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.START_RUN:
            local = Path(fl_ctx.get_workspace().get_site_config_dir())
            server = FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()])
            # An exception here would be swallowed and the job go on without us, hence a thread that says what it met.
            threading.Thread(target=self._listen, args=(fl_ctx.get_engine(), local, server), daemon=True).start()
        elif event_type in (EventType.END_RUN, EventType.ABORT_TASK) and self._site is not None:
            with self._working:
                self._worker.submit(self._site.leave).result()
            self._over.set()

    def _listen(self, engine: Any, local: Path, server: str) -> None:
        # takes seconds, which FLARE's start-up need not wait for
        from fedzero.deploy.flare.presence import publish
        from fedzero.deploy.site.site import Settings, Site

        settings = Settings.read(local / SETTINGS)
        self._site = Site(settings, Path(settings.keep or local / "keep"))
        threading.Thread(target=publish, args=(self._site, local.parent, self._over), daemon=True).start()
        while engine.get_cell() is None:  # it is made after the run has started
            time.sleep(0.01)
        engine.get_cell().core_cell.register_request_cb(CHANNEL, TOPIC, lambda request: self._on(request, server))

    def _on(self, request: Any, server: str) -> Any:
        """FLARE calls this on many threads. A number that is no longer the latest is of a round long over."""
        if request.get_header(MessageHeaderKey.ORIGIN) != server:
            return Message({MessageHeaderKey.RETURN_CODE: "unauthorized"}, b"-")
        if request.payload == PING:
            return Message({}, PING)
        order = bytes(request.payload)
        number = int.from_bytes(order[:NUMBER], "big")
        self._latest = max(self._latest, number)
        with self._working:
            if number < self._latest:
                return Message({MessageHeaderKey.RETURN_CODE: "stale"}, b"-")
            return Message({}, self._worker.submit(self._site.answer, order[NUMBER:]).result())
