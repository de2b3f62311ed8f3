"""What every rule must do, in a chain of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedzero.directions import Keys, Program
from fedzero.errors import FedzeroError
from fedzero.methods.contract import MAX_ABS_COORDINATE, State
from fedzero.methods.decomfl import DeComFL
from fedzero.methods.rules.contract import KernelRule, Rule
from fedzero.methods.rules.kernels import Sgd
from fedzero.model.params import Params, Slots
from fedzero.model.updates import Seeded, pack
from fedzero.rounds.guard import SPARE
from fedzero.testing import methods
from fedzero.testing.trial import Check, expect, federation_for, run_checks

ROUNDS, DIRECTIONS, SPARED = 30, 5, (4, 11, 12)
KEYS = Keys.of_seed(3)


def check_rule(rule: Rule, checks: Sequence[Check] | None = None) -> None:
    """Put a rule into a chain, and raise `CheckFailed` with what does not hold.

    Checks: recipes that name it survive the ledger; many rounds at once are one pass over memory and have the bits of
    one after the other, also from a state that was sent; scalars are not written into; the model moves no further than
    `max_update_scale` says; runs replay, resume and are the same on replicas of their own.
    """
    run_checks(type(rule), rule, CHECKS if checks is None else checks)


def with_rule(rule: Rule) -> DeComFL:
    """A method that has the rule: with the first directions and rate that the rule accepts."""
    rules = (rule,) if isinstance(rule, KernelRule) else (rule, Sgd())
    refusals = []
    for distribution in ("gaussian", "rank1"):
        for rate in (2e-3, "auto"):
            method = DeComFL(rate=rate, directions=DIRECTIONS, local_steps=2, distribution=distribution, rules=rules)
            try:
                method.check(federation_for(method))
            except (FedzeroError, AssertionError) as refusal:
                refusals.append(str(refusal))
            else:
                return method
    expect(False, f"no chain has it: {refusals[0]}")
    raise AssertionError


def survives_the_ledger(rule: Rule, folder: Path) -> None:
    methods.survives_the_ledger(with_rule(rule), folder)


def folds_in_one_pass(rule: Rule, folder: Path) -> None:
    method, generator = with_rule(rule), np.random.default_rng(0)
    rows = {r: generator.standard_normal(2 * DIRECTIONS).astype(np.float32) for r in range(ROUNDS) if r not in SPARED}
    updates = [Seeded(round, pack(row)) for round, row in rows.items()]
    whole, single, sent = (_begun(method) for _ in range(3))
    counted = whole.params
    assert isinstance(counted, Counted)
    whole = method.apply(whole, updates, KEYS)
    expect(counted.passes == 1, f"{len(updates)} rounds take {counted.passes} passes over memory")
    for i, update in enumerate(updates):
        single = method.apply(single, [update], KEYS)
        if i % 9 == 8:
            sent = sent.restored(single.to_bytes(), single.round, single.numbers)
            rest = method.apply(sent.branch(), updates[i + 1 :], KEYS)
            expect(methods.bits(rest) == methods.bits(whole), f"a state that is sent after round {i} leads elsewhere")
    expect(methods.bits(single) == methods.bits(whole), "rounds one after the other lead elsewhere than all at once")


def keeps_scalars_and_bounds(rule: Rule, folder: Path) -> None:
    """As `rounds.guard` uses the bound: |x| after ≤ 100 · scale · (Σ|g| max|z| + 1), from x = 0."""
    method, chain = with_rule(rule), with_rule(rule).chain
    for size in (1e-30, 1e-3, 1.0, 1e6):
        state, generator = _begun(method), np.random.default_rng(1)
        for round in range(4):
            g = (size * generator.standard_normal((2, DIRECTIONS))).astype(np.float32)
            steps, before = method.own_steps(state, Seeded(round, pack(g.reshape(-1))), KEYS), g.copy()
            steps = [step._replace(scalars=row) for step, row in zip(steps, g, strict=True)]
            at = method.at(chain, state, round, KEYS)
            chain.update(steps, state.carry, at)
            chain.local(steps, state.carry, at)
            expect(np.array_equal(g, before), "it writes into the scalars it is given")
            scale = method.max_update_scale(state, round)
            bound = scale * (MAX_ABS_COORDINATE * float(np.abs(g).sum(dtype=np.float64)) + 1)
            x = state.params.vector()
            state = method.apply(state, [Seeded(round, pack(g.reshape(-1)))], KEYS)
            moved = float((state.params.vector() - x).abs().max())
            expect(
                moved <= SPARE * bound, f"round {round} moved a number by {moved:g}; max_update_scale says {scale:g}"
            )


def runs(rule: Rule, folder: Path) -> None:
    """Live, replayed, resumed and on replicas of their own the same."""
    method = with_rule(rule)
    methods.replays_and_counts(method, folder / "replayed")
    methods.resumes(method, folder / "resumed")
    methods.survives_extreme_numbers(method, folder / "extreme")


class Counted(Params):
    """Parameters that count the passes over them."""

    passes = 0

    def advance(self, program: Program, slots: Slots | None = None) -> None:
        self.passes += 1
        Params.advance(self, program, slots)


def _begun(method: DeComFL) -> State:
    return method.init(Counted({"x": torch.zeros(5, 8), "y": torch.zeros(7, dtype=torch.bfloat16)}), 4)


CHECKS: tuple[Check, ...] = (survives_the_ledger, folds_in_one_pass, keeps_scalars_and_bounds, runs)
