"""A chain of rules: a value whose state is the tuple of its rules' states, as in optax.

    steps ← rule.update(steps)   for every rule in order;   the last, a kernel rule, turns them into lines of a program

If only one rule of a chain has a state, the chain writes that state and nothing else, so that it takes no more bytes
than the rule alone would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from torch import Tensor

from fedzero.errors import FedzeroError
from fedzero.methods.contract import NOTHING, Numbers, RuleState, Vectors
from fedzero.methods.rules.contract import At, Fact, KernelRule, Line, Rule, Step
from fedzero.model.decoding import decoded
from fedzero.model.params import Params, Slots

R = TypeVar("R", bound=RuleState)
MOST_RULES = 32
"""Of a chain: every two of them are compared, and all of them run in every step."""


@dataclass(frozen=True)
class KernelState(RuleState):
    """The state of a kernel rule: momentum or moments, and the number of steps so far."""

    vectors: Vectors
    steps: int = 0

    @staticmethod
    def of(rule: KernelRule, params: Params) -> KernelState:
        return KernelState(Vectors.zeros(params, rule.kernel.slots))


_numbers = msgspec.msgpack.Decoder(list[int | bytes])


@dataclass(frozen=True)
class ChainState(RuleState):
    """The states of the rules of a chain, in their order."""

    states: tuple[RuleState, ...] = ()

    def of(self, kind: type[R]) -> R | None:
        """The first state of this type, if a rule has one."""
        return next((state for state in self.states if isinstance(state, kind)), None)

    def tensors(self, chosen: Sequence[int] | None = None) -> list[Tensor]:
        return [tensor for state in self.states for tensor in state.tensors(chosen)]

    def numbers(self) -> Numbers:
        found = [state.numbers() for state in self._written()]
        return found[0] if len(found) == 1 else msgspec.msgpack.encode(found) if any(found) else 0

    def with_numbers(self, numbers: Numbers) -> ChainState:
        written = self._written()
        if len(written) == 1:
            given: list[Numbers] = [numbers]
        elif isinstance(numbers, bytes):
            given = decoded(_numbers.decode, numbers, "the values of a state")
        else:
            given = [0] * len(written)
        if len(given) != len(written):
            raise FedzeroError(f"a state with values of {len(given)} rules where the chain has {len(written)}")
        found = iter(given)
        return ChainState(tuple(state if state.empty else state.with_numbers(next(found)) for state in self.states))

    def clone(self) -> ChainState:
        return ChainState(tuple(state.clone() for state in self.states))

    def _written(self) -> list[RuleState]:
        return [state for state in self.states if not state.empty]


@dataclass(frozen=True)
class Chain:
    """Rules, of which the last is a kernel rule."""

    rules: tuple[Rule, ...]

    @property
    def kernel(self) -> KernelRule:
        last = self.rules[-1]
        assert isinstance(last, KernelRule)
        return last

    def init(self, params: Params) -> ChainState:
        """The states before round 0; a kernel with plain steps has none."""
        kernel = NOTHING if self.kernel.is_plain else KernelState.of(self.kernel, params)
        return ChainState((*(rule.init() for rule in self.rules[:-1]), kernel))

    def states(self, state: RuleState) -> tuple[Any, ...]:
        """The state of each rule; in methods with their own state, rules have none."""
        return state.states if isinstance(state, ChainState) else (NOTHING,) * len(self.rules)

    @cached_property
    def own_directions(self) -> bool:
        """Whether every round uses its own directions, right factors included. Clients ask this in every local step."""
        return all(type(r).asked is Rule.asked and type(r).factors is Rule.factors for r in self.rules)

    def asked(self, round: int) -> int:
        """The round whose directions a round uses; its own, if a correction moved the model since the earlier one."""
        for rule in self.rules:
            if (found := rule.asked(round)) != round:
                return found if all(map(self.alone, range(found, round))) else round
        return round

    def factors(self, round: int) -> int:
        """The round whose right factors a round's directions use."""
        for rule in self.rules:
            if (found := rule.factors(round)) != round:
                return found
        return round

    def alone(self, round: int) -> bool:
        """Whether no rule adds a correction after the round's own step."""
        return not any(rule.corrects(round) for rule in self.rules)

    def changed(self, steps: list[Step], state: RuleState, at: At) -> tuple[list[Step], tuple[Any, ...]]:
        """The steps as the kernel rule receives them, and the states afterwards."""
        states = self.states(state)
        if len(states) == 1:
            return steps, states
        after = list(states)
        for i, rule in enumerate(self.rules[:-1]):
            steps, after[i] = rule.update(steps, after[i], at)
        return steps, tuple(after)

    def update(self, steps: list[Step], state: ChainState, at: At) -> tuple[list[Line], ChainState]:
        """The lines of a round, and the state after it. The kernel's vectors change when the lines are run."""
        steps, states = self.changed(steps, state, at)
        last = states[-1]
        if not isinstance(last, KernelState):
            return self.kernel.lines(steps, 0), ChainState(states)
        lines = self.kernel.lines(steps, last.steps)
        return lines, ChainState((*states[:-1], KernelState(last.vectors, last.steps + len(lines))))

    def local(self, steps: list[Step], state: RuleState, at: At) -> list[Line]:
        """The line of a client's latest local step."""
        for rule, own in zip(self.rules[:-1], self.states(state), strict=False):
            steps = rule.local(steps, own, at)
        return self.kernel.lines(steps[-1:], self.taken(state) + len(steps) - 1)

    def taken(self, state: RuleState) -> int:
        """The number of steps that the kernel has taken; 0 if it does not count them."""
        last = self.states(state)[-1]
        return last.steps if isinstance(last, KernelState) else 0

    def slots(self, state: RuleState) -> Slots | None:
        """The kernel's vectors."""
        last = self.states(state)[-1]
        return last.vectors.slots if isinstance(last, KernelState) and len(last.vectors) else None

    def max_update_scale(self, scale: float, state: RuleState, at: At) -> float:
        for rule, own in zip(self.rules, self.states(state), strict=True):
            scale = rule.max_update_scale(scale, own, at)
        return scale


def check_rules(named: Sequence[tuple[str, Rule]], lacks: Mapping[Fact, str]) -> None:
    """Refuse rules that cannot be combined with each other or with the method. lacks: of the method.

    named: the rules in order, each with its words in the recipe.
    """
    kernels = [i for i, (_, rule) in enumerate(named) if isinstance(rule, KernelRule)]
    if kernels != [len(named) - 1]:
        raise FedzeroError(
            "algorithm.rules ends with what a step does with the scalars: put one rule of kind sgd, momentum, adam or "
            f"sign at its end, and no other before it (there {'is' if len(kernels) == 1 else 'are'} {len(kernels)})"
        )
    for i, (words, rule) in enumerate(named):
        around = [other.traits.lacks for _, other in (*named[:i], *named[max(i + 1, len(named) - 1) :])]
        for fact, what in rule.traits.needs.items():
            for other in (*around, lacks):
                if fact in other:
                    raise FedzeroError(f"{words} needs {what}, but {other[fact]}")
