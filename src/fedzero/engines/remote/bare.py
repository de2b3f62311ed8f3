"""A host that trusts its server: no terms, no budget. It runs behind transports of this machine, and in tests.

What is drawn in private, and answers to phases of a gathering, are kept in the folder of the run, in one file for all
hosts: clients by number, hosts by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedzero.callbacks import ignore
from fedzero.engines.gathering import Own, hosting, without_numbers
from fedzero.engines.host import Host
from fedzero.engines.remote import messages
from fedzero.engines.remote.agreement import recipe_in
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.answers import Answers
from fedzero.model.updates import decode_update
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.messages import Close, Continue, decode_instruction
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import chosen
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import batches_in, hidden_in
from fedzero.recipe.secret import keys_of
from fedzero.recipe.setup import Setup, prepare

NO_JOURNAL = (
    "what is drawn in private must be on disk before it leaves, and this host keeps that of [privacy] in the folder of "
    "a run, and nothing else: use the local engine, or sites of a federation"
)
ELSEWHERE = "what is drawn in private must be on disk before it leaves, and {} keeps nothing: leave out engine.clients"


@dataclass(frozen=True)
class BareProgram:
    """The program of a host, as a value. engine: where its clients are; empty: in its process, one after the other."""

    environment: Environment
    engine: str = ""

    def __call__(self, name: str) -> BareHost:
        return BareHost(self.environment, self.engine, name)


class BareHost:
    """Orders in, answers out."""

    def __init__(self, environment: Environment, engine: str = "", name: str = ""):
        self._environment, self._engine, self._name = environment, engine, name
        self._host: Host | None = None
        self._clients = frozenset[int]()

    def answer(self, data: bytes) -> bytes:
        try:
            return messages.encode(self._obey(messages.decode_order(data)))
        except Exception as error:  # the server should hear of every failure
            return messages.encode(messages.Failed(str(error) or repr(error)))

    def leave(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    def _obey(self, order: messages.Order) -> messages.Answer:
        if isinstance(order, messages.Prepare):
            return self._prepared(order)
        host = self._host
        if host is None:
            raise Refused("was given work before it was prepared for a run")
        match order:
            case messages.Recover():
                host.recover(order.fresh, [decode_update(update) for update in order.updates])
            case messages.Exchange():
                return _played(host, order)
            case messages.Deliver():
                host.deliver(_closings(order))
            case messages.Measure():
                return _measured(host, order)
            case messages.Phase():
                return messages.Phased(self._phased(host.setup, order))
            case messages.Finish():
                pass
        return messages.Done()

    def _prepared(self, order: messages.Prepare) -> messages.Prepared:
        self.leave()
        recipe = recipe_in(order)
        if not recipe.engine.merge:
            torch.set_num_threads(1)
        keys = keys_of(recipe, self._environment.secret, order.secret, order.recipe)

        def built() -> Setup:
            return prepare(recipe, self._environment, keys=keys)

        setup = built()
        kept = self._kept(setup)
        setup.problem.ready()
        base = setup.problem.params.identity
        engine = chosen(recipe.engine, self._engine) if self._engine else None
        place = setup, setup.replica(), lambda: built().problem.params, engine, self._environment
        self._host, self._clients = Host(*place, **kept), frozenset(order.clients)
        size, facts = setup.problem.params.size, dict(setup.problem.facts)
        return messages.Prepared(base.digest, size, facts, keys.secret, 0, base.sha256)

    def _kept(self, setup: Setup) -> dict[str, Any]:
        """What a host needs that draws in private, or has a part in a gathering."""
        chain, recipe, folder = setup.chain, setup.recipe, self._environment.folder
        if not (chain.private or chain.gathering is not None or setup.plan.private_sampling):
            return {}
        if folder is None or not recipe.privacy:
            raise Refused(NO_JOURNAL)
        if self._engine:
            raise Refused(ELSEWHERE.format(self._engine))
        return {"before": folder, "drawn": batches_in(recipe, folder), "hidden": hidden_in(recipe, folder)}

    def _phased(self, setup: Setup, order: messages.Phase) -> bytes:
        """The answer to a phase, from the whole replies of the clients here; they left without their numbers. The file
        is opened for each: when hosts are prepared, the run has no folder yet."""
        folder, recipe = self._environment.folder, setup.recipe
        if folder is None or not recipe.privacy:
            raise Refused("was sent a phase of a gathering, which this recipe does not have")
        numbers = setup.plan.cost(order.round).replies[order.exchange]
        with closing(Answers(folder)) as answers, closing(Answers(folder, self._name)) as own:
            whole = answers.of_exchange(order.round, order.exchange)
            mine = {client: reply for client, reply in whole.items() if client in self._clients}
            host = hosting(setup.chain, own, own=Own(run=recipes.hash_of(recipe)))
            assert host is not None, "every chain of [privacy] has a gathering"
            (answer,) = host.answers({0: order}, lambda _: mine, numbers).values()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _played(host: Host, order: messages.Exchange) -> messages.Replies:
    """All clients at once if the host has an engine; otherwise one by one, each at the model of its instruction."""
    replies: dict[int, bytes] = {}
    failed: dict[int, str] = {}
    groups = [order.instructions] if host.engine else [{c: data} for c, data in order.instructions.items()]
    for group in groups:
        for client, data in _ready(host, order, group, failed).items():
            if isinstance(data, bytes):
                replies[client] = data if host.setup.chain.gathering is None else without_numbers(data)
            else:
                failed[client] = str(data)
    return messages.Replies(replies, failed)


def _ready(
    host: Host, order: messages.Exchange, group: Mapping[int, bytes], failed: dict[int, str]
) -> dict[int, bytes | Exception]:
    ready = {}
    for client, data in group.items():
        try:
            instruction = decode_instruction(data)
            if isinstance(instruction, Close):
                raise Refused("was sent the outcome of a round where its turn was expected")
            if isinstance(instruction, Continue):
                if not host.waits(client, order.round, order.exchange):
                    raise Refused("received an instruction for a different exchange")
            else:
                if host.remembers and not host.remembered(client).has(instruction.counted):
                    raise Refused(f"has lost what it remembered of round {instruction.counted}")
                host.bring(instruction, client)
                host.settle(client, instruction.counted)
            ready[client] = data
        except FedzeroError as error:
            failed[client] = str(error)
    return host.exchange(order.round, order.exchange, ready) if ready else {}


def _closings(order: messages.Deliver) -> dict[int, Close]:
    found = {client: decode_instruction(data) for client, data in order.closings.items()}
    return {client: close for client, close in found.items() if isinstance(close, Close)}


def _measured(host: Host, order: messages.Measure) -> messages.Measured:
    model = host.measure([decode_update(update) for update in order.updates]).identity
    try:
        metrics = host.evaluate()
    except Unmeasured:
        return messages.Measured(model.digest, None, sha256=model.sha256)
    return messages.Measured(model.digest, metrics, sha256=model.sha256)


def program_here(environment: Environment, engine: str) -> BareProgram:
    """The program with this process's environment, without its observers."""
    return BareProgram(replace(environment, replaying=ignore), engine)
