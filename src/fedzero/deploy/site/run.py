"""A run at a site: a host (`engines.host`) with its own conditions.

Everything that must outlast the process is kept in the site's own folder: memories and answers, before a reply leaves,
and the replica now and then. A site that has lost its folder rebuilds its replica from base model and ledger.

`admission` checks whether an order follows from the recipe, `journal` whether it was obeyed before, and `terms` whether
the site serves it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from fedzero.deploy.site import admission, kept, reasons
from fedzero.deploy.site import tasks as site_tasks
from fedzero.deploy.site.admission import Agreement
from fedzero.deploy.site.allowance import Allowance, Clock
from fedzero.deploy.site.journal import EVALUATION, Drawn, Journal
from fedzero.deploy.site.notes import NotesOnDisk
from fedzero.deploy.site.reasons import Reason
from fedzero.deploy.site.settings import Settings as Settings
from fedzero.deploy.site.traced import TracedReplica
from fedzero.engines.gathering import hosting, without_numbers
from fedzero.engines.host import Host
from fedzero.engines.remote import messages
from fedzero.errors import FedzeroError, Refused, Sendable
from fedzero.ledger.answers import Answered, Place, question_of
from fedzero.ledger.query_log import LedgerLog
from fedzero.ledger.store import Claimed, Ledger
from fedzero.methods.contract import Numbers
from fedzero.model import files
from fedzero.model.decoding import MALFORMED
from fedzero.model.params import Params
from fedzero.oracles.blackbox import QueryFailed, Unmeasured
from fedzero.protocol.messages import Continue, Snapshot, Work, decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.sampling import batches_of
from fedzero.recipe.secret import keys_of, secret_of
from fedzero.recipe.setup import Setup, prepare

T = TypeVar("T")
SAVE_EVERY = 60.0
"""Seconds between two copies of the replica on disk."""
CLAIMED = 60.0
"""Seconds to wait for a process that still writes the log of queries."""
QUERIES = "queries.db"
"""The file of a run at this site with the log of queries, if its functions have one."""
PRIVATE = "facts.json"
"""The file of a run at this site with facts about its data that stay here."""


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


class SiteRun:
    """A run at this site. Recipe and terms are checked before any of the site's data is touched."""

    def __init__(
        self,
        order: messages.Prepare,
        settings: Settings,
        keep: Path,
        log: Callable[[BaseException], None],
        clock: Clock,
    ):
        recipe, secret = recipes.received(order.recipe, order.needs), settings.secret_bytes()
        self.terms = settings.terms
        self.terms.check(recipe, secret is not None)
        _check_clients(order.clients, recipe.federation.clients)
        self.recipe, self.settings, self.log = _localized(recipe, settings), settings, log
        self._recipe_hash = recipes.hash_of(recipe)
        self._keys = keys_of(recipe, secret_of(secret), order.secret, order.recipe)
        self._allowance = Allowance(self.terms.queries_per_day, keep, clock)
        self.setup = self._fresh()
        self.terms.check_turn(self.setup.plan.algorithm, self.setup.plan.cost(0))
        admission.check_answers(self.setup.plan)
        self.setup.problem.ready()
        self.base = self.setup.problem.params.identity
        self.folder = keep / hashlib.sha256(order.run.encode() + order.recipe + self.base.digest).hexdigest()[:24]
        keep.mkdir(0o700, parents=True, exist_ok=True)  # memories of clients are private
        with ExitStack() as undo:  # a run that cannot begin leaves nothing open
            self._held = kept.Held(self.folder)
            undo.callback(self._held.release)
            self._journal = Journal(keep, self.folder.name)
            undo.callback(self._journal.close)
            self._journal.forget(self._tidied(keep))
            self._continue(order)
            undo.pop_all()

    def _continue(self, order: messages.Prepare) -> None:
        """Continue this run from the data that the site has kept."""
        _keep_private(self.folder / PRIVATE, self.setup.problem.private_facts)
        self._saved = time.monotonic()
        self.replica = self._traced(self.setup)
        self.agreement, self._private = self._agreed(order.clients), self.setup.chain.private
        self._drawn = batches_of(self.recipe, self._journal)
        self._queries = self._log_of_queries()
        self._notes = NotesOnDisk(self.folder)
        self._answering = 0
        """bytes of the current exchange's answers, which are not in the journal yet"""
        self._admitted = set[int]()
        """clients with as many rows as the terms require"""
        self._brought: dict[int, bytes] = {}
        """by client of an exchange, the digest of the model after its instruction"""
        engine, place = self.settings.engine_for(self.recipe.engine), replace(self._environment(), folder=self.folder)
        kept = self._notes, self._given, self._query_log, self._drawn, hosting(self.setup.chain, self._journal)
        self.host = Host(self.setup, self.replica, self._base_again, engine, place, *kept)
        try:
            if self.host.recallable:
                self._recall()
        except BaseException:
            self.host.close()
            raise

    def _tidied(self, keep: Path) -> list[str]:
        return kept.tidy(keep, self.terms.runs_kept, self.terms.bytes_kept, self._journal.sizes())

    def _environment(self) -> Environment:
        return site_tasks.named_for(self.recipe, self.settings.environment())

    def _fresh(self) -> Setup:
        return prepare(self.recipe, self._environment(), keys=self._keys)

    @staticmethod
    def _traced(setup: Setup) -> TracedReplica:
        return TracedReplica(setup.algorithm, setup.problem.params, setup.keys, setup.recipe.federation.clients)

    def _agreed(self, clients: Iterable[int]) -> Agreement:
        remembers = self.replica.traits.remembers or self.setup.chain.feedback
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.replica.state.tensors())
        return Agreement(self.recipe, self.setup.plan, frozenset(clients), remembers, size)

    def _base_again(self) -> Params:
        return self._fresh().problem.params

    def _given(self, round: int, exchange: int, clients: Iterable[int]) -> dict[int, bytes]:
        """The earlier answers of some clients in an exchange of a round."""
        found = {number: self._journal.find(Place(round, number, exchange)) for number in clients}
        return {number: before.answer for number, before in found.items() if before is not None}

    def _expect_rows(self, number: int) -> None:
        if number not in self._admitted:
            rows = getattr(self.setup.problem.shards, "rows", None)
            self.terms.check_rows(number, None if rows is None else rows(number))
            self._admitted.add(number)

    def prepared(self) -> messages.Prepared:
        problem, secret = self.setup.problem, self.setup.keys.secret
        facts, (base, sha256) = dict(problem.facts), (self.base.digest, self.base.sha256)
        return messages.Prepared(base, problem.params.size, facts, secret, self.replica.round, sha256)

    # ---- work

    def exchange(self, order: messages.Exchange) -> messages.Replies:
        """One client after the other, as the local engine without merging does; all at once on another engine."""
        admission.check_exchange(self.agreement, order)
        failed: dict[int, str] = {}
        asked = self._each(order.instructions, lambda number: self._asked(order, number), failed)
        failed |= self._allowance.spend({number: self._cost(each) for number, each in asked.items()})
        drawn: list[Drawn] = []
        self._answering = 0
        answered: dict[int, Answered] = {}
        paid = [number for number in asked if number not in failed]
        for group in [paid] if self.host.engine is not None else [[number] for number in paid]:
            answered |= self._answered({number: asked[number] for number in group}, drawn, failed)
        new = [(asked[number].place, each) for number, each in answered.items()]
        conflicts = self._journal.record(new, drawn, once=self._private)
        failed |= {place.client: why for place, why in conflicts.items()}
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()
        sent = {n: each.answer for n, each in answered.items() if n not in failed}
        if self.setup.chain.gathering is not None:
            sent = {number: without_numbers(answer) for number, answer in sent.items()}
        return messages.Replies(sent, failed)

    def phase(self, order: messages.Phase) -> messages.Phased:
        """Play a phase of a gathering with the answers that clients here gave in this exchange."""
        admission.check_phase(self.agreement, order)
        answers = self._journal.of_exchange(order.round, order.exchange)
        self.terms.check_room(self._journal.size + self._notes.size)
        mine = {number: answer for number, answer in answers.items() if number in self.agreement.clients}
        return messages.Phased(self.host.phase(order, mine))

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
        self._journal.before(place, instruction)
        self._expect_rows(number)
        question, before = question_of(instruction), self._journal.find(place)
        over = self._journal.over(number)
        if before is None and (over > place.round or (not place.exchange and over == place.round)):
            raise Refused(f"is asked about round {place.round}, and answered round {over} before")
        if isinstance(message, Continue):
            if before is None:
                self._expect_going_on(place)
            return Asked(place, message, instruction, question, before, False)
        if self.host.remembers and not self.host.remembered(number).has(message.counted):
            raise Refused(f"has lost what it remembered of round {message.counted}: restore its folder")
        last = len(self.agreement.cost(place.round).replies) - 1
        again = bool(last) and self._journal.find(Place(place.round, number, last)) is None
        again = again and not self.host.waits(number, place.round, 1)
        asked = Asked(place, message, instruction, question, before, again)
        if before is None or again:
            self.terms.check_turn(self.recipe.algorithm, self.agreement.cost(place.round))
            self._expect_paid(number, order.round)
        return asked

    def _expect_going_on(self, place: Place) -> None:
        """Refuse an exchange for which a client does not wait, or at a different model from the round's first."""
        first = self._journal.find(Place(place.round, place.client))
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
            if not same and (self._private or not before.same_model(self.replica.history)):
                raise Refused(f"was asked about round {place.round} before, at another model")
            if not asked.again:  # the replica was damaged then or is damaged now
                self._pay(place.client, self._cost(replace(asked, again=True)))
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
        self.terms.check_room(self._journal.size + self._answering + self._notes.size)

    def _expect_few(self, asked: Asked, model: bytes, drawn: list[Drawn]) -> None:
        """Refuse more directions at one model than the terms allow, and note the directions of this turn. Two turns
        have the same directions only if recipe, seed, round and history are the same: another recipe may have other
        directions from the same seed, other rows in its batches, or points that come with the state."""
        round, number = asked.place.round, asked.place.client
        count = self.terms.projections_of(self.recipe.algorithm, self.agreement.cost(round))
        history = self.replica.history or os.urandom(16)  # unknown history: the turn is like no other
        said = (self._recipe_hash.encode(), self._keys.direction_root, round.to_bytes(8, "little"), history)
        name = hashlib.sha256(b"".join(said)).digest()[:16]
        self.terms.check_projections(self._journal.directions(model, number, name), count)
        drawn.append(Drawn(model, number, name, count, self.terms.projections))

    def deliver(self, order: messages.Deliver) -> messages.Done:
        closings = admission.closings_of(self.agreement, order)
        for number, close in closings.items():
            if self._journal.over(number) != close.round:
                raise Refused(f"was sent the outcome of round {close.round}, which client {number} did not answer last")
        self.host.deliver(closings)
        return messages.Done()

    def recover(self, order: messages.Recover) -> messages.Done:
        self.host.recover(order.fresh, admission.check_recover(self.agreement, order))
        return messages.Done()

    def measure(self, order: messages.Measure) -> messages.Measured:
        """Evaluate the model, once after each round for which the recipe plans it. At a different model that claims to
        be the one after the same round, only the digest is answered."""
        params = self.host.measure(admission.check_measure(self.agreement, order, self.replica.round))
        place, problem = Place(order.after, EVALUATION), self.setup.problem
        model, before = params.digest(), self._journal.find(place)
        own = problem.private_facts is not None or problem.metered is not None
        if before is not None:
            found = messages.decode_answer(before.answer)
            if isinstance(found, messages.Measured) and found.model == model:
                return found
            if not before.same_model(self.replica.history):
                return messages.Measured(model, None, own, params.sha256())
        self._pay(EVALUATION, 1)
        metrics = None
        with suppress(Unmeasured):
            metrics = self.host.evaluate()
        measured = messages.Measured(model, metrics, own, params.sha256())
        question = question_of(f"evaluation {order.after}".encode())
        conflicts = self._journal.record([(place, Answered(question, self.replica.history, messages.encode(measured)))])
        return messages.Measured(model, None, own, measured.sha256) if conflicts else measured

    def _pay(self, number: int, queries: int) -> None:
        if unpaid := self._allowance.spend({number: queries}):
            raise Sendable(unpaid[number])

    # ---- functions whose queries are logged and may be limited

    def _log_of_queries(self) -> Ledger | None:
        """Open the log, a separate ledger in the site's folder: its budget must outlast the process."""
        metered, path = self.setup.problem.metered, self.folder / QUERIES
        self._query_log: LedgerLog | None = None
        if metered is None:
            return None
        end = time.monotonic() + CLAIMED
        while True:
            try:
                ledger = Ledger.open(path, True) if path.exists() else Ledger.create(path, self.setup.start)
                break
            except Claimed:  # a process of an earlier epoch still has it, and is about to end
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        self._query_log = LedgerLog(ledger, self.recipe.federation.clients)
        metered.attach(self._query_log)
        return ledger

    def _expect_paid(self, number: int, round: int) -> None:
        """Refuse a turn whose queries exceed the budget of its box."""
        metered, cost = self.setup.problem.metered, self.agreement.cost(round)
        if metered is not None:
            unable = metered.unable(round, {number: cost.queries + cost.first_queries})
            if number in unable:
                raise Refused(unable[number])

    # ---- data that outlast the process

    def close(self) -> None:
        self.save()
        self.host.close()
        self._journal.close()
        self._allowance.close()
        self._held.release()
        if self._queries is not None:
            self._queries.close()
            self._queries = None

    def save(self) -> None:
        """Store the replica, unless it is sent with every instruction anyway."""
        self._saved = time.monotonic()
        state = self.replica.state
        if state.round and self.replica.traits.delivery != "snapshot" and self.host.recallable:
            content = state.to_bytes()
            header = msgspec.msgpack.encode(
                (state.round, state.numbers, hashlib.sha256(content).digest(), self.replica.history)
            )
            files.write(self.folder / "replica", len(header).to_bytes(4, "little") + header + content, durable=True)

    def _recall(self) -> None:
        path = self.folder / "replica"
        if path.exists():
            content = files.read(path, files.memory())
            size = int.from_bytes(content[:4], "little")
            with suppress(*MALFORMED):
                round, numbers, digest, history = _copies.decode(content[4 : 4 + size])
                if hashlib.sha256(content[4 + size :]).digest() == digest:  # otherwise begin from base model and ledger
                    self.replica.state = self.replica.state.restored(content[4 + size :], round, numbers)
                    self.replica.history = history


def _check_clients(assigned: Sequence[int], clients: int) -> None:
    if not assigned:
        raise Sendable("no client is assigned to this site")
    if max(assigned) >= clients:
        raise Sendable(f"client {max(assigned)} is assigned to this site, but federation.clients = {clients}")


def _localized(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with this site's own device and model."""
    if recipe.engine.attack is not None:
        raise FedzeroError("engine.attack is for simulations: this site attacks nobody")
    engine = msgspec.structs.replace(recipe.engine, device=settings.device)
    return msgspec.structs.replace(recipe, engine=engine, task=recipe.task.at_site(settings.model))


def _keep_private(path: Path, now: Mapping[str, str] | None) -> None:
    """Refuse private facts that have changed since the run began. The facts themselves are told to nobody."""
    if now is not None and not path.exists():
        files.write(path, msgspec.json.encode(dict(now)), durable=True)
    then = files.decoded(path, dict[str, str]) if path.exists() else {}
    for name in sorted(then.keys() | (now or {}).keys()):
        if then.get(name) != (now or {}).get(name):
            raise Sendable(Reason.DATA) from FedzeroError(f"its {name} is not that which it began this run with")


_copies = msgspec.msgpack.Decoder(tuple[int, Numbers, bytes, bytes])
"""Round, numbers, SHA-256 of the tensors and history of a replica; 0.2.0 wrote no history, and begins from the base."""
