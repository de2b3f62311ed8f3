"""The turns of clients at a site: which instruction is obeyed, what a turn costs, and what is answered.

A turn that was answered before is answered by the same bytes. It is played again if an exchange follows it, or if the
replica was damaged; then the new answer must be the earlier one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fedzero.deploy.site import admission, reasons
from fedzero.deploy.site.admission import Agreement
from fedzero.deploy.site.allowance import Allowance
from fedzero.deploy.site.asked import Asked as AskedBefore
from fedzero.deploy.site.asked import Limits
from fedzero.deploy.site.journal import Drawn, Journal
from fedzero.deploy.site.notes import NotesOnDisk
from fedzero.deploy.site.reasons import Reason
from fedzero.deploy.site.terms import Terms
from fedzero.deploy.site.traced import TracedReplica
from fedzero.engines.gathering import without_numbers
from fedzero.engines.host import Host
from fedzero.engines.remote import messages
from fedzero.errors import Refused, Sendable
from fedzero.ledger.answers import Answered, Place, question_of
from fedzero.links.chain import Chain
from fedzero.oracles.blackbox import QueryFailed
from fedzero.protocol.messages import Continue, Snapshot, Work, decode_reply
from fedzero.recipe.sampling import HiddenTurns
from fedzero.recipe.setup import Setup
from fedzero.runs.spending.data_sets import part_of

T = TypeVar("T")
QUERIES = "queries.db"
"""The file of a run at this site with the log of queries, if its functions have one."""


@dataclass(frozen=True)
class Asked:
    """An instruction that belongs to the round, for a client of this site. question: its SHA-256; before: the earlier
    answer to the same question; again: the turn must be played again because of the exchange that follows."""

    place: Place
    message: Work | Snapshot | Continue
    instruction: bytes
    question: bytes
    before: Answered | None
    again: bool


@dataclass(eq=False)
class Turns:
    """recipe_hash: of the recipe as it was sent. data: digest of the data set. reserve: is told round and
    question before anything about them leaves. log: for errors whose text stays at the site. hidden: turns of which
    nobody may see who took part; then no failure that depends on data leaves."""

    setup: Setup
    chain: Chain
    agreement: Agreement
    terms: Terms
    host: Host
    replica: TracedReplica
    journal: Journal
    notes: NotesOnDisk
    allowance: Allowance
    recipe_hash: str
    data: bytes
    reserve: Callable[[int, bytes], None]
    log: Callable[[BaseException], None]
    hidden: HiddenTurns | None = None
    _answering: int = 0
    """bytes of the current exchange's answers, which are not in the journal yet"""
    _asked_before: AskedBefore = field(default_factory=AskedBefore)
    """directions about the data set, with those of the current exchange"""
    _admitted: set[int] = field(default_factory=set)
    """clients with as many rows as the terms require"""
    _brought: dict[int, bytes] = field(default_factory=dict)
    """by client of an exchange, the digest of the model after its instruction"""

    def exchange(self, order: messages.Exchange) -> messages.Replies:
        """One client after the other, as the local engine without merging does; all at once on another engine, or where
        their coins are thrown together."""
        failed: dict[int, str] = {}
        asked = self._each(order.instructions, lambda number: self._asked(order, number), failed)
        failed |= self.allowance.spend({number: self._cost(each) for number, each in asked.items()})
        drawn: list[Drawn] = []
        self._answering, self._asked_before = 0, self.journal.asked(self.data, self.allowance.now())
        answered: dict[int, Answered] = {}
        paid = [number for number in asked if number not in failed]
        together = self.host.engine is not None or self.hidden is not None
        for group in [paid] if together else [[number] for number in paid]:
            answered |= self._answered({number: asked[number] for number in group}, drawn, failed)
        new = [(asked[number].place, each) for number, each in answered.items()]
        conflicts = self.journal.record(new, drawn, self.chain.private, self._limits())
        failed |= {place.client: why for place, why in conflicts.items()}
        sent = {n: each.answer for n, each in answered.items() if n not in failed}
        if self.chain.gathering is not None:
            sent = {number: without_numbers(answer) for number, answer in sent.items()}
        return messages.Replies(sent, failed)

    def _limits(self) -> Limits:
        terms = self.terms
        return Limits(self.data, self.allowance.now(), terms.directions_per_run, terms.directions_per_day)

    def _each(self, numbers: Iterable[int], work: Callable[[int], T], failed: dict[int, str]) -> dict[int, T]:
        """The results of work for clients, one after the other; reasons of failures go into `failed`."""
        done: dict[int, T] = {}
        for number in numbers:
            try:
                done[number] = work(number)
            except QueryFailed:  # the message of a site's own function may be private
                failed[number] = f"{Reason.BOX}: the site has the reason in {QUERIES}"
            except Exception as error:  # only this client fails: the others continue
                self.log(error)
                failed[number] = reasons.sent(error, Reason.TURN)
        return done

    def _asked(self, order: messages.Exchange, number: int) -> Asked:
        """A client's instruction; refused unless it is new, or the same as before."""
        instruction, place = order.instructions[number], Place(order.round, number, order.exchange)
        message = admission.instruction_of(self.agreement, order, instruction)
        self.journal.before(place, instruction)
        self._expect_rows(number)
        question, before = question_of(instruction), self.journal.find(place)
        over = self.journal.over(number)
        if before is None and (over > place.round or (not place.exchange and over == place.round)):
            raise Refused(f"is asked about round {place.round}, and answered round {over} before")
        if isinstance(message, Continue):
            if before is None:
                self._expect_going_on(place)
            return Asked(place, message, instruction, question, before, False)
        if self.host.remembers and not self.host.remembered(number).has(message.counted):
            raise Refused(f"has lost what it remembered of round {message.counted}: restore its folder")
        last = len(self.agreement.cost(place.round).replies) - 1
        again = bool(last) and self.journal.find(Place(place.round, number, last)) is None
        again = again and not self.host.waits(number, place.round, 1)
        asked = Asked(place, message, instruction, question, before, again)
        if before is None or again:
            self.terms.check_turn(self.setup.algorithm, self.agreement.cost(place.round))
            self._expect_paid(number, order.round)
        return asked

    def _expect_going_on(self, place: Place) -> None:
        """Refuse an exchange for which a client does not wait, or at a different model from the round's first."""
        first = self.journal.find(Place(place.round, place.client))
        if first is None or not self.host.waits(place.client, place.round, place.exchange):
            raise Refused("received an instruction for a different exchange")
        if not first.same_model(self.replica.history):
            raise Refused(f"was brought another model in the middle of round {place.round}")

    def _cost(self, asked: Asked) -> int:
        """The queries of a turn; 0 if it was answered before. All are paid for with the first exchange."""
        if isinstance(asked.message, Continue) or (asked.before is not None and not asked.again):
            return 0
        cost = self.agreement.cost(asked.place.round)
        first = cost.first_queries and not (self.host.remembers and self.host.remembered(asked.place.client).begun)
        return cost.queries + (cost.first_queries if first else 0)

    def _answered(self, asked: Mapping[int, Asked], drawn: list[Drawn], failed: dict[int, str]) -> dict[int, Answered]:
        """By client: its earlier answer, or a new one."""
        found = self._each(asked, lambda number: self._before(asked[number], drawn), failed)
        waiting = [number for number, before in found.items() if before is None]
        self._each(waiting, self._expect_still_there, failed)
        new = {number: asked[number].instruction for number in waiting if number not in failed}
        if new:
            place = next(iter(asked.values())).place
            replies = self.host.exchange(place.round, place.exchange, new)
            found |= self._each(new, lambda number: self._after(asked[number], replies[number]), failed)
        return {number: answered for number, answered in found.items() if answered is not None and number not in failed}

    def _before(self, asked: Asked, drawn: list[Drawn]) -> Answered | None:
        """The earlier answer; None: a new answer is allowed, and the replica has been brought to its round."""
        place, before = asked.place, asked.before
        if isinstance(asked.message, Continue):
            if before is None:
                self._expect_room()
            return before
        self.host.bring(asked.message, place.client)
        self._brought[place.client] = self.replica.digest()
        model = self.replica.state.digest(place.client)
        if before is not None:
            same = decode_reply(before.answer, len(before.answer)).digest == model
            if same and not asked.again:
                return before
            if not same and (self.chain.private or not before.same_model(self.replica.history)):
                raise Refused(f"was asked about round {place.round} before, at another model")
            if not asked.again:  # the replica was damaged then or is damaged now
                self.allowance.pay(place.client, self._cost(replace(asked, again=True)))
        self._expect_few(asked, model, drawn)
        self._expect_room()
        self.host.settle(place.client, asked.message.counted)
        return None

    def _after(self, asked: Asked, reply: bytes | Exception) -> Answered:
        """A new answer; refused if it differs from the earlier answer to the same question at the same model."""
        if isinstance(reply, Exception):
            raise reply
        before, place = asked.before, asked.place
        if before is not None and reply != before.answer:
            same = decode_reply(before.answer, len(before.answer)).digest == self.replica.state.digest(place.client)
            if same:
                raise Refused(f"cannot repeat what it answered to exchange 0 of round {place.round}")
        self._answering += len(reply)
        return Answered(asked.question, self.replica.history, reply)

    def _expect_still_there(self, number: int) -> None:
        """Refuse a client whose model is not the one at which its group works."""
        if self._brought.pop(number, before := self.replica.digest()) != before:
            raise Refused("was brought another model than others of this exchange")

    def _expect_room(self) -> None:
        self.terms.check_room(self.journal.size + self._answering + self.notes.size)

    def _expect_few(self, asked: Asked, model: bytes, drawn: list[Drawn]) -> None:
        """Refuse more directions at one model, or about one data set, than the terms allow, and note those of this
        turn. Two turns have the same directions only if recipe, seed, round and history are the same: another recipe
        may have other directions from the same seed, other rows in its batches, or points that come with the state."""
        round, number = asked.place.round, asked.place.client
        method, cost = self.setup.algorithm, self.agreement.cost(round)
        count, more = self.terms.projections_of(method, cost), self.terms.directions_of(method, cost)
        history = self.replica.history or os.urandom(16)  # unknown history: the turn is like no other
        said = (self.recipe_hash.encode(), self.setup.keys.direction_root, round.to_bytes(8, "little"), history)
        name = hashlib.sha256(b"".join(said)).digest()[:16]
        self.terms.check_projections(self.journal.directions(model, number, name), count)
        part = part_of(self.setup.problem.shards, number)
        if asked.before is None:
            self.terms.check_directions(self._asked_before, part, more)
            self._asked_before = self._asked_before.with_more(part, more)
        self.reserve(round, name)
        drawn.append(Drawn(model, number, name, count, self.terms.projections, part, more))

    def _expect_rows(self, number: int) -> None:
        if number in self._admitted or (self.hidden is not None and self.chain.rows is not None):
            return  # each row is bounded by itself; with a least number, one row less would take all others with it
        rows = getattr(self.setup.problem.shards, "rows", None)
        try:
            self.terms.check_rows(number, None if rows is None else rows(number))
        except Sendable as why:  # it tells how many rows there are, to a server that chooses how they are dealt out
            if self.hidden is None:
                raise
            self.log(why)
            self.hidden.barred.add(number)
        self._admitted.add(number)

    def _expect_paid(self, number: int, round: int) -> None:
        """Refuse a turn whose queries exceed the budget of its box."""
        metered, cost = self.setup.problem.metered, self.agreement.cost(round)
        if metered is not None:
            unable = metered.unable(round, {number: cost.queries + cost.first_queries})
            if number in unable:
                raise Refused(unable[number])
