"""One run of a device under test: what a scenario says to the device, and what it expects from it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import Empty
from typing import TypeVar

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.plan import DevicePlan
from fedzero.engines.devices.session import Asked
from fedzero.protocol.messages import encode_work
from fedzero.testing.devices.gateway import Desk, Ended, Heard, Refusing, Seen, opened, ticket
from fedzero.testing.devices.judging import judge_answer, judge_digest
from fedzero.testing.devices.settings import Run, Setting
from fedzero.testing.devices.subject import Files, Subject, written
from fedzero.testing.devices.wrong import Wrong, shortest

F = TypeVar("F")
LOOK_EVERY = 0.05
LONGEST_PAUSE = 30.0
"""Seconds that a device waits at most before it connects again."""
SPARE = 128
"""Bytes of an answer's body beside its numbers."""


@dataclass(frozen=True)
class Bench:
    """patience: seconds that a device may take for its next frame. address: (host, port, url) of the gateway."""

    subject: Subject
    folder: Path
    patience: float = 20.0
    address: tuple[str, int, str] = ("127.0.0.1", 0, "")

    @property
    def slow(self) -> float:
        """Seconds for a frame of a client that has to be started, or waits before it comes back."""
        return self.patience + max(self.subject.joining, LONGEST_PAUSE)


class Trial:
    def __init__(self, bench: Bench, run: Run, desk: Desk, files: Files, where: str):
        self.bench, self.run, self.desk, self.files, self.where = bench, run, desk, files, where
        self.place = 0
        self.remarks: list[str] = []
        self.odd = ""
        """what is unusual about this run, to be said with whatever is wrong"""
        self.key = b""
        """of the device, and its algorithm"""
        self.algorithm = 0
        self.nonces: set[bytes] = set()
        self._ticket = ""
        self._back: list[Seen] = []
        """seen already, and to be seen again"""
        self._session = 0

    # ---- the client

    def start(self, fingerprint: bytes | None = None) -> None:
        self._ticket = ticket(self.desk, self.where, fingerprint)
        self.bench.subject.start(self._ticket, self.files)

    def restart(self) -> None:
        """Stop the client without warning, and start it with what it has kept."""
        self.bench.subject.stop()
        self._drain(0.2)
        self.bench.subject.start(self._ticket, self.files)

    def _drain(self, seconds: float) -> None:
        """Wait until the session of a client that was stopped is over."""
        end = time.monotonic() + self.bench.slow
        while self.desk.here and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(seconds)
        while not self.desk.noted.empty():
            self.desk.noted.get()

    # ---- what it says

    def see(self, seconds: float) -> Seen | None:
        """The next thing that happens; none in so many seconds. Raises `Wrong` if the client ends."""
        if self._back:
            return self._back.pop(0)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 or not self.desk.noted.empty():
            try:
                return self.desk.noted.get(timeout=max(0.001, min(LOOK_EVERY, left)))
            except Empty:
                if self.bench.subject.ended() is not None and self.desk.noted.empty():
                    return None
        return None

    def next(self, kind: type[F], section: str, why: str = "", but: Collection[type] = (), seconds: float = 0.0) -> F:
        """The next frame of the device, which has to be of this kind. but: kinds that may come before it."""
        name = kind.__name__
        why = "; ".join(filter(None, (why, self.odd)))
        while True:
            seen = self.see(seconds or self.bench.patience)
            if seen is None:
                raise Wrong(self._nothing(name, why), section)
            if isinstance(seen, Ended):
                continue
            if isinstance(seen, Refusing):
                raise Wrong(f"the gateway refuses a frame: {seen.sentence} (error {int(seen.code)})", "errors")
            self._session = seen.session
            frame = self._read(seen)
            if isinstance(frame, kind):
                return frame
            if isinstance(frame, (m.Beat, *but)):
                continue
            said = f": {frame.text}" if isinstance(frame, m.Refusal) else ""
            came = type(frame).__name__ + (f" {frame.code}{said}" if isinstance(frame, m.Refusal) else "")
            raise Wrong(f"{came} came where {name} was expected{f': {why}' if why else ''}", section)

    def _nothing(self, name: str, why: str) -> str:
        because = f" ({why})" if why else ""
        status, said = self.bench.subject.ended(), self.bench.subject.words()
        if status is not None:
            return f"no {name} came{because}: the client ended with status {status}; it said: {said or 'nothing'}"
        return f"no {name} came in {self.bench.patience:g} s{because}" + (f"; the client said: {said}" if said else "")

    def _read(self, heard: Heard) -> m.FromDevice:
        if heard.frame is None:
            raise Wrong(f"{_hex(heard.data)} is no frame: {self._why_not(heard.data)}", "frames")
        shortest(heard.data, type(heard.frame).__name__)
        return heard.frame

    def _why_not(self, data: bytes) -> str:
        try:
            m.decode_device(data, len(data))
        except Exception as error:
            return str(error)
        return "too long"

    def silent(self, seconds: float, never: Collection[type], why: str, section: str) -> list[m.FromDevice]:
        """The frames of so many seconds; none of them may be of these kinds."""
        found, end = list[m.FromDevice](), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            seen = self.see(left)
            if isinstance(seen, Heard) and seen.frame is not None:
                found.append(seen.frame)
                if isinstance(seen.frame, tuple(never)):
                    raise Wrong(f"{type(seen.frame).__name__} came: {why}", section)
            elif seen is None and self.bench.subject.ended() is not None:
                break
        return found

    # ---- sessions

    def join(self) -> m.Hello:
        """Enrolment and the first session."""
        enrol = self.next(
            m.Enrol, "a-session", "a device without a place begins with its ticket", seconds=self.bench.slow
        )
        self.key, self.algorithm = enrol.key, enrol.algorithm
        return self.begun()

    def begun(self) -> m.Hello:
        """Hello and Proof."""
        hello = self.next(m.Hello, "a-session")
        if hello.nonce in self.nonces:
            raise Wrong("two Hellos have the same nonce: it is 16 random bytes each time", "frames")
        self.nonces.add(hello.nonce)
        self.next(m.Proof, "a-session", "it is the answer to Challenge")
        end = time.monotonic() + self.bench.patience
        while hello.place not in self.desk.here and time.monotonic() < end:
            time.sleep(0.005)
            if self._refused():
                break
        self.place = hello.place
        return hello

    def _refused(self) -> bool:
        """Whether the gateway has refused the proof; `next` says so then."""
        seen = self.see(0.005)
        if seen is not None:
            self._back.append(seen)
        if isinstance(seen, Refusing):
            raise Wrong(f"the gateway refuses the Proof: {seen.sentence}", "signatures")
        return isinstance(seen, Ended)

    def again(self) -> m.Hello:
        """The device has lost its connection and comes back with its place."""
        hello = self.begun_again()
        if hello.place != self.place:
            raise Wrong(f"the device had place {self.place} and comes back with place {hello.place}", "durability")
        return hello

    def begun_again(self) -> m.Hello:
        seen = self.see(self.bench.slow)
        while isinstance(seen, Ended) or (isinstance(seen, Heard) and not isinstance(seen.frame, m.Hello | m.Enrol)):
            seen = self.see(self.bench.slow)
        if seen is None:
            raise Wrong(self._nothing("Hello", "the device has to come back"), "durability")
        if isinstance(seen, Heard) and isinstance(seen.frame, m.Enrol):
            kept = "with the same key" if seen.frame.key == self.key else "with another key"
            raise Wrong(f"it enrols again, {kept}, where it has a place: it begins with Hello", "durability")
        self._back.insert(0, seen)
        return self.begun()

    def cut(self, unsent: bool = False) -> None:
        """Break the connection."""
        self.desk.post(self.desk.cut, self.place, unsent)

    # ---- models

    def send_updates(self, fresh: bool, first: int, last: int, round: int | None = None) -> None:
        """The updates of rounds first … last − 1 in one frame."""
        some, rounds = tuple(self.run.updates[first:last]), range(first, last)
        body = m.UpdatesBody(fresh, some, self.run.pairs(rounds), last if round is None else round)
        self.desk.post(self.desk.update, self.place, [m.encode(body)])

    def offer(self, spoilt: int | None = None) -> bytes:
        """Offer the server's model; returns its bytes. spoilt: a byte that is another one in the pieces."""
        content = self.run.replica.state.to_bytes()
        hashed = sha256(content).digest()
        body = m.CheckpointBody(self.run.round, hashed, len(content), self.run.replica.digest())
        sent = bytearray(content)
        if spoilt is not None:
            sent[spoilt] ^= 1
        self.desk.post(self.desk.offer, self.place, m.encode(body), hashed, bytes(sent))
        return content

    def give_model(self) -> None:
        """Bring the device to the server's round, and expect that it says so."""
        if self.run.setting.exact:
            self.offer()
        else:
            self.send_updates(True, 0, self.run.round)
        self.ready()

    # ---- orders

    def asked(self, updates: Sequence[bytes] = (), attempt: int = 0, tail: bytes = b"") -> Asked:
        """The order of the current round. tail: of the rates, to make it another order."""
        plan, round = self.run.plan, self.run.round
        rounds = [*range(round - len(updates), round), round]
        body = m.OrderBody(encode_work(round, 0, list(updates)), self.run.pairs(rounds) + tail)
        limit = 4 * plan.method.steps * plan.method.directions + SPARE
        return Asked(round, 0, attempt, m.encode(body), limit)

    def order(self, asked: Asked) -> None:
        self.desk.post(self.desk.order, self.place, asked)

    def ready(self) -> None:
        frame = self.next(m.Ready, "updates-and-recovery", but=(m.Fetch,))
        if frame.round != self.run.round:
            what = f"Ready says round {frame.round}, and the model that was sent is ready for round {self.run.round}"
            raise Wrong(what, "updates-and-recovery")
        judge_digest(self.run, frame.digest, "Ready")

    def play(self, updates: Sequence[bytes] = ()) -> m.Answer:
        """An order and its answer, which is judged."""
        asked = self.asked(updates)
        self.order(asked)
        answer = self.answer()
        judge_answer(self, asked, answer)
        return answer

    def answer(self) -> m.Answer:
        return self.next(m.Answer, "a-turn", but=(m.Ready,))


def _hex(data: bytes) -> str:
    return data[:32].hex(" ") + (" …" if len(data) > 32 else "")


@contextmanager
def trial(bench: Bench, setting: Setting, beat: int = 20, plan: bytes | None = None) -> Iterator[Trial]:
    """A run, its gateway, and a client that was not started yet. plan: another one than that of the setting."""
    number = sum(1 for _ in bench.folder.iterdir())
    folder = bench.folder / f"run-{number}"
    folder.mkdir()
    run = Run(setting, folder)
    files = written(folder, *setting.data)
    host, port, url = bench.address
    sent: DevicePlan | bytes = run.plan if plan is None else plan
    with opened(folder, sent, beat, host, port, url) as (desk, where):
        found = Trial(bench, run, desk, files, where)
        try:
            yield found
        finally:
            desk.deviations.spoilt.clear()
            bench.subject.kill()
            desk.post(desk.finish, run.round, "this part of the test is over")
