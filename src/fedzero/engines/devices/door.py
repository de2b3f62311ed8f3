"""Whoever knocks: connections that have not said anything yet, or say nothing any more.

A connection is *silent* until its first request is complete, TLS included, and again after a response. The silent ones
have some seconds, or as long as they were given; where all room is taken the one that was silent for the longest
time makes way, so that whoever asks something is let in. Files for the run itself are never given to connections.
"""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any

WAITING = 2048
SPARE = 32
"""Files beside connections, of those that make way and are not closed yet."""


class Door:
    """most: the highest number of a file that a connection may have; patience: seconds for a first request."""

    def __init__(self, most: int, patience: float):
        self.most, self.patience = most, patience
        self.silent = OrderedDict[int, tuple[socket.socket, float]]()
        """by number of file: the connection, and until when it may say nothing; the first makes way first"""
        self._late = dict[int, socket.socket]()
        self.turned_away = 0

    def came(self, connection: socket.socket, now: float) -> bool:
        """Whether there is room for a connection, which is closed otherwise."""
        number = connection.fileno()
        if number > self.most:
            self._make_way()
            if number > self.most + SPARE:
                connection.close()
                self.turned_away += 1
                return False
        self.quiet(number, connection, now + self.patience)
        return True

    def quiet(self, number: int, connection: socket.socket, until: float) -> None:
        self.silent[number] = connection, until
        self.silent.move_to_end(number)

    def spoke(self, number: int) -> socket.socket | None:
        """A request of this connection is complete."""
        return self.silent.pop(number, (None, 0.0))[0]

    def _make_way(self) -> None:
        if self.silent:
            self._end(next(iter(self.silent)))

    def sweep(self, now: float) -> None:
        """End what was silent for too long, and at the last look too: a busy gateway reads what has come meanwhile."""
        late = {number: connection for number, (connection, until) in self.silent.items() if now > until}
        for number, connection in late.items():
            if self._late.get(number) is connection:
                self._end(number)
        self._late = late

    def _end(self, number: int) -> None:
        connection, _ = self.silent.pop(number)
        with suppress(OSError):  # it has ended by itself
            connection.shutdown(socket.SHUT_RDWR)


class Listening(socket.socket):
    """A socket that listens, behind a door."""

    door: Door | None = None

    def listen(self, backlog: int = 0) -> None:
        """Many may wait to be accepted; those who serve take few at a time, and hear those who speak between."""
        super().listen(WAITING)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection for which there is room; raises `BlockingIOError` where none waits."""
        while True:
            found, address = super().accept()
            if self.door is None or self.door.came(found, time.monotonic()):
                return found, address
