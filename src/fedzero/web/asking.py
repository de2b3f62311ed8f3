"""The page, as the process of the run makes it: asked for no more often than it can have changed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from fedzero.web.channel import Answer, Mode, Question, receive, send


@dataclass(frozen=True)
class Page:
    """version 0, text None: there is no run yet."""

    version: int = 0
    text: str | None = None
    problem: str = ""
    asked: float = float("-inf")
    """when it was asked for, by the monotonic clock"""
    good: float = float("-inf")
    """until when it cannot have changed"""


class Source:
    """One question is on its way at a time, and its answer is for all who wait.

    ending: the run is over, so that whoever asks now is told the last change.
    """

    def __init__(self, channel: Connection):
        self.ending = asyncio.Event()
        self._channel = channel
        self._pages: dict[Mode, Page] = {}
        self._asking: asyncio.Task[None] | None = None
        self._gone = False

    async def page(self, mode: Mode) -> Page:
        came = time.monotonic()
        while True:
            held = self._pages.get(mode, Page())
            good = time.monotonic() < held.good and not self.ending.is_set()
            if good or held.asked >= came or self._gone:
                return held
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask(mode, held))
            await asyncio.shield(self._asking)  # whoever waits may go: others wait as well

    async def _ask(self, mode: Mode, held: Page) -> None:
        try:
            self._pages[mode] = await asyncio.to_thread(self._asked, mode, held)
        except (EOFError, OSError):  # the process of the run is gone, and this one is about to end
            self._gone = True
        finally:
            self._asking = None

    def _asked(self, mode: Mode, held: Page) -> Page:
        asked = time.monotonic()
        send(self._channel, Question(mode, held.version))
        answer = receive(self._channel, Answer)
        text = held.text if answer.text is None and answer.version == held.version else answer.text
        return Page(answer.version, text, answer.problem, asked, time.monotonic() + answer.wait)
