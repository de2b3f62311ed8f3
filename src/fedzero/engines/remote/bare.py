"""A host that trusts its server: no terms, no journal. It runs behind transports of this machine, and in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fedzero.callbacks import ignore
from fedzero.engines.host import Host
from fedzero.engines.remote import messages
from fedzero.engines.remote.agreement import recipe_in
from fedzero.errors import FedzeroError, Refused
from fedzero.model.updates import decode_update
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.messages import Close, Continue, decode_instruction
from fedzero.recipe.engines import chosen
from fedzero.recipe.environment import Environment
from fedzero.recipe.secret import keys_of
from fedzero.recipe.setup import Setup, prepare

NO_JOURNAL = (
    "what is drawn in private must be on disk before it leaves, and this host keeps nothing: use the local engine, or "
    "sites of a federation"
)


@dataclass(frozen=True)
class BareProgram:
    """The program of a host, as a value. engine: where its clients are; empty: in its process, one after the other."""

    environment: Environment
    engine: str = ""

    def __call__(self, name: str) -> BareHost:
        return BareHost(self.environment, self.engine)


class BareHost:
    """Orders in, answers out."""

    def __init__(self, environment: Environment, engine: str = ""):
        self._environment, self._engine = environment, engine
        self._host: Host | None = None

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
                raise Refused(NO_JOURNAL)
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
        if setup.chain.private or setup.chain.gathering is not None or setup.plan.private_sampling:
            raise Refused(NO_JOURNAL)
        setup.problem.ready()
        base = setup.problem.params.identity
        engine = chosen(recipe.engine, self._engine) if self._engine else None
        self._host = Host(setup, setup.replica(), lambda: built().problem.params, engine, self._environment)
        size, facts = setup.problem.params.size, dict(setup.problem.facts)
        return messages.Prepared(base.digest, size, facts, keys.secret, 0, base.sha256)


def _played(host: Host, order: messages.Exchange) -> messages.Replies:
    """All clients at once if the host has an engine; otherwise one by one, each at the model of its instruction."""
    replies: dict[int, bytes] = {}
    failed: dict[int, str] = {}
    groups = [order.instructions] if host.engine else [{c: data} for c, data in order.instructions.items()]
    for group in groups:
        for client, data in _ready(host, order, group, failed).items():
            if isinstance(data, bytes):
                replies[client] = data
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
