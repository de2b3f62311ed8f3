"""The run's half of serving its page: makes it when it is asked for, and keeps the process that serves it.

Strangers talk to that process alone; see process.py. Whatever they do to it, the run goes on, and if it ends, it is
started again.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from fedzero.lines import printable
from fedzero.web.channel import LONGEST_QUESTION, Answer, Question, Settings, receive, send
from fedzero.web.folders import FollowingFolder
from fedzero.web.following import Following

SPACING = 0.05
"""Seconds between two answers, at least: what following may take is bounded here, whoever asks."""
PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before the process is started again: doubled each time."""
PATIENCE = 5.0
"""Seconds that the process has to end in."""
VARIABLES = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TMPDIR")
"""Of the environment, what the process has; no secret is among them."""
BEGIN = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fedzero.web.process import main
main(int(sys.argv[2]), int(sys.argv[3]))"""


class Answering:
    """The page that `following` makes, served on a socket that listens, until it is closed. say: is told what fails."""

    def __init__(
        self,
        following: Following | FollowingFolder,
        listening: socket.socket,
        settings: Settings,
        say: Callable[[str], None],
    ):
        self._following, self._listening, self._settings, self._say = following, listening, settings, say
        self._closed, self._changing = threading.Event(), threading.Lock()
        self._process, channel = self._started()
        self._thread = threading.Thread(target=self._keep, args=(channel,), name="fedzero-web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Readers are sent the last change, for a few seconds at most."""
        with self._changing:
            self._closed.set()
            process = self._process
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._thread.join(PATIENCE)

    def _keep(self, channel: Connection) -> None:
        """Answer; if the process ends, start it again."""
        pause = PAUSE
        while True:
            with channel:
                self._answer_all(channel)
            if self._closed.is_set():
                return
            self._process.kill()  # it has ended, or does not keep to the rules
            status = self._process.wait()
            if pause == PAUSE:
                self._say(f"the process that serves the page ended with status {status}; it is started again")
            if self._closed.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE)
            with self._changing:
                if self._closed.is_set():
                    return
                try:
                    self._process, channel = self._started()
                except OSError as error:
                    self._say(f"the page is not served any more: {error}")
                    return

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            files = self._listening.fileno(), theirs.fileno()
            path = json.dumps([str(Path(entry).absolute()) for entry in sys.path])
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", BEGIN, path, *map(str, files)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=files,
                env={name: os.environ[name] for name in VARIABLES if name in os.environ},
                cwd="/",
                process_group=0,  # Ctrl-C is for the run
            )
            channel = Connection(ours.detach())
        with suppress(OSError):
            send(channel, self._settings)
        return process, channel

    def _answer_all(self, channel: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                question = receive(channel, Question, LONGEST_QUESTION)
                send(channel, self._answer(question))
                time.sleep(SPACING)

    def _answer(self, question: Question) -> Answer:
        following = self._following
        try:
            version = following.look(at_once=self._closed.is_set())
            text = following.page(question.mode) if version != question.version else None
        except Exception as error:  # a page that cannot be made must not end the thread, let alone the run
            return Answer(0, 1.0, problem=printable(f"{type(error).__name__}: {error}", 500))
        return Answer(following.version, max(0.0, following.due - time.monotonic()), text)
