"""Admission of orders: a site obeys only orders that follow from the recipe for which it was prepared.

The recipe determines the rounds, the clients asked in each (`cohort_of`), the delivery of the model to clients
(`Traits.delivery`), whether outcomes are sent at once (`federation.sync`), and the rounds after which the model is
evaluated. Orders of an honest server follow from it. All other orders are refused with a sentence, before anything is
computed. `journal` knows whether an order was obeyed before. What a recipe promises with [privacy] is checked in
`promised`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedzero.engines.remote import messages
from fedzero.errors import Refused, Sendable
from fedzero.methods.contract import Cost, Traits
from fedzero.model.updates import Update, decode_update
from fedzero.protocol.messages import Close, Continue, Instruction, Snapshot, Work, decode_instruction
from fedzero.recipe.plan import Plan, cohort_of
from fedzero.recipe.recipe import Recipe

SMALL = 64 << 20
"""Bytes that any order may have: a recipe has at most a few million."""
OVERHEAD = 64
"""Bytes of an update, and of an instruction, in addition to its numbers."""
LARGEST_ANSWER = 999_000_000
"""The most bytes of an answer that the journal keeps: a value in SQLite has at most 10⁹."""


@dataclass(frozen=True)
class Agreement:
    """The run for which a site was prepared. clients: the clients at this site; state: bytes of a whole state."""

    recipe: Recipe
    plan: Plan
    clients: frozenset[int]
    remembers: bool
    state: int = 0
    _cohort: dict[int, frozenset[int]] = field(default_factory=dict, repr=False, compare=False)
    """the cohort of the round that was asked for last: many orders belong to one round"""

    @property
    def rounds(self) -> int:
        return self.recipe.rounds

    @property
    def traits(self) -> Traits:
        return self.plan.traits

    def cost(self, round: int) -> Cost:
        return self.plan.cost(round)

    @cached_property
    def delivery(self) -> str:
        return self.traits.delivery

    def cohort(self, round: int) -> frozenset[int]:
        """The clients that may be asked. With private sampling only the server knows the cohort: any client here."""
        if self.plan.private_sampling:
            return self.clients
        if round not in self._cohort:
            self._cohort.clear()
            self._cohort[round] = frozenset(cohort_of(self.plan.keys, round, self.recipe.federation))
        return self._cohort[round]

    @cached_property
    def largest(self) -> int:
        """The most bytes of an order: it may bring each client here the whole state, or the updates of all rounds."""
        federation, numbers = self.recipe.federation, sum(self.cost(0).replies)
        most = max(numbers, sum(self.cost(self.rounds - 1).replies))
        update = OVERHEAD + (8 * most + 10) * (1 if self.traits.comparable else 2 * federation.cohort)
        catching_up = 0 if self.delivery == "snapshot" else self.rounds * update
        plain = 16 * most * (1 if self.traits.comparable else federation.clients)
        return SMALL + len(self.clients) * (2 * self.state + plain + catching_up + OVERHEAD)


def check_answers(plan: Plan) -> None:
    """Refuse a method whose answers the journal cannot keep, before the first round rather than in it."""
    size = 4 * max(plan.cost(0).replies) + OVERHEAD  # a reply's numbers are float32
    if size > LARGEST_ANSWER:
        raise Sendable(
            f"an answer of {plan.algorithm.name} would have {size:,} bytes, and sites keep answers of at most "
            f"{LARGEST_ANSWER:,}: choose a method that sends scalars, or train fewer parameters"
        )


def check_exchange(agreement: Agreement, order: messages.Exchange) -> None:
    """Refuse an exchange that no round of the recipe has, or that is for clients of other sites."""
    _expect_round(agreement, order.round)
    exchanges = len(agreement.cost(order.round).replies)
    if order.exchange >= exchanges:
        raise Refused(f"was sent exchange {order.exchange} of a round that has {exchanges}")
    _expect_here(agreement, order.instructions.keys())
    if others := order.instructions.keys() - agreement.cohort(order.round):
        raise Refused(f"client {min(others)} has no turn in round {order.round} of this recipe")
    if agreement.recipe.privacy and (left := agreement.clients - order.instructions.keys()):
        raise Refused(f"was asked without client {min(left)}: this site draws, and is asked for all of its clients")


def check_phase(agreement: Agreement, order: messages.Phase) -> None:
    """Refuse a phase of an exchange that no round of the recipe has."""
    _expect_round(agreement, order.round)
    exchanges = len(agreement.cost(order.round).replies)
    if order.exchange >= exchanges:
        raise Refused(f"was sent a phase of exchange {order.exchange} of a round that has {exchanges}")


def instruction_of(agreement: Agreement, order: messages.Exchange, data: bytes) -> Work | Snapshot | Continue:
    """The instruction for one client; refused if it does not belong to this exchange."""
    instruction = decode_instruction(data)
    if isinstance(instruction, Close):
        raise Refused("was sent the outcome of a round where its turn was expected")
    if (instruction.round, instruction.exchange) != (order.round, order.exchange):
        raise Refused(
            f"was sent an instruction of exchange {instruction.exchange} of round {instruction.round} in an order of "
            f"exchange {order.exchange} of round {order.round}"
        )
    if isinstance(instruction, Continue) != bool(order.exchange):
        raise Refused("received an instruction for a different exchange")
    if isinstance(instruction, Continue):
        return instruction
    _expect_delivered(agreement, instruction)
    if instruction.counted is not None and not agreement.remembers:
        raise Refused("was told which turn counted, in a run whose clients remember nothing")
    if instruction.counted is not None and instruction.counted >= order.round:
        raise Refused(f"was told that its turn of round {instruction.counted} counted, before round {order.round}")
    return instruction


def _expect_delivered(agreement: Agreement, instruction: Work | Snapshot) -> None:
    """Refuse a form of delivery that the recipe does not use."""
    method, pulls = agreement.recipe.algorithm.name, agreement.recipe.federation.pull_after is not None
    if isinstance(instruction, Snapshot) and agreement.delivery == "catch-up" and not pulls:
        raise Refused(f"was sent a model, which {method} never sends: updates only")
    if isinstance(instruction, Work) and agreement.delivery == "snapshot" and not pulls:
        raise Refused(f"was sent updates where {method} sends the model")
    if isinstance(instruction, Work):
        _expect_in_order(agreement, instruction.updates, instruction.round)


def check_recover(agreement: Agreement, order: messages.Recover) -> list[Update]:
    """The updates of an order to catch up, checked."""
    if agreement.delivery == "snapshot":
        raise Refused(f"was told to catch up, where {agreement.recipe.algorithm.name} sends the model with every turn")
    updates = [decode_update(update) for update in order.updates]
    _expect_in_order(agreement, updates, agreement.rounds)
    return updates


def closings_of(agreement: Agreement, order: messages.Deliver) -> dict[int, Close]:
    """The outcomes of a round, by client."""
    if not agreement.recipe.federation.sync:
        raise Refused("was sent the outcome of a round, which federation.sync = false never sends")
    _expect_here(agreement, order.closings.keys())
    return {number: _closing(agreement, data) for number, data in order.closings.items()}


def _closing(agreement: Agreement, data: bytes) -> Close:
    instruction: Instruction = decode_instruction(data)
    if not isinstance(instruction, Close):
        raise Refused("was sent something else than the outcome of a round")
    _expect_round(agreement, instruction.round)
    if instruction.update.round != instruction.round:
        raise Refused(f"was sent an update of round {instruction.update.round} as the outcome of {instruction.round}")
    return instruction


def check_measure(agreement: Agreement, order: messages.Measure, ready: int) -> list[Update]:
    """The updates to fold before an evaluation. ready: the round for which the replica is ready."""
    recipe, after = agreement.recipe, order.after
    if recipe.federation.server_model:
        raise Refused("was told to evaluate a model that the server has itself: federation.server_model = true")
    if after > recipe.rounds or (after % recipe.evaluate_every and after != recipe.rounds):
        raise Refused(
            f"was told to evaluate the model after round {after}: the recipe has that after every "
            f"{recipe.evaluate_every} of its {recipe.rounds} rounds, and after the last"
        )
    updates = [decode_update(update) for update in order.updates]
    _expect_in_order(agreement, updates, after)
    if ready > after:
        raise Refused(f"was told to evaluate the model after round {after}, and has that after round {ready}")
    return updates


def check_finish(agreement: Agreement, order: messages.Finish) -> None:
    if order.rounds > agreement.rounds:
        raise Refused(f"was told of {order.rounds} rounds, where the recipe has {agreement.rounds}")


def _expect_round(agreement: Agreement, round: int) -> None:
    if round >= agreement.rounds:
        raise Refused(f"was sent an order of round {round}: the recipe has {agreement.rounds} rounds, 0 the first")


def _expect_here(agreement: Agreement, numbers: Iterable[int]) -> None:
    if others := set(numbers) - agreement.clients:
        raise Refused(f"client {min(others)} is not at this site")


def _expect_in_order(agreement: Agreement, updates: Sequence[Update], before: int) -> None:
    """Refuse updates that are out of order, or of round `before` or later."""
    expected = 0
    for update in updates:
        if not expected <= update.round < before:
            raise Refused(f"was sent an update of round {update.round}, where rounds {expected} to {before - 1} follow")
        expected = update.round + 1
