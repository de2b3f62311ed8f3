"""A host's half of a gathering, with its answers on disk; and clients of this process as hosts.

    hosting(chain, answers)           a site: one host, with all its clients
    hosted(setup, clients, folder)    clients of this process: each is a host

The host keeps the whole reply, with values and loss, and sends it without them. It answers a phase from the kept
replies, so a host that was killed gives the same answer, byte for byte, in a new process. Its random numbers follow
from a seed that is on disk before the first answer leaves. A different question for the same phase is refused, because
the two answers, about different sets of hosts, could be compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs

from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.answers import Answers, Place, question_of
from fedzero.links import Chain, Gathering
from fedzero.links.contract import Contribution, Entropy
from fedzero.links.gathering import MOST_PHASES, AtHost, HostContext, repeatable
from fedzero.model.decoding import decoded
from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.protocol.engine import Arrival, Clients, Event
from fedzero.protocol.messages import Phase, decode_reply, encode_reply, loss_of
from fedzero.protocol.outstanding import Batch, Outstanding
from fedzero.recipe import recipe as recipes
from fedzero.recipe.setup import Setup

SEED = 32
"""Bytes."""
FIRST = -2
"""The client number under which the answers of host 0 are kept; host 1 has −3. (−1 stands for evaluations.)"""

_kept = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes])
"""The kept record of a phase: its body, the answer and, in the first phase, the seed."""


@dataclass(frozen=True)
class Own:
    """What hosts have of their own; see `HostContext`."""

    run: str = ""
    identity: bytes = b""
    pinned: str = ""


class Notes(MutableMapping[str, bytes]):
    """What a host keeps between rounds; `changed` is what was not made durable yet."""

    def __init__(self, kept: Mapping[str, bytes]):
        self._values = dict(kept)
        self.changed: dict[str, bytes | None] = {}

    def __getitem__(self, name: str) -> bytes:
        return self._values[name]

    def __setitem__(self, name: str, value: bytes) -> None:
        if self._values.get(name) != value:
            self._values[name] = self.changed[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self.changed[name] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def without_numbers(reply: bytes) -> bytes:
    """A reply as it leaves a host: values and loss stay there until a gathering asks for them."""
    return encode_reply(structs.replace(decode_reply(reply, len(reply)), values=b"", loss=b""))


def hosting(chain: Chain, answers: Answers, entropy: Entropy = os.urandom, own: Own = Own()) -> Hosting | None:  # noqa: B008 - frozen
    return None if chain.gathering is None else Hosting(chain, chain.gathering, answers, entropy, own)


@dataclass
class _Played:
    """The host's half of a gathering in progress. next: the phase that it waits for."""

    place: tuple[int, int]
    phases: AtHost
    next: int
    notes: Notes


class Hosting:
    """Hosts that answer phases. answers: the store of their clients' whole replies and of their own answers."""

    def __init__(
        self,
        chain: Chain,
        gathering: Gathering,
        answers: Answers,
        entropy: Entropy,
        own: Own = Own(),  # noqa: B008 - frozen
    ):
        self.chain, self.gathering, self._answers, self._entropy, self._own = chain, gathering, answers, entropy, own
        self._played: dict[int, _Played] = {}

    def answers(
        self, orders: Mapping[int, Phase], replies: Callable[[int], Mapping[int, bytes]], numbers: int
    ) -> dict[int, bytes | Exception]:
        """By host: the answer to a phase (all hosts are in the same phase); durable before it is returned. replies:
        the whole replies of a host's clients."""
        found: dict[int, bytes | Exception] = {}
        new: dict[int, tuple[bytes, bytes]] = {}
        for host, order in orders.items():
            try:
                found[host], seed, fresh = self._answer(host, order, replies(host), numbers)
            except FedzeroError as error:
                found[host] = error
                continue
            if fresh:
                new[host] = order.body, msgspec.msgpack.encode((order.body, found[host], seed))
        if new:
            place = _place(0, orders[next(iter(new))])
            bodies = {FIRST - host: body for host, (body, _) in new.items()}
            kept = {FIRST - host: each for host, (_, each) in new.items()}
            notes = {(FIRST - host, name): v for host in new for name, v in self._played[host].notes.changed.items()}
            try:
                self._answers.keep(place.round, place.exchange, bodies, kept, notes)
            except BaseException:  # another process answered, or the disk is full: what was played here never left
                self._played.clear()
                raise
            for host in new:
                self._played[host].notes.changed.clear()
        return found

    def finish(self, host: int = 0) -> None:
        """The run has ended: erase what a host kept for its next round."""
        notes = Notes(self._answers.notes(FIRST - host))
        self.gathering.ended(notes)
        self._answers.change_notes(FIRST - host, notes.changed)
        self._played.clear()

    def _answer(self, host: int, order: Phase, replies: Mapping[int, bytes], numbers: int) -> tuple[bytes, bytes, bool]:
        """The answer, the seed (for the first answer only), and whether the answer is new."""
        before = self._before(host, order)
        if before is not None:
            return before, b"", False
        played, seed = self._played.pop(host, None), b""
        if not order.phase:
            seed = self._entropy(SEED)
            played = self._begun(host, order, order.body, seed, replies, numbers)
        elif played is None or (played.place, played.next) != ((order.round, order.exchange), order.phase):
            played = self._again(host, order, replies, numbers)
        answer = _stepped(played.phases, order.body if order.phase else None, played)
        self._played[host] = played  # only behind an answer: what failed is played again from those before it
        return answer, seed, True

    def _before(self, host: int, order: Phase) -> bytes | None:
        """The earlier answer to this phase, if there is one; raises `Refused` for a phase that is out of order."""
        place, what = _place(host, order), f"phase {order.phase} of exchange {order.exchange} of round {order.round}"
        if order.phase >= MOST_PHASES:
            raise Refused(f"was sent {what}, where a gathering has at most {MOST_PHASES}")
        found = self._answers.find(place)
        if found is not None:
            if found.question != question_of(order.body):
                raise Refused(f"was sent {what} before, with another body")
            return _of(found.answer)[1]
        later = structs.replace(order, exchange=order.exchange + 1, phase=0)
        if self._answers.over(place.client) > order.round or self._answers.find(_place(host, later)) is not None:
            raise Refused(f"was sent {what}, which is over")
        if order.phase and self._answers.find(_place(host, structs.replace(order, phase=order.phase - 1))) is None:
            raise Refused(f"was sent {what}, and not the one before it")
        return None

    def _begun(
        self, host: int, order: Phase, opening: bytes, seed: bytes, replies: Mapping[int, bytes], numbers: int
    ) -> _Played:
        mine = {client: self._contribution(data, numbers) for client, data in sorted(replies.items())}
        if not mine and not self.gathering.idle:
            raise Refused(f"has no reply of exchange {order.exchange} of round {order.round} to give")
        notes, own, place = Notes(self._answers.notes(FIRST - host)), self._own, (order.round, order.exchange)
        context = HostContext(*place, numbers, opening, repeatable(seed), own.run, notes, own.identity, own.pinned)
        return _Played(place, self.gathering.at_host(mine, context), 0, notes)

    def _contribution(self, data: bytes, numbers: int) -> Contribution:
        reply = decode_reply(data, len(data))
        return Contribution(self.chain.decode(reply.values, numbers), loss_of(reply.loss, self.chain.hides_loss))

    def _again(self, host: int, order: Phase, replies: Mapping[int, bytes], numbers: int) -> _Played:
        """The host's half of a gathering that an earlier process began, brought to the point that it had reached."""
        kept = [self._answers.find(_place(host, structs.replace(order, phase=p))) for p in range(order.phase)]
        said = [_of(each.answer) for each in kept if each is not None]
        if len(said) < order.phase:
            raise Refused(f"has lost what it answered in round {order.round}: restore its folder")
        (opening, first, seed), *others = said
        played = self._begun(host, order, opening, seed, replies, numbers)
        bodies = [None, *(body for body, _, _ in others)]
        answers = [_stepped(played.phases, body, played) for body in bodies]
        if answers != [first, *(answer for _, answer, _ in others)]:
            raise Refused(f"cannot repeat what it answered in round {order.round}: its gathering is not repeatable")
        return played


def _stepped(phases: AtHost, body: bytes | None, played: _Played) -> bytes:
    """The answer to a phase. body: None for the first phase."""
    try:
        answer = next(phases) if body is None else phases.send(body)
    except StopIteration:
        raise Refused(f"was sent phase {played.next} of a gathering that was over before") from None
    played.next += 1
    return answer


def _place(host: int, order: Phase) -> Place:
    return Place(order.round, FIRST - host, order.exchange * MOST_PHASES + order.phase)


def _of(kept: bytes) -> tuple[bytes, bytes, bytes]:
    return decoded(_kept.decode, kept, "an answer to a phase", FedzeroError)


# ---- clients of this process


def hosted(setup: Setup, clients: Clients, folder: Path | None, oldest: int = 0) -> Clients:
    """Clients of this process; where the recipe has a gathering, each is a host. folder: holds the kept answers."""
    if setup.chain.gathering is None:
        return clients
    if folder is None:
        raise FedzeroError("a gathering keeps what was answered, and nobody said where")
    return HostedClients(clients, setup, folder, oldest=oldest)


class HostedClients:
    """The inner clients give whole replies; these are kept, and leave without their numbers."""

    def __init__(self, clients: Clients, setup: Setup, folder: Path, entropy: Entropy = os.urandom, oldest: int = 0):
        self.inner, self._setup, self._folder, self._entropy = clients, setup, folder, entropy
        self._open = Outstanding[None](oldest)
        count = setup.problem.shards.clients
        self._clients = {f"client {client}": client for client in range(count)}
        """by host"""

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self._open.add(asked, exchange, {client: messages[message] for client, message in which.items()}, None)
        self.inner.send(asked, exchange, messages, which)

    def receive(self, seconds: float) -> Sequence[Event]:
        events = self.inner.receive(seconds)
        left = dict[int, bytes | Exception]()
        for batch in self._open.batches:
            mine = [e for e in events if isinstance(e, Arrival) and e.client in batch.awaited]
            given = {e.client: e.data for e in mine if isinstance(e.data, bytes)}
            if given:
                left |= self._kept(batch, given)
            batch.left(event.client for event in mine)
        self._open.prune()
        return [self._leaving(event, left) if isinstance(event, Arrival) else event for event in events]

    def _kept(self, batch: Batch[None], given: Mapping[int, bytes]) -> Mapping[int, bytes | Exception]:
        """What leaves of replies, once these are on disk: the first reply to a question, without its numbers."""
        asked = {client: batch.awaited[client] for client in given}
        with closing(Answers(self._folder)) as answers:
            before, refused = answers.all_before(batch.asked, batch.exchange, asked)
            new = {client: data for client, data in given.items() if client not in before and client not in refused}
            answers.keep(batch.asked, batch.exchange, asked, new)
        return {c: without_numbers(data) for c, data in {**given, **before}.items()} | refused

    def _leaving(self, arrival: Arrival, left: Mapping[int, bytes | Exception]) -> Arrival:
        self._clients[arrival.host] = arrival.client
        return structs.replace(arrival, data=left.get(arrival.client, arrival.data))

    def hosts(self) -> Collection[str]:
        return list(self._clients)

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        numbers = self._setup.plan.cost(asked).replies[exchange]
        clients = {host: self._clients[host] for host in bodies}
        orders = {clients[host]: Phase(asked, exchange, phase, body) for host, body in bodies.items()}
        with closing(Answers(self._folder)) as answers:

            def replies(client: int) -> Mapping[int, bytes]:
                found = answers.find(Place(asked, client, exchange))
                return {} if found is None else {client: found.answer}

            own = Own(run=recipes.hash_of(self._setup.recipe))
            host = hosting(self._setup.chain, answers, self._entropy, own)
            assert host is not None, "only with a gathering are there hosts"
            found = host.answers(orders, replies, numbers)
        return {host: found[client] for host, client in clients.items()}

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        self.inner.settle(round, update, closings, diverged)

    def identity(self, after: int) -> Identity:
        return self.inner.identity(after)

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.inner.evaluate(after, last)
