"""What the other end of a pipe may write: nobody waits for the rest of a message, and no memory is taken for bytes that
have not come."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from fedzero.engines.remote import frames
from fedzero.engines.remote.frames import Frames

Ends = tuple[Frames, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = Pipe()
    yield Frames(ours), theirs
    ours.close()
    theirs.close()


def write(end: Connection, data: bytes) -> None:
    assert os.write(end.fileno(), data) == len(data)


def test_messages_are_those_of_the_standard_library(ends: Ends) -> None:
    ours, theirs = ends
    for size in (0, 1, 100, 20_000, 60_000):
        message = bytes(i % 251 for i in range(size))
        theirs.send_bytes(message)
        assert ours.receive() == [message]
        ours.send(message)
        assert theirs.recv_bytes() == message
    theirs.send_bytes(b"a")
    theirs.send_bytes(b"")
    theirs.send_bytes(b"c")
    assert ours.receive() == [b"a", b"", b"c"]


def test_a_message_that_comes_byte_by_byte_keeps_nobody_waiting(ends: Ends) -> None:
    ours, theirs = ends
    data = struct.pack("!i", 3) + b"abc" + struct.pack("!iQ", -1, 2) + b"de"
    began, found = time.monotonic(), []
    for i in range(len(data)):
        assert ours.receive() == []
        write(theirs, data[i : i + 1])
        found += ours.receive()
    assert found == [b"abc", b"de"]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("size", [1 << 34, 1 << 40, 1 << 62, (1 << 64) - 1])
def test_a_giant_length_takes_no_memory(ends: Ends, size: int) -> None:
    ours, theirs = ends
    write(theirs, struct.pack("!iQ", -1, size) + b"x")
    with pytest.raises(OSError, match=f"a message of {size} bytes"):
        ours.receive()


def test_a_negative_length_is_none(ends: Ends) -> None:
    ours, theirs = ends
    write(theirs, struct.pack("!i", -2))
    with pytest.raises(OSError, match="a message of -2 bytes"):
        ours.receive()


def test_a_length_of_gigabytes_takes_the_bytes_that_come(ends: Ends) -> None:
    ours, theirs = ends
    write(theirs, struct.pack("!iQ", -1, frames.LARGEST) + b"x" * 1000)
    assert ours.receive() == []
    assert len(ours._come) < 2000


def test_a_message_within_a_message_is_part_of_it(ends: Ends) -> None:
    ours, theirs = ends
    inner = struct.pack("!i", 2) + b"no"
    theirs.send_bytes(inner)
    assert ours.receive() == [inner]


def test_who_ends_within_a_message_has_ended(ends: Ends) -> None:
    ours, theirs = ends
    write(theirs, struct.pack("!i", 100) + b"half")
    assert ours.receive() == []
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()


def test_who_reads_nothing_keeps_nobody_waiting(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = ends
    monkeypatch.setattr(frames, "LARGEST", 5_000_000)
    began = time.monotonic()
    ours.send(bytes(3_000_000))
    assert ours.waits
    with pytest.raises(OSError, match="does not read"):
        ours.send(bytes(4_000_000))
    assert time.monotonic() - began < 5
    size = 0
    while ours.waits:
        ours.flush()
        size += len(os.read(theirs.fileno(), 1 << 20))
    assert size >= 2_000_000
