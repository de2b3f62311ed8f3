"""Derives docs/transcripts: whole runs of one device and its gateway, byte by byte in both directions.

PYTHONPATH=src:clients/python:tests python tests/devices/transcripts.py     writes them, and golden.txt

The keys of both sides are fixed, and all that is random follows from a counter. The device is clients/python, and the
gateway fedzero's. What a device computes is exact in all runs but `hidden-layers` (fedzero.testing.devices.settings),
so every device sends the same bytes, signatures included (Ed25519 draws nothing).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedzero_client.session import Session as Device
from fedzero_client.session import Ticket
from fedzero_client.store import Store
from fedzero_client.turn import Rows

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.hub import Hub
from fedzero.engines.devices.plan import encode
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.session import Asked, Session
from fedzero.engines.devices.signing import GatewayKeys
from fedzero.engines.devices.ticket import address
from fedzero.protocol.messages import encode_work
from fedzero.testing.devices.scenarios.turns import IN_TRANSCRIPTS, SETTINGS
from fedzero.testing.devices.settings import Run

FOLDER = Path(__file__).parents[2] / "docs" / "transcripts"
GOLDEN = "golden.txt"
KEYS = GatewayKeys(bytes(range(32)), bytes(range(32, 64)))
DEVICE = bytes(range(64, 96))
"""The secret key of the device (RFC 8032)."""
URL = "https://example.org"
BEAT, LIMIT = 20, 4096


@contextmanager
def counted() -> Iterator[None]:
    """os.urandom follows from the number of its call."""
    calls = 0

    def drawn(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return sha256(b"fedzero transcript" + calls.to_bytes(8, "little")).digest()[:count]

    with patch.object(os, "urandom", drawn):
        yield


@dataclass
class Script:
    """What is said in a run, in order."""

    run: Run
    hub: Hub
    ticket: str
    folder: Path
    frames: list[list[str]] = field(default_factory=list)

    def connect(self) -> None:
        """A new connection, of a device that has what it kept."""
        store = Store(self.folder / "device")
        store.put(seed=DEVICE)
        self.device = Device(Ticket.of(self.ticket), store, Rows(*self.run.setting.data))
        self.session = Session(self.hub, lambda: 0.0)
        self.frames.append(["", "", "a new connection"])
        self._sent(self.device.begin())
        self.talk()

    def leave(self) -> None:
        """The connection breaks."""
        self.session.end()
        self.device.store.close()

    def talk(self) -> None:
        while found := self.session.take():
            for data in found:
                self._heard(data)

    def _heard(self, data: bytes) -> None:
        self.frames.append(["gateway", type(m.decode_gateway(data)).__name__, data.hex()])
        self._sent(self.device.receive(data))

    def _sent(self, frames: Sequence[bytes]) -> None:
        for data in frames:
            self.frames.append(["device", type(m.decode_device(data, 1 << 16)).__name__, data.hex()])
            self.session.receive(data)

    # ---- of the run

    def updates(self, fresh: bool, first: int, last: int) -> None:
        body = m.UpdatesBody(fresh, tuple(self.run.updates[first:last]), self.run.pairs(range(first, last)), last)
        self.hub.update(0, [m.encode(body)])
        self.talk()

    def checkpoint(self) -> None:
        content = self.run.replica.state.to_bytes()
        hashed = sha256(content).digest()
        body = m.CheckpointBody(self.run.round, hashed, len(content), self.run.replica.digest())
        self.hub.offer(0, m.encode(body), hashed, content)
        self.talk()

    def order(self, updates: Sequence[bytes] = (), tail: bytes = b"", attempt: int = 0) -> None:
        round = self.run.round
        pairs = self.run.pairs([*range(round - len(updates), round), round])
        body = m.encode(m.OrderBody(encode_work(round, 0, list(updates)), pairs + tail))
        self.hub.begin(round)
        self.hub.deliver({0: Asked(round, 0, attempt, body, LIMIT)})
        self.talk()

    def forged(self) -> None:
        body = m.encode(m.OrderBody(encode_work(self.run.round, 0, []), b""))
        self._heard(m.encode(m.Order(self.run.round, 0, 0, body, bytes(64))))

    def finish(self) -> None:
        self.hub.finish(self.run.round, "")
        self.talk()


def rounds(script: Script) -> None:
    """Enrolment, a checkpoint, four rounds, the end."""
    script.connect()
    script.checkpoint()
    script.order()
    for _ in range(3):
        script.run.advance()
        script.order(script.run.updates[-1:])
    script.run.advance()
    script.finish()
    script.leave()


def recovery(script: Script) -> None:
    """The model follows from the plan; two sessions, an order that comes twice, one that is forged, another one under
    the same number, updates in two frames, rounds without update."""
    script.connect()
    script.updates(True, 0, 0)
    script.order()
    script.leave()
    script.connect()
    script.order()
    script.forged()
    script.order(tail=(1 << 40).to_bytes(8, "little") + bytes(8))
    script.run.advance(3)
    script.updates(False, 0, 2)
    script.updates(False, 2, 3)
    script.order()
    script.order(attempt=1)
    script.finish()
    script.leave()


RUNS: dict[str, tuple[str, str, Callable[[Script], None]]] = {
    "forward": ("forward", "Rademacher, plain steps, forward differences", rounds),
    "rank-one": ("rank-one", "directions of rank one", rounds),
    "momentum": ("momentum", "momentum, rates that change", rounds),
    "everything": ("everything", "rank one, central, momentum, K = 3, clip, rates that change", rounds),
    "hidden-layers": ("hidden-layers", "two hidden layers; recovery, and orders that are not obeyed", recovery),
}


def made(name: str, folder: Path) -> dict[str, Any]:
    setting_name, about, play = RUNS[name]
    setting = ({name: setting for name, _, setting in SETTINGS} | IN_TRANSCRIPTS)[setting_name]
    run = Run(setting, folder)
    with counted(), patch.object(GatewayKeys, "made", lambda: KEYS), closing(Registry(folder)) as registry:
        hub = Hub(registry, encode(run.plan), 3, BEAT, 10)
        ticket = address(URL, registry.run, registry.ticket(1), hub.signer.fingerprint)
        script = Script(run, hub, ticket, folder)
        play(script)
    x, y = setting.data
    return {
        "about": f"{about}. {' '.join((play.__doc__ or '').split())}",
        "exact": setting.exact,
        "device": DEVICE.hex(),
        "gateway": {"ed25519": KEYS.ed25519.hex(), "p256": KEYS.p256.hex()},
        "ticket": ticket,
        "x": [[float(value) for value in row] for row in x],
        "y": [int(label) for label in y],
        "frames": script.frames,
    }


def text_of(transcript: dict[str, Any]) -> str:
    """JSON with a frame, or a row, in a line."""
    lines = []
    for name, value in transcript.items():
        if isinstance(value, list) and isinstance(value[0], list):
            inner = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in value)
            lines.append(f' "{name}": [\n{inner}\n ]')
        else:
            lines.append(f' "{name}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def golden(texts: dict[str, str]) -> str:
    return "".join(f"{sha256(text.encode()).hexdigest()}  {name}.json\n" for name, text in sorted(texts.items()))


def written() -> dict[str, str]:
    texts = {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            texts[name] = text_of(made(name, Path(folder)))
    return texts


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    found = written()
    for name, text in found.items():
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
    (FOLDER / GOLDEN).write_text(golden(found), encoding="utf-8")
