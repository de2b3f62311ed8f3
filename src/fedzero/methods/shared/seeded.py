"""The base of most methods of the family: how an estimate is made, and updates that are sums of shared directions.

    client i, step k:  g_i[k,p] = slope of f_i along z[k,p] at x,   p = 1 … P, directions shared by all
                       x ← x − η (1/P) Σ_p g_i[k,p] z[k,p]          local, forgotten at the end
    server:            g[k,p] = mean over the cohort of g_i[k,p]
    everybody:         x_{r+1} = x_r − (η/P) Σ_k Σ_p g[k,p] z[k,p]  when it next needs the model

A method overrides the member in which its paper differs: `direction_keys` (the source of directions), `check`, or a
member of the contract. The scalars in the line "everybody" pass through a chain of rules (methods/rules): the rules of
`[[algorithm.rules]]`, or the rules that the fields `step`, `hold`, `rate = "auto"`, `average` and `optimizer` stand
for.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from fedzero.directions import Distribution, Keys, Program, Stream, Terms, stream_of
from fedzero.directions.terms import F32, U64
from fedzero.errors import FedzeroError, Invalid
from fedzero.estimators.spsa import (
    Difference,
    direction_keys,
    expect_others,
    expect_rank,
    points_of,
    queries_of,
    slopes,
    slopes_by_row,
)
from fedzero.methods.contract import (
    NO_ROWS,
    Contribution,
    Cost,
    Federation,
    Method,
    Scale,
    State,
    StepInputs,
    Traits,
    Turn,
    Work,
    advance_round,
)
from fedzero.methods.rules.auto_rate import AutoRate, Rate
from fedzero.methods.rules.averaging import Averaging
from fedzero.methods.rules.chain import MOST_RULES, Chain, check_rules
from fedzero.methods.rules.contract import Answered, At, Fact, KernelRule, Line, Rule, Step
from fedzero.methods.rules.kernels import Sgd
from fedzero.methods.rules.reuse_factor import ReuseFactor, with_factors
from fedzero.methods.rules.weighting import Weighting, Weights
from fedzero.methods.shared.groups import summed
from fedzero.model.numbers import Natural
from fedzero.model.params import Params
from fedzero.model.schedules import Counts, count_at, fewest, rate_at
from fedzero.model.updates import Seeded, Stepped, Update, pack
from fedzero.model.value import quoted
from fedzero.oracles import ALL_DATA, Answer, Ask, Losses, Poisson, RowLosses

Part = tuple[int, F32]
"""The round whose question was answered, and scalars (steps, P) along its directions."""
Row = tuple[int, Sequence[int], F32]
"""For one local step: the round whose question was answered, keys of directions, and scalars."""
Samples = Literal["batch", "all"]
"""The data of an evaluation: a mini-batch of the task's size, or all of the client's data."""


def sample_of(samples: Samples, step: int) -> int:
    """The data of a local step."""
    return ALL_DATA if samples == "all" else step


class Sampling(Method):
    """How slopes are sampled: the fields that all finite-difference methods have."""

    rate: Rate
    """η, step size: a number, a schedule over rounds, or "auto": found from the scalars of the run"""
    directions: Counts = 10
    """P"""
    local_steps: Annotated[int, Meta(ge=1)] = 1
    """K"""
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    """μ"""
    difference: Difference = "forward"
    distribution: Distribution = "gaussian"
    rank: Annotated[int, Meta(ge=1, le=1024)] = 1
    """r: with distribution = "rank1", a direction is the sum of r products a bᵀ, divided by √r"""

    def sample(self, step: int) -> int:
        """The data of a local step; a method that offers a choice has a field `samples`."""
        return step

    @property
    def stream(self) -> Stream:
        return stream_of(self.distribution, self.rank)

    def slopes_at(self, base: Params, keys: tuple[int, ...], step: int) -> Generator[Ask, Answer, tuple[F32, float]]:
        """(g_1 … g_P) at `base` along directions, on the data of a local step; and the loss at `base`."""
        points, scales = points_of(base, keys, self.radius, self.difference, self.distribution, self.rank)
        values = yield Losses(base, points, self.sample(step))
        return slopes(values, scales, self.radius, self.difference)

    def slopes_by_row(self, base: Params, keys: tuple[int, ...], drawn: Poisson) -> Generator[Ask, Answer, F32]:
        """v (units, P): the slopes of single units of a Poisson batch, and of no unit if the batch has none."""
        points, scales = points_of(base, keys, self.radius, self.difference, self.distribution, self.rank)
        values = yield RowLosses(base, points, drawn)
        return slopes_by_row(values, scales, self.radius, self.difference)


if TYPE_CHECKING:
    Rules: TypeAlias = tuple[Rule, ...] | UnsetType
else:  # decoded by kind, plugins included (`plugins`); if unset, it is not in a recipe's canonical bytes
    Rules = Any

NO_KEYS = Keys.of_seed(0)
"""For bounds, which depend on no key."""


class ShortForms(NamedTuple):
    """The fields of a recipe that stand for rules."""

    step: Weights
    hold: int
    auto: bool
    average: int
    average_from: int
    kernel: KernelRule

    def named(self) -> list[tuple[str, Rule]]:
        """The rules, each with its words in the recipe."""
        found: list[tuple[str, Rule]] = []
        if self.step != "plain":
            found.append((f"algorithm.step = '{self.step}'", Weighting(step=self.step)))
        if self.hold > 1:
            found.append((f"algorithm.hold = {self.hold}", ReuseFactor(rounds=self.hold)))
        if self.auto:
            found.append(("algorithm.rate = 'auto'", AutoRate()))
        if self.average:
            averaging = Averaging(rounds=self.average, first=self.average_from)
            found.append((f"algorithm.average = {self.average}", averaging))
        return [*found, ("algorithm.optimizer", self.kernel)]

    def chain(self) -> Chain:
        return Chain(tuple(rule for _, rule in self.named()))


_last: tuple[object, Chain] = (None, Chain(()))
"""The method whose chain was made last, and its chain: methods are values, and need their chain in every step."""


class SeededMethod(Sampling):
    """Methods with shared directions, scalars up and scalars down: every member of the contract."""

    step: Weights = "plain"
    """weight of a step's scalars: unchanged (plain); divided by their deviation (normalised); or such that a step moves
    a weight by η, root mean square (rms)"""
    average: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    """n: after every n rounds the model becomes the mean of its last n iterates; 0: never"""
    average_from: Natural = 0
    """the first round that is averaged; windows of n rounds are counted from it"""
    hold: Annotated[int, Meta(ge=1)] = 1
    """ν, rounds for which the right factor of a rank-one direction is kept"""
    rules: Rules = UNSET
    """rules for the scalars, in order, in place of step, hold, average and optimizer; the last is sgd, momentum, adam
    or sign"""

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        if not isinstance(self.rules, UnsetType):
            rules = tuple(self.rules)
            if not rules or not all(isinstance(rule, Rule) for rule in rules):
                raise Invalid(f"{self.name}: rules = {quoted(self.rules)} is not valid: give rules, one at least")
            if len(rules) > MOST_RULES:
                raise Invalid(f"{self.name}: {len(rules):,} rules where a chain has at most {MOST_RULES}")
            msgspec.structs.force_setattr(self, "rules", rules)

    @property
    def chain(self) -> Chain:
        """The chain of rules for the scalars."""
        global _last
        method, chain = _last
        if method is not self:
            given = self.rules
            chain = self._short_forms().chain() if isinstance(given, UnsetType) else Chain(given)
            _last = self, chain
        return chain

    def kernel_rule(self) -> KernelRule:
        """The last rule, if `rules` is unset. A method that offers a choice has a field `optimizer`."""
        return Sgd()

    def _short_forms(self) -> ShortForms:
        return ShortForms(
            self.step, self.hold, self.rate == "auto", self.average, self.average_from, self.kernel_rule()
        )

    def check(self, federation: Federation) -> None:
        expect_others(self.difference, fewest(self.directions))
        expect_rank(self.distribution, self.rank)
        self.check_chain()
        if federation.sync and not self.chain.kernel.is_plain:
            raise FedzeroError(
                "federation.sync = true works with plain SGD only (a stateful optimizer cannot be corrected linearly): "
                "leave it out"
            )
        if federation.pull_after is not None and not federation.server_model:
            raise FedzeroError(
                "federation.pull_after needs a server that holds the model: leave it out or set server_model = true"
            )
        if federation.private and federation.server_model:
            raise FedzeroError(
                "federation.private = true hides the directions from the server, so it cannot hold the model: "
                "set federation.server_model = false"
            )

    def _named_rules(self) -> list[tuple[str, Rule]]:
        """The rules in order, each with its words in the recipe."""
        if isinstance(self.rules, UnsetType):
            return self._short_forms().named()
        return [(f"algorithm.rules[{i}] ({rule.name})", rule) for i, rule in enumerate(self.rules)]

    def check_chain(self) -> None:
        """Refuse rules that cannot be combined with each other or with this method."""
        if self.average_from and not self.average:
            raise FedzeroError(
                "algorithm.average_from says where averages begin: set algorithm.average to the rounds of one"
            )
        check_rules(self._named_rules(), self.lacks())
        if isinstance(self.rules, UnsetType):
            return
        fields = {"step": "plain", "hold": 1, "average": 0, "optimizer": Sgd()}
        if both := [name for name, default in fields.items() if getattr(self, name, default) != default]:
            raise FedzeroError(
                f"algorithm.rules and algorithm.{both[0]} both say what becomes of the scalars: leave out one of them"
            )
        if (self.rate == "auto") != any(isinstance(rule, AutoRate) for rule in self.rules):
            raise FedzeroError(
                "algorithm.rate = 'auto' and a rule of kind auto-rate in algorithm.rules go together: add the one that "
                "is missing, or leave out the rule and give a number"
            )

    def lacks(self) -> dict[Fact, str]:
        """By fact that rules may need and the method lacks: the reason."""
        found: dict[Fact, str] = {}
        if self.distribution != "rank1":
            found["factors"] = (
                f"those of algorithm.distribution = '{self.distribution}' have none: set algorithm.distribution = "
                f"'rank1' (not '{self.distribution}'), or leave it out"
            )
        if fewest(self.directions) < 2:
            found["deviation"] = "one direction has none: set algorithm.directions to 2 or more (or step = 'rms')"
        return found

    def traits(self, scale: Scale) -> Traits:
        return Traits(reads_state=self._reads_state(), no_rows=self._no_rows())

    def cost(self, round: int, scale: Scale) -> Cost:
        K, P = self.local_steps, count_at(self.directions, round)
        return Cost((K * P,), K * queries_of(P, self.difference))

    def _reads_state(self) -> str:
        """See `Traits.reads_state`: rules that reuse directions compare the scalars of two rounds."""
        again = next((words for words, rule in self._named_rules() if type(rule).asked is not Rule.asked), "")
        return f"{again} compares the scalars of a round with those of the round before" if again else ""

    def _no_rows(self) -> str:
        """See `Traits.no_rows`: a method that makes its scalars in a way of its own has to say that it serves rows."""
        if type(self).client is not SeededMethod.client or type(self).slopes_at is not Sampling.slopes_at:
            return NO_ROWS
        if self.local_steps > 1:
            why = "a local step after the first begins where all rows of the one before have led"
            return f"{why}: set algorithm.local_steps = 1 (not {self.local_steps})"
        return ""

    def direction_keys(self, keys: Keys, round: int, step: int, count: int) -> tuple[int, ...]:
        """The keys of a step's `count` directions."""
        return direction_keys(keys, round, step, count)

    def init(self, params: Params, clients: int) -> State:
        return State(params, self.chain.init(params), clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        K, P, local = self.local_steps, count_at(self.directions, turn.round), state
        if turn.rows is not None:
            keys = self.directions_of(state, turn.keys, turn.round, 0, P)
            v = yield from self.slopes_by_row(state.params, keys, turn.rows)
            return Contribution(np.zeros(P, np.float32), None, rows=v)
        if K == 1:
            found, loss = yield from self.slopes_at(
                state.params, self.directions_of(state, turn.keys, turn.round, 0, P), 0
            )
            return Contribution(found, loss)
        g, loss, steps = np.empty((K, P), np.float32), 0.0, list[Step]()
        for k in range(K):
            keys = self.directions_of(state, turn.keys, turn.round, k, P)
            g[k], here = yield from self.slopes_at(local.params, keys, k)
            loss = here if k == 0 else loss
            if k + 1 < K:
                local = state.branch() if k == 0 else local
                steps.append(self._step([(turn.round, keys, g[k])], turn.round, k, turn.keys))
                chain, at = self.chain, self.at(self.chain, state, turn.round, turn.keys)
                self._advance(local, chain, [chain.local(steps, local.carry, at)])
        return Contribution(g.reshape(-1), loss)

    def aggregate(self, gathered: StepInputs) -> Update:
        return summed(gathered) if gathered.asked else Seeded(gathered.round, pack(gathered.mean()))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        chain, carry, rounds = self.chain, state.carry, []
        for update in updates:
            at = self.at(chain, state, update.round, keys)
            lines, carry = chain.update(self.own_steps(state, update, keys), carry, at)
            rounds.append(lines)
        state = replace(state, carry=carry)
        self._advance(state, chain, rounds)
        return advance_round(state, updates)

    def max_update_scale(self, state: State, round: int) -> float:
        chain = self.chain
        return chain.max_update_scale(self._rate(round), state.carry, self.at(chain, state, round, NO_KEYS))

    def parts_of(self, update: Update) -> list[Part]:
        """The parts whose sum an update is: directions and their number follow from the rounds in which the replies
        were asked for, everything else from the round of the step."""
        parts = [Seeded(g.asked, g.scalars) for g in update.groups] if isinstance(update, Stepped) else [update]
        return [(each.round, self.scalars_of(each).reshape(self.local_steps, -1)) for each in parts]

    def scalars_of(self, update: Update) -> F32:
        """The scalars of an update, after a check of their number."""
        expected = self.local_steps * count_at(self.directions, update.round)
        scalars = self.decode_update(update) if isinstance(update, Seeded) else None
        if scalars is None or scalars.size != expected:
            found = "none" if scalars is None else scalars.size
            raise FedzeroError(f"round {update.round} has {found} scalars where {self.name} has {expected}")
        return scalars

    def own_steps(self, state: State, update: Update, keys: Keys) -> list[Step]:
        """The local steps of a round, before any rule."""
        parts = self.parts_of(update)
        return [
            self._step(
                [(a, self.directions_of(state, keys, a, k, g[k].size), g[k]) for a, g in parts], update.round, k, keys
            )
            for k in range(self.local_steps)
        ]

    def directions_of(self, state: State, keys: Keys, round: int, step: int, count: int) -> tuple[int, ...]:
        """The keys of a step's directions as they are used; rules may take them from earlier rounds."""
        chain = self.chain
        if chain.own_directions:
            return self.direction_keys(keys, round, step, count)
        own = chain.asked(round)
        fresh = self.direction_keys(keys, own, step, count)
        held = chain.factors(own)
        return fresh if held == own else with_factors(fresh, self.direction_keys(keys, held, step, count))

    def _step(self, rows: Sequence[Row], round: int, step: int, keys: Keys) -> Step:
        """A local step along the directions of the rounds that its scalars answer."""
        rounding, rate = keys.rounding(round, step), self._rate(round)
        if len(rows) == 1 and rows[0][0] == round:
            return Step(rows[0][1], rows[0][2], self.stream, rounding, rate)
        directions = [key for _, each, _ in rows for key in each]
        g, parts = np.concatenate([row for *_, row in rows]), tuple(Answered(a, row.size) for a, _, row in rows)
        return Step(directions, g, self.stream, rounding, rate, parts=parts)

    def _rate(self, round: int) -> float:
        """η before the rules; 1 if a rule finds it."""
        return 1.0 if self.rate == "auto" else rate_at(self.rate, round)

    def at(self, chain: Chain, state: State, round: int, keys: Keys) -> At:
        """The inputs of rules for a round."""
        return At(
            round=round,
            keys=keys,
            local_steps=self.local_steps,
            directions=count_at(self.directions, round),
            reach=self.radius / math.sqrt(state.params.size) if self.distribution == "unit-sphere" else self.radius,
            alone=chain.alone,
            terms_of=lambda asked: self._all_directions(state, keys, asked),
        )

    def _all_directions(self, state: State, keys: Keys, asked: Sequence[int]) -> U64:
        """Keys of the terms of all local steps of a round whose replies answer the questions of these rounds."""
        parts = [(k, a, count_at(self.directions, a)) for k in range(self.local_steps) for a in asked]
        found = [key for k, a, P in parts for key in self.directions_of(state, keys, a, k, P)]
        return Terms.of(found, [0.0] * len(found), self.stream).keys

    def _advance(self, state: State, chain: Chain, rounds: Iterable[Sequence[Line]]) -> None:
        """All steps of all rounds in one pass over memory."""
        lines = [line for each in rounds for line in each]
        if lines:
            terms, rounding, hypers = zip(*lines, strict=True)
            program = Program.of(terms, rounding, chain.kernel.kernel, hypers)
            state.params.advance(program, chain.slots(state.carry))
