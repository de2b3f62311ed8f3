"""Many devices on web sockets in one process, whose answers are signed before they are asked: what they cost is small.

`python bench/network/presigned.py RUN URL PLACES ROUNDS SENT` is started by `gateway_load.py` and reads commands:
`connect`, `drop` (all connections are cut), `stop`. SENT is a file of float64, places × rounds: when each was sent.
"""

from __future__ import annotations

import asyncio
import base64
import os
import resource
import struct
import sys
import time
from hashlib import sha256
from urllib.parse import urlsplit

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedzero.engines.devices import messages as m
from fedzero.engines.devices import statements
from fedzero.protocol.messages import Reply, encode_reply, encode_work

DIGEST = b"8digests"
NUMBERS = np.linspace(-1, 1, 10, dtype="<f4").tobytes()
AT_ONCE = 200
"""Connections that are made at the same time."""


def key_of(place: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(sha256(f"place {place}".encode()).digest())


def order_of(round: int) -> bytes:
    """The body of the order of a round: no updates, so that it is known before."""
    return m.encode(m.OrderBody(encode_work(round, 0, []), b""))


def reply_of(round: int) -> bytes:
    return encode_reply(Reply(round, 0, DIGEST, NUMBERS, struct.pack("<f", 1.0), 11))


class Device(asyncio.Protocol):
    """A connection of a place; a web socket by hand, without masks that matter."""

    def __init__(self, all_of_them: Everybody, place: int):
        self.all, self.place, self.nonce = all_of_them, place, os.urandom(16)
        self.buffer, self.shaken = bytearray(), False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        key = base64.b64encode(self.nonce).decode()
        head = f"GET /fedzero/1/socket HTTP/1.1\r\nHost: {self.all.host}\r\nUpgrade: websocket\r\n"
        head += f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        transport.write(head.encode())

    def send(self, frame: bytes, kind: int = 2) -> None:
        length = len(frame)
        head = bytes((0x80 | kind, 0x80 | length)) if length < 126 else struct.pack(">BBH", 0x80 | kind, 0xFE, length)
        assert self.transport is not None
        self.transport.write(head + bytes(4) + frame)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.shaken:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            assert b" 101 " in head, bytes(head)
            self.shaken, self.buffer = True, bytearray(rest)
            self.send(m.encode(m.Hello(1, self.all.run, self.place, self.nonce, self.all.plan, self.all.ready)))
        while len(self.buffer) >= 2:
            length, at = self.buffer[1], 2
            if length == 126:
                length, at = int.from_bytes(self.buffer[2:4], "big"), 4
            elif length == 127:
                length, at = int.from_bytes(self.buffer[2:10], "big"), 10
            if len(self.buffer) < at + length:
                return
            kind, frame = self.buffer[0] & 15, bytes(self.buffer[at : at + length])
            del self.buffer[: at + length]
            if kind == 9:
                self.send(frame, 10)
            elif kind == 2:
                self.obey(msgspec.msgpack.decode(frame))

    def obey(self, frame: list[object]) -> None:
        if frame[0] == 19:
            round = frame[1]
            assert isinstance(round, int)
            self.all.sent[self.place, round] = time.monotonic()
            self.send(self.all.answer(self.place, round))
        elif frame[0] == 17:
            nonce = frame[2]
            assert isinstance(nonce, bytes)
            said = statements.proof(self.all.run, self.place, nonce, self.nonce, self.all.ready)
            self.send(m.encode(m.Proof(key_of(self.place).sign(said))))
        elif frame[0] == 18:
            self.all.here.add(self.place)
        elif frame[0] == 24:
            print("error", frame[1:], file=sys.stderr, flush=True)

    def connection_lost(self, reason: Exception | None) -> None:
        self.all.here.discard(self.place)


class Everybody:
    def __init__(self, run: bytes, url: str, places: int, rounds: int, sent: str):
        split = urlsplit(url)
        self.run, self.host, self.port, self.places = run, split.hostname or "", split.port, places
        self.sent = np.memmap(sent, np.float64, "r+", shape=(places, rounds))
        self.plan, self.ready, self.here = b"", 0, set[int]()
        self.devices: list[Device] = []
        self.heads = [m.encode(m.Answer(r, 0, 0, reply_of(r), bytes(64)))[:-64] for r in range(rounds)]
        self.signatures = self._signed(rounds)

    def _signed(self, rounds: int) -> bytearray:
        found, bodies = bytearray(64 * self.places * rounds), [(order_of(r), reply_of(r)) for r in range(rounds)]
        for place in range(self.places):
            key = key_of(place)
            for round, (order, reply) in enumerate(bodies):
                at = 64 * (place * rounds + round)
                found[at : at + 64] = key.sign(statements.answer(self.run, place, round, 0, 0, order, reply))
        return found

    def answer(self, place: int, round: int) -> bytes:
        at = 64 * (place * len(self.heads) + round)
        return self.heads[round] + self.signatures[at : at + 64]

    async def connect(self) -> None:
        gate, loop = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop()

        async def one(place: int) -> None:
            async with gate:
                for _ in range(20):
                    try:
                        _, device = await loop.create_connection(lambda: Device(self, place), self.host, self.port)
                        break
                    except OSError:
                        await asyncio.sleep(0.2)
                self.devices.append(device)
                while place not in self.here and not device.transport.is_closing():  # type: ignore[union-attr]
                    await asyncio.sleep(0.005)

        await asyncio.gather(*(one(place) for place in range(self.places)))

    def drop(self) -> None:
        for device in self.devices:
            device.transport.abort()  # type: ignore[union-attr]
        self.devices.clear()

    async def obey(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).strip():
            if line == b"stop":
                return
            if line == b"drop":
                self.drop()
            else:
                await self.connect()
                print("connected", flush=True)


def main() -> None:
    run, url, places, rounds, sent = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    everybody = Everybody(bytes.fromhex(run), url, int(places), int(rounds), sent)
    print("signed", flush=True)
    asyncio.run(everybody.obey())


if __name__ == "__main__":
    main()
