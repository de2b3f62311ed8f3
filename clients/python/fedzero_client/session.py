"""A device's half of fedzero-device/1, without input or output: frames of the gateway in, frames for it out.

session.begin()         the first frames of a connection
session.receive(frame)  what to send because of a frame
session.finished        the run has ended; session.pause: not before so many seconds
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from fedzero_client import __version__, plan, signing
from fedzero_client.budget import FILE, Journal, Limit, epsilon_of
from fedzero_client.errors import Broken, ClientError
from fedzero_client.graph import Graph
from fedzero_client.model import Model
from fedzero_client.packing import pack, unpack
from fedzero_client.privacy import CENTRAL, Entropy, Privacy
from fedzero_client.statements import answer, numbers, statement
from fedzero_client.store import KEPT, Store
from fedzero_client.turn import Oracle, Rows, Worker

VERSION, ED25519 = 1, 1
ENROL, HELLO, PROOF, ANSWER, REFUSAL, READY, FETCH, BEAT, LEAVE = range(1, 10)
ENROLLED, CHALLENGE, WELCOME, ORDER, UPDATES, CHECKPOINT, PIECE, WAIT, ERROR, FINISH = range(16, 26)
ANOTHER_ORDER, UNTRUE, FAILED, SPENT = 1, 2, 5, 6
"""Codes of a refusal."""
TICKET, FULL, PLACE, REVOKED, WRONG, RUN, VERSIONS, BLOCKED = 3, 4, 5, 6, 7, 14, 2, 16
HOPELESS = {VERSIONS, TICKET, FULL, PLACE, REVOKED, WRONG, RUN, BLOCKED}
"""Errors after which another attempt ends in the same way."""
STALE, RATE = 9, 12
LASTING = {STALE, 10, RATE}
"""Errors after which the session goes on."""
PAUSES = {17: 900.0, 18: 60.0, 19: 30.0}
"""Seconds after these errors, before another attempt makes sense."""
BUILD = f"fedzero-client/{__version__}"
FOR_EVER = 1 << 62
WRITE_EVERY = 10
"""Rounds between two models on disk."""


@dataclass(frozen=True)
class Ticket:
    url: str
    run: bytes
    secret: bytes
    fingerprint: bytes

    @staticmethod
    def of(address: str) -> Ticket:
        split = urlsplit(address)
        try:
            data = base64.urlsafe_b64decode(split.fragment + "=" * (-len(split.fragment) % 4))
        except ValueError:
            data = b""
        if split.scheme not in ("http", "https") or not split.hostname or len(data) != 49 or data[0] != 1:
            raise ClientError("this address is no ticket: it looks like https://HOST/join#… and has all behind the #")
        return Ticket(f"{split.scheme}://{split.netloc}", data[1:17], data[17:33], data[33:])


class Session:
    """tell: is told what people should know. limit: what the owner allows; journal: of the turns with privacy, None: in
    the folder of the store. entropy: random bytes that nobody else knows. oracle: makes a function of the plan, which
    is evaluated in the place of the perceptron or graph that the plan names. A session outlasts connections."""

    def __init__(
        self,
        ticket: Ticket,
        store: Store,
        rows: Rows,
        tell: Callable[[str], None] = lambda text: None,
        limit: Limit = Limit(),  # noqa: B008 - frozen
        journal: Journal | None = None,
        entropy: Entropy = os.urandom,
        oracle: Callable[[plan.Plan], Oracle] | None = None,
    ):
        self.ticket, self.store, self.rows, self.tell = ticket, store, rows, tell
        self.limit, self._journal, self._entropy, self._oracle = limit, journal, entropy, oracle
        self.seed, self.public = store.seed, signing.public_of(store.seed)
        self.place: int | None = None
        self.gateway = b""
        self.finished, self.pause = False, 0.0
        self.answered = 0
        self.plan: plan.Plan | None = None
        self.model: Model | None = None
        self._usable = False
        """whether the model is one of the run"""
        self._worker: Worker | None = None
        self._nonce = b""
        self._fetched: tuple[int, bytes, int, bytes, bytearray] | None = None
        """of a checkpoint: round, SHA-256, size, digest, the bytes so far"""
        self._written = -WRITE_EVERY
        self.hold = 0.0
        """seconds to wait before the next frames are sent"""
        self._restore()

    def _restore(self) -> None:
        run, place, gateway = (self.store.get(name) for name in ("run", "place", "gateway"))
        if run is not None and run != self.ticket.run:
            raise ClientError("this folder belongs to another run: give another --folder")
        if place is None or gateway is None:
            return
        self.place, self.gateway = int.from_bytes(place, "little"), gateway
        if (data := self.store.get("plan")) is not None:
            self._follow(data)
            assert self.model is not None
            if (found := self.store.model()) is not None and len(found[2]) == self.model.length:
                self.model.load(found[2], found[0])
                self._usable = self.model.digest() == found[1]
                self._written = found[0]

    def _follow(self, data: bytes) -> None:
        assert self.place is not None
        found, before = plan.read(data), self.plan
        self.limit.expect(found.privacy)
        if found.privacy is None and before is not None and before.privacy is not None:
            raise ClientError("the run had privacy and has none any more: nothing was sent")
        if found.privacy is not None:
            self._begin_private(found, found.privacy)
        self.plan = found
        self.model, self._worker, self._usable = Model(found), None, False
        if self._oracle is not None:
            self._worker = Worker(found, self.rows, self.place, self._entropy, self._oracle(found))
        elif found.task.graph is None:
            self._worker = Worker(found, self.rows, self.place, self._entropy)
        elif (content := self.store.graph(*found.task.graph)) is not None:
            self._worker = Worker(found, self.rows, self.place, self._entropy, Graph(content, found))

    @property
    def _lacks_graph(self) -> bool:
        return self.plan is not None and self._worker is None

    def _fetch_graph(self) -> list[bytes]:
        assert self.plan is not None and self.plan.task.graph is not None
        return [pack([FETCH, self.plan.task.graph[0], self.store.graph_length(self.plan.task.graph[0])])]

    def _piece_of_graph(self, offset: int, data: bytes) -> list[bytes]:
        """The graph comes first; what is to be done after it waits."""
        assert self.plan is not None and self.plan.task.graph is not None
        hashed, size = self.plan.task.graph
        if offset != self.store.graph_length(hashed):
            return []
        if not data or offset + len(data) > size:
            self.store.forget_graph(hashed)
            raise ClientError(f"the gateway's graph does not have the {size:,} bytes of the plan")
        self.store.add_to_graph(hashed, data)
        if offset + len(data) < size:
            return self._fetch_graph()
        content = self.store.graph(hashed, size)
        if content is None:
            raise ClientError("the graph is not the one that the plan names")
        assert self.place is not None
        self._worker = Worker(self.plan, self.rows, self.place, self._entropy, Graph(content, self.plan))
        self.tell(f"the graph is here: {size:,} bytes")
        if self._fetched is not None:
            return [pack([FETCH, self._fetched[1], len(self._fetched[4])])]
        return self._now_ready() if self._usable else []

    def _begin_private(self, found: plan.Plan, privacy: Privacy) -> None:
        """Refuse a run with privacy that this device cannot keep; tell what it promises."""
        try:
            self._entropy(1)
        except (OSError, NotImplementedError):
            raise ClientError("this device has no source of random numbers, so it has no privacy") from None
        if self._journal is None:
            self._journal = Journal(self.store.folder / FILE, self.limit)
        if why := self._journal.full(privacy):
            raise ClientError(f"no turn of this run is left: {why}")
        every = epsilon_of(found.rounds / privacy.sigma**2, privacy.delta, privacy.noise == CENTRAL)
        server = "the server adds the noise, and no figure holds against it"
        server = (
            server if privacy.noise == CENTRAL else "this device adds the noise, so the same figure holds against it"
        )
        self.tell(
            f"privacy: a turn in each of {found.rounds} rounds is ε = {every:.4g} (δ = {privacy.delta:g}) against "
            f"readers of the model; {server}; spent so far: ε = {self._journal.spent(privacy):.4g}"
        )

    # ---- signatures

    def _signed(self, message: bytes) -> bytes:
        return signing.sign(self.seed, message)

    def _statement(self, kind: str, payload: bytes, place: int | None = None) -> bytes:
        return statement(kind, self.ticket.run, (self.place or 0) if place is None else place, payload)

    def _true(self, kind: str, payload: bytes, signature: bytes) -> bool:
        return signing.verify(self.gateway, self._statement(kind, payload), signature)

    def _expect_true(self, kind: str, payload: bytes, signature: bytes) -> None:
        if not self._true(kind, payload, signature):
            raise Broken(f"the signature of {kind} is not of the gateway that the ticket names")

    # ---- frames

    def begin(self) -> list[bytes]:
        """The first frames of a connection. A checkpoint that was not fetched to its end goes on where it broke off."""
        return [self._hello() if self.place is not None else self._enrol()]

    def _enrol(self) -> bytes:
        key, payload = self.public, self.ticket.secret + self.ticket.fingerprint + bytes([ED25519])
        signature = self._signed(self._statement("enrol", payload + key, 0))
        return pack([ENROL, VERSION, self.ticket.secret, ED25519, key, signature])

    def _hello(self) -> bytes:
        self._nonce = os.urandom(16)
        data = self.store.get("plan")
        known = b"" if data is None else sha256(data).digest()
        return pack([HELLO, VERSION, self.ticket.run, self.place, self._nonce, known, self._ready, BUILD])

    @property
    def _ready(self) -> int | None:
        usable = self.model is not None and self._usable and not self._lacks_graph
        return self.model.round if self.model is not None and usable else None

    def receive(self, data: bytes) -> list[bytes]:
        frame = unpack(data)
        if not isinstance(frame, list) or not frame:
            raise Broken("a frame is no array")
        obeys: dict[Any, tuple[Callable[..., list[bytes]], int]] = {
            ENROLLED: (self._enrolled, 5),
            CHALLENGE: (self._challenged, 2),
            WELCOME: (self._welcomed, 4),
            ORDER: (self._ordered, 5),
            UPDATES: (self._updated, 2),
            CHECKPOINT: (self._offered, 2),
            PIECE: (self._piece, 2),
            WAIT: (self._wait, 2),
            ERROR: (self._error, 2),
            FINISH: (self._finish, 3),
        }
        if frame[0] not in obeys:
            raise Broken(f"a frame with the tag {frame[0]!r}")
        obey, fields = obeys[frame[0]]
        try:
            return obey(*frame[1 : 1 + fields])  # elements behind the last field are of a later version
        except (TypeError, ValueError, IndexError) as error:
            raise Broken(f"frame {frame[0]} does not have the fields that it should: {error}") from error

    def _enrolled(self, run: bytes, place: int, key: bytes, p256: bytes, signature: bytes) -> list[bytes]:
        if run != self.ticket.run or sha256(key + p256).digest()[:16] != self.ticket.fingerprint:
            raise ClientError("this is not the gateway that the ticket names")
        message = self._statement("enrolled", self.ticket.secret + self.public, place)
        if not signing.verify(key, message, signature):
            raise ClientError("the signature of the enrolment is not of the gateway that the ticket names")
        self.store.put(run=run, place=place.to_bytes(4, "little"), gateway=key)
        self.place, self.gateway = place, key
        self.tell(f"enrolled: this device has place {place}")
        return [self._hello()]

    def _challenged(self, version: int, nonce: bytes) -> list[bytes]:
        if version != VERSION:
            raise ClientError(f"the gateway speaks version {version}: get a newer client")
        ready = (1 << 64) - 1 if self._ready is None else self._ready
        payload = nonce + self._nonce + ready.to_bytes(8, "little")
        return [pack([PROOF, self._signed(self._statement("proof", payload))])]

    def _welcomed(self, data: bytes, beat: int, round: int, signature: bytes) -> list[bytes]:
        known = self.store.get("plan")
        whole = data or known or b""
        self._expect_true("welcome", self._nonce + sha256(whole).digest(), signature)
        if data and data != known:
            self._follow(data)
            self.store.put(plan=data)
        assert self.plan is not None
        self.tell(f"run {self.plan.name!r}, round {round} of {self.plan.rounds}")
        return self._fetch_graph() if self._lacks_graph else []

    def _ordered(self, round: int, exchange: int, attempt: int, body: bytes, signature: bytes) -> list[bytes]:
        numbered = numbers(round, exchange, attempt)
        if not self._true("order", numbered + body, signature):
            return [self._refusal(round, exchange, attempt, UNTRUE, "the signature of the order is wrong")]
        before = self.store.answer(round, exchange, attempt)
        if before is not None and before[0] != sha256(body).digest():
            return [self._refusal(round, exchange, attempt, ANOTHER_ORDER, "another order under the same number")]
        assert self.plan is not None and self.model is not None
        if self._worker is None:
            return [self._refusal(round, exchange, attempt, FAILED, "this device does not have the graph yet")]
        work, pairs = unpack(body)[:2]
        rates = plan.Rates(self.plan, pairs)
        tag, asked, part, updates = unpack(work)[:4]
        if (tag, asked, part) != (1, round, exchange) or exchange or not self._usable:
            return [self._refusal(round, exchange, attempt, FAILED, "this device is not ready for the order")]
        self._fold(updates, rates)
        if self.model.round > round:
            return [self._refusal(round, exchange, attempt, FAILED, f"its model is of round {self.model.round}")]
        self.model.round = round
        self._write()
        if before is None:
            if why := self._reserved((round, exchange, attempt), body):
                self.finished = True
                return [self._refusal(round, exchange, attempt, SPENT, why), pack([LEAVE])]
            try:
                reply = self._worker.reply(self.model, round, exchange, rates.at(round))
            except ClientError as reason:  # of a graph: its numbers are not a device's fault
                return [self._refusal(round, exchange, attempt, FAILED, str(reason))]
            signed = self._signed(answer(self.ticket.run, self.place or 0, numbered, body, reply))
            most = KEPT if self.plan.privacy is None else FOR_EVER  # what was drawn is never drawn again
            self.store.keep(round, exchange, attempt, body, reply, signed, most)
            self.answered += 1
            before = b"", reply, signed
        return [pack([ANSWER, round, exchange, attempt, before[1], before[2]])]

    def _reserved(self, turn: tuple[int, int, int], body: bytes) -> str:
        """Count a turn with privacy before it is computed; the reason why it is beyond the owner's limit."""
        if self.plan is None or self.plan.privacy is None:
            return ""
        assert self._journal is not None
        asked = sha256(body).digest()
        return self._journal.reserve(self.ticket.run, self.place or 0, turn, asked, self.plan.privacy)

    def _refusal(self, round: int, exchange: int, attempt: int, code: int, text: str) -> bytes:
        self.tell(f"refused the order of round {round}: {text}")
        return pack([REFUSAL, round, exchange, attempt, code, text])

    def _fold(self, updates: list[Any], rates: plan.Rates) -> None:
        assert self.model is not None
        for update in updates:
            tag, round, scalars = update[:3]
            if tag != 1:
                raise Broken(f"an update with the tag {tag}, which is not in the profile")
            self.model.apply(round, scalars, rates.at(round))

    def _updated(self, body: bytes, signature: bytes) -> list[bytes]:
        self._expect_true("updates", body, signature)
        assert self.plan is not None and self.model is not None
        fresh, updates, pairs, round = unpack(body)[:4]
        if fresh:
            self.model.begin()
            self._usable = self.model.can_begin
        if not self._usable:
            raise Broken("updates for a device without a model")
        self._fold([unpack(each) for each in updates], plan.Rates(self.plan, pairs))
        self.model.round = max(round, self.model.round)
        return self._now_ready()

    def _now_ready(self) -> list[bytes]:
        assert self.model is not None
        self._write()
        if self._lacks_graph:
            return []  # it is said once the graph is here
        return [pack([READY, self.model.round, self.model.digest()])]

    def _offered(self, body: bytes, signature: bytes) -> list[bytes]:
        self._expect_true("checkpoint", body, signature)
        assert self.model is not None
        round, hashed, size, digest = unpack(body)[:4]
        if size != self.model.length:
            raise Broken(f"a checkpoint of {size} bytes where the model has {self.model.length}")
        before = self._fetched[4] if self._fetched is not None and self._fetched[1] == hashed else bytearray()
        self._fetched = round, hashed, size, digest, before
        if self._lacks_graph:
            return []
        return [pack([FETCH, hashed, len(before)])]

    def _piece(self, offset: int, data: bytes) -> list[bytes]:
        if self._lacks_graph:
            return self._piece_of_graph(offset, data)
        if self._fetched is None or offset != len(self._fetched[4]):
            return []
        round, hashed, size, digest, found = self._fetched
        found += data
        if len(found) < size and data:
            return [pack([FETCH, hashed, len(found)])]
        self._fetched = None
        assert self.model is not None
        if sha256(found).digest() != hashed:
            raise Broken("the checkpoint is not the one that was offered")
        self.model.load(bytes(found), round)
        self._usable = self.model.digest() == digest
        self._written = -WRITE_EVERY
        return self._now_ready()

    def _write(self) -> None:
        """Write the model now and then."""
        assert self.model is not None
        if self.model.round - self._written >= WRITE_EVERY:
            self.store.write_model(self.model.round, self.model.digest(), self.model.to_bytes())
            self._written = self.model.round

    def _wait(self, seconds: int, text: str) -> list[bytes]:
        self.pause = float(seconds)
        if text:
            self.tell(text)
        return []

    def _error(self, code: int, text: str) -> list[bytes]:
        if code in HOPELESS:
            raise ClientError(f"the gateway says: {text}")
        if code not in LASTING:
            self.pause = PAUSES.get(code, 0.0)
            raise Broken(f"the gateway says: {text}")
        if code == STALE and self._lacks_graph:
            raise ClientError(f"the gateway does not have the graph of the plan: {text}")
        if code == RATE and (self._lacks_graph or self._fetched is not None):  # a Fetch was not read: again
            self.hold = 1.0
            if self._lacks_graph:
                return self._fetch_graph()
            assert self._fetched is not None
            return [pack([FETCH, self._fetched[1], len(self._fetched[4])])]
        self.tell(f"the gateway says: {text}")
        return []

    def _finish(self, rounds: int, reason: str, signature: bytes) -> list[bytes]:
        self._expect_true("finish", rounds.to_bytes(8, "little") + reason.encode(), signature)
        self.tell(f"the run has ended after {rounds} rounds{f': {reason}' if reason else ''}")
        self.finished = True
        return []
