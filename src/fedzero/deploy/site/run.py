"""A run at a site: a host (`engines.host`) with its own conditions.

Everything that must outlast the process is kept in the site's own folder: memories and answers, before a reply leaves,
and the replica now and then. A site that has lost its folder rebuilds its replica from base model and ledger.

`admission` checks whether an order follows from the recipe, `journal` whether it was obeyed before, and `terms` whether
the site serves it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from fedzero.deploy.site import admission, kept
from fedzero.deploy.site import tasks as site_tasks
from fedzero.deploy.site.admission import Agreement
from fedzero.deploy.site.allowance import Allowance, Clock
from fedzero.deploy.site.identity import identity_of
from fedzero.deploy.site.journal import EVALUATION, Journal
from fedzero.deploy.site.notes import NotesOnDisk
from fedzero.deploy.site.promised import bind_clients, check_parts, check_promise
from fedzero.deploy.site.reasons import Reason
from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.traced import TracedReplica
from fedzero.deploy.site.turns import QUERIES, Turns
from fedzero.engines.gathering import Own, hosting
from fedzero.engines.host import Host
from fedzero.engines.remote import messages
from fedzero.engines.remote.agreement import recipe_in
from fedzero.errors import FedzeroError, Refused, Sendable
from fedzero.ledger.answers import Answered, Place, question_of
from fedzero.ledger.query_log import LedgerLog
from fedzero.ledger.store import Claimed, Ledger
from fedzero.methods.contract import Numbers
from fedzero.model import files
from fedzero.model.decoding import MALFORMED
from fedzero.model.params import Params
from fedzero.oracles.blackbox import Unmeasured
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.sampling import batches_of, hidden_of
from fedzero.recipe.secret import keys_of, secret_of
from fedzero.recipe.setup import Setup, prepare, too_many_units
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.charges import charge_of
from fedzero.runs.spending.data_sets import data_set

SAVE_EVERY = 60.0
"""Seconds between two copies of the replica on disk."""
CLAIMED = 60.0
"""Seconds to wait for a process that still writes the log of queries."""
PRIVATE = "facts.json"
"""The file of a run at this site with facts about its data that stay here."""


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
        recipe, secret = recipe_in(order), settings.secret_bytes()
        self.terms = settings.terms
        self.terms.check(recipe, secret is not None)
        settings.privacy.check_recipe(recipe)
        check_promise(recipe)
        _check_clients(order.clients, recipe.federation.clients)
        if recipe.privacy and settings.engine:
            raise Sendable("its clients work elsewhere, and with [privacy] they work in the site's own process")
        self.recipe, self.settings, self.log = _localized(recipe, settings), settings, log
        self._recipe_hash = recipes.hash_of(recipe)
        self._keys = keys_of(recipe, secret_of(secret), order.secret, order.recipe)
        self._allowance = Allowance(self.terms.queries_per_day, keep, clock)
        self.setup = self._fresh()
        self.terms.check_turn(self.setup.plan.algorithm, self.setup.plan.cost(0))
        admission.check_answers(self.setup.plan)
        if recipe.privacy:
            check_parts(self.setup.problem.shards, order.clients)
            if why := too_many_units(self.setup):
                log(FedzeroError(why))
        self.setup.problem.ready()
        self.base = self.setup.problem.params.identity
        self.data = data_set(self.setup.problem.shards)
        self.folder = keep / hashlib.sha256(order.run.encode() + order.recipe + self.base.digest).hexdigest()[:24]
        keep.mkdir(0o700, parents=True, exist_ok=True)  # memories of clients are private
        with ExitStack() as undo:  # a run that cannot begin leaves nothing open
            self._held = kept.Held(self.folder)
            undo.callback(self._held.release)
            self._journal = Journal(keep, self.folder.name)
            undo.callback(self._journal.close)
            self._journal.forget(self._tidied(keep))
            self.budget = self._opened_budget(keep)
            if self.budget is not None:
                undo.callback(self.budget.close)
                bind_clients(self._journal, self.budget, order.clients)
            self._continue(order)
            undo.pop_all()

    def _continue(self, order: messages.Prepare) -> None:
        """Continue this run from the data that the site has kept."""
        _keep_private(self.folder / PRIVATE, self.setup.problem.private_facts)
        self._saved = time.monotonic()
        self.replica = self._traced(self.setup)
        self.agreement = self._agreed(order.clients)
        self._drawn = batches_of(self.recipe, self._journal)
        self._hidden = hidden_of(self.recipe, self._journal, self.log)
        self._queries = self._log_of_queries()
        self._notes = NotesOnDisk(self.folder)
        engine, place = self.settings.engine_for(self.recipe.engine), replace(self._environment(), folder=self.folder)
        self._hosting = hosting(self.setup.chain, self._journal, own=self._own())
        kept = self._notes, self._given, self._query_log, self._drawn, self._hosting, self._hidden
        told = frozenset(order.clients), lambda text: self.log(FedzeroError(text))
        self.host = Host(self.setup, self.replica, self._base_again, engine, place, *kept, *told)
        own = (
            self.terms,
            self.host,
            self.replica,
            self._journal,
            self._notes,
            self._allowance,
            self._recipe_hash,
            self.data,
            self._reserve,
        )
        self.turns = Turns(self.setup, self.setup.chain, self.agreement, *own, log=self.log, hidden=self._hidden)
        try:
            if self.host.recallable:
                self._recall()
        except BaseException:
            self.host.close()
            raise

    def _own(self) -> Own:
        """What this site has of its own in a gathering."""
        if self.setup.chain.gathering is None or not self.setup.chain.gathering.idle:
            return Own()
        return Own(self.folder.name, identity_of(self.folder.parent), self.settings.roster)

    def _tidied(self, keep: Path) -> list[str]:
        return kept.tidy(keep, self.terms.runs_kept, self.terms.bytes_kept, self._journal.sizes())

    def _opened_budget(self, keep: Path) -> Budget | None:
        """The journal of a run with [privacy]; refused, if its rounds do not fit."""
        privacy, plan = self.recipe.privacy, self.setup.plan
        if not privacy:
            return None
        mechanism = privacy.mechanism(self.recipe.federation, plan.numbers)
        self._charge = charge_of(self.recipe, self._recipe_hash, mechanism)
        budget = Budget(keep, self.settings.privacy, self.data, self.folder.name)
        try:
            budget.expect_room(self._charge, self.recipe.rounds, self._journal.rounds())
        except BaseException:
            budget.close()
            raise
        return budget

    def _reserve(self, round: int, question: bytes) -> None:
        if self.budget is not None:
            self.budget.reserve(self._charge, round, question)

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

    def prepared(self) -> messages.Prepared:
        size, secret = self.setup.problem.params.size, self.setup.keys.secret
        facts, (base, sha256) = self.setup.facts, (self.base.digest, self.base.sha256)
        return messages.Prepared(base, size, facts, secret, self.replica.round, sha256)

    # ---- work

    def exchange(self, order: messages.Exchange) -> messages.Replies:
        admission.check_exchange(self.agreement, order)
        began = time.monotonic()
        replies = self.turns.exchange(order)
        if self.budget is not None:  # how long the clients that took part needed
            time.sleep(max(0.0, began + self.settings.privacy.seconds - time.monotonic()))
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()
        return replies

    def phase(self, order: messages.Phase) -> messages.Phased:
        """Play a phase of a gathering with the answers that clients here gave in this exchange."""
        admission.check_phase(self.agreement, order)
        answers = self._journal.of_exchange(order.round, order.exchange)
        self.terms.check_room(self._journal.size + self._notes.size)
        mine = {number: answer for number, answer in answers.items() if number in self.agreement.clients}
        return messages.Phased(self.host.phase(order, mine))

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
        if own and self.budget is not None:  # one more release of this site's data, which nobody paid for
            return messages.Measured(model, None, own, params.sha256())
        self._allowance.pay(EVALUATION, 1)
        metrics = None
        with suppress(Unmeasured):
            metrics = self.host.evaluate()
        measured = messages.Measured(model, metrics, own, params.sha256())
        question = question_of(f"evaluation {order.after}".encode())
        conflicts = self._journal.record([(place, Answered(question, self.replica.history, messages.encode(measured)))])
        return messages.Measured(model, None, own, measured.sha256) if conflicts else measured

    def finish(self, rounds: int) -> None:
        """The run has ended: no host of it will be asked again."""
        self.host.finish(rounds)
        if self._hosting is not None:
            self._hosting.finish()

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

    # ---- data that outlast the process

    def close(self) -> None:
        self.save()
        self.host.close()
        self._journal.close()
        if self.budget is not None:
            self.budget.close()
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
