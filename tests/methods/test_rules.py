"""Chains of rules: what stands together, what does not, and that many rounds at once are one after the other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from byhand import params

from fedzero.directions import Keys, Program
from fedzero.errors import FedzeroError
from fedzero.methods import Baffle, DeComFL, Federation, FedKSeed, FeedSign, HiSo, MeZO
from fedzero.methods.contract import Method, State
from fedzero.methods.rules import Rule, Step
from fedzero.methods.rules.auto_rate import WARM_UP, AutoRate, AutoRateState, measures
from fedzero.methods.rules.averaging import Averaging, AveragingState
from fedzero.methods.rules.chain import ChainState, KernelState
from fedzero.methods.rules.kernels import Adam, Momentum, Sgd, Sign
from fedzero.methods.rules.reuse_factor import ReuseFactor
from fedzero.methods.rules.weighting import Weighting
from fedzero.model.params import Params
from fedzero.model.updates import Seeded, pack
from fedzero.recipe import recipe as recipes
from fedzero.testing import CheckFailed, check_rule
from fedzero.testing import methods as checks
from fedzero.testing import rules as rule_checks

SOME = Federation(clients=10, cohort=4)
KEYS = Keys.of_seed(7)
TOGETHER: dict[str, DeComFL | Baffle | FeedSign | MeZO] = {
    "auto, rms, averaged": DeComFL(rate="auto", directions=4, step="rms", average=4),
    "auto, averaged, local steps": DeComFL(rate="auto", directions=3, local_steps=2, average=3, average_from=1),
    "auto, held, normalised": DeComFL(rate="auto", directions=3, distribution="rank1", hold=3, step="normalised"),
    "averaged, held, rank 2": DeComFL(rate=1e-2, directions=3, distribution="rank1", rank=2, hold=2, average=4),
    "momentum, normalised": DeComFL(rate=1e-2, directions=4, step="normalised", optimizer=Momentum(), local_steps=2),
    "adam of any method": Baffle(rate=1e-2, directions=3, form="seeded", rules=(Weighting(step="rms"), Adam())),
    "signs with momentum": FeedSign(rate=1e-2, directions=3, rules=(Momentum(beta=0.5),)),
}


def updates(method: Any, rounds: int, silent: tuple[int, ...] = (5, 8)) -> list[Seeded]:
    """Scalars of any kind, and rounds without any."""
    generator, found = np.random.default_rng(1), []
    for round in range(rounds):
        g = generator.standard_normal(method.local_steps * method.directions).astype(np.float32)
        packed = np.packbits(g < 0).tobytes() if isinstance(method, FeedSign) else pack(g)
        found += [] if round in silent else [Seeded(round, packed)]
    return found


def bits(state: State) -> tuple[bytes, Any, bytes]:
    return state.to_bytes(), state.numbers, state.params.digest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["32", "16"])
@pytest.mark.parametrize("method", TOGETHER.values(), ids=TOGETHER)
def test_a_catch_up_is_one_pass_and_has_the_bits_of_round_by_round(method, dtype, monkeypatch) -> None:
    method.check(Federation(clients=4, cohort=4))
    passes: list[int] = []
    advance = Params.advance

    def counted(self: Params, program: Program, slots: Any = None) -> None:
        passes.append(len(program))
        advance(self, program, slots)

    monkeypatch.setattr(Params, "advance", counted)
    begin = [Params({"x": torch.zeros(5, 8, dtype=dtype), "y": torch.zeros(3, dtype=dtype)}) for _ in range(3)]
    whole, single, sent = (method.init(each, 4) for each in begin)
    missed = updates(method, 40)
    whole = method.apply(whole, missed, KEYS)
    assert len(passes) == 1
    for update in missed:
        single = method.apply(single, [update], KEYS)
        if update.round in (13, 22):  # somebody is sent the state there, and goes on from it
            sent = sent.restored(single.to_bytes(), single.round, single.numbers)
            rest = method.apply(sent.branch(), [u for u in missed if u.round > update.round], KEYS)
            assert bits(rest) == bits(whole)
    assert bits(single) == bits(whole)


@pytest.mark.parametrize("name", ["auto, rms, averaged", "averaged, held, rank 2", "adam of any method"])
@pytest.mark.parametrize("check", [checks.replays_and_counts, checks.resumes], ids=lambda check: check.__name__)
def test_runs_replay_and_resume(tmp_path: Path, name, check) -> None:
    check(TOGETHER[name], tmp_path)


def test_short_forms_are_the_rules_they_stand_for() -> None:
    flat = DeComFL(rate="auto", directions=3, distribution="rank1", step="rms", hold=3, average=4, average_from=2)
    rules = (Weighting(step="rms"), ReuseFactor(rounds=3), AutoRate(), Averaging(rounds=4, first=2), Sgd())
    listed = DeComFL(rate="auto", directions=3, distribution="rank1", rules=rules)
    assert flat.chain == listed.chain
    ends = [each.apply(each.init(params(), 4), updates(each, 20), KEYS) for each in (flat, listed)]
    assert bits(ends[0]) == bits(ends[1])


def test_a_rate_is_found_for_scalars_as_they_are_weighted() -> None:
    """The first step moves a weight by the radius, whatever the scale of the slopes and the weights."""
    for step in ("plain", "rms", "normalised"):
        method = DeComFL(rate="auto", directions=4, radius=1e-2, step=step)
        state = method.init(Params.of_vector(torch.zeros(20_000)), 1)
        method.apply(state, [Seeded(0, pack(np.array([300.0, -100.0, 50.0, 250.0], np.float32)))], KEYS)
        assert float(state.params.vector().square().mean().sqrt()) == pytest.approx(1e-2, rel=0.03)


def test_no_step_is_measured_across_a_correction() -> None:
    method = DeComFL(rate="auto", directions=3, average=5)
    state = method.init(params(), 1)
    drawn = {r: method.directions_of(state, KEYS, r, 0, 3) for r in range(2 * WARM_UP)}
    again = {r for r in drawn if r and drawn[r] == drawn[r - 1]}
    assert again == {r for r in drawn if measures(r) and r % 5}, "round 5, 10, … begins at a mean"
    before = method.apply(state, updates(method, 5, silent=()), KEYS)
    pace, g = before.carry.of(AutoRateState), pack(np.array([9.0, 9.0, 9.0], np.float32))
    assert pace.scalars == ()
    after = method.apply(before, [Seeded(5, g)], KEYS).carry.of(AutoRateState)
    assert measures(5) and after.measured == pace.measured


def test_averages_of_rounds_that_were_measured_are_means_of_iterates() -> None:
    rate = {"rate": "auto", "directions": 3, "radius": 0.1}
    averaged, missed = DeComFL(**rate, average=4), updates(DeComFL(**rate), 4, silent=())
    state, iterates = averaged.init(params(), 1), []
    mean = averaged.apply(averaged.init(params(), 1), missed, KEYS)
    for update in missed[:3]:
        state = averaged.apply(state, [update], KEYS)
        iterates.append(state.params.vector().double())
    unaveraged = DeComFL(**rate, average=40)  # the same window, which does not end here
    last = unaveraged.apply(unaveraged.init(params(), 1), missed, KEYS)
    # round 3 would be measured by round 4, were it not for the mean: its step is the shorter one
    assert last.carry.of(AutoRateState).measured == mean.carry.of(AutoRateState).measured
    iterates.append(iterates[-1] + (last.params.vector().double() - iterates[-1]) * _ratio(last, mean, iterates))
    assert torch.allclose(mean.params.vector().double(), torch.stack(iterates).mean(0), atol=1e-5)


def _ratio(last: State, mean: State, iterates: list[torch.Tensor]) -> float:
    """How much longer the last step is, from where the mean went: 4 mean = x1 + x2 + x3 + (x3 + step)."""
    step = 4 * mean.params.vector().double() - sum(iterates) - iterates[-1]
    other = last.params.vector().double() - iterates[-1]
    found = float(step @ other / (other @ other))
    assert math.isclose(found, 1.0, rel_tol=1e-4) or math.isclose(found, 0.5, rel_tol=1e-4)
    return found


def test_a_chain_with_one_state_writes_that_state() -> None:
    begin = params()
    for method, kind in ((DeComFL(rate="auto"), AutoRateState), (DeComFL(rate=1e-3, average=3), AveragingState)):
        state = method.init(begin, 1)
        assert state.numbers == state.carry.of(kind).numbers()
    assert Baffle(rate=1e-3, step="rms").init(begin, 1).numbers == 0
    assert DeComFL(rate=1e-3).init(begin, 1).carry.of(KernelState) is not None, "its plain steps are counted"
    both = DeComFL(rate="auto", average=3).init(begin, 1)
    assert both.carry.with_numbers(both.numbers).states == both.carry.states


@pytest.mark.parametrize("numbers", [b"", b"\x93\x00\x00\x00", b"\x92\xc4\x01x\x00", 7, b"\xc1"])
def test_numbers_of_another_chain_are_refused(numbers) -> None:
    state = DeComFL(rate="auto", average=3).init(params(), 1)
    try:
        found = state.carry.with_numbers(numbers)
    except FedzeroError:
        return
    assert isinstance(found, ChainState) and len(found.states) == len(state.carry.states)


# ---- what does not stand together says why, by one rule


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([Averaging(rounds=3), Adam()], "averaging.* needs plain steps, .* a step of adam is no sum"),
        ([AutoRate(), Sign()], "auto-rate.* needs plain steps, .* a step of sign is no sum"),
        ([Averaging(rounds=3), Weighting(step="rms"), Sgd()], "weighting.* needs scalars .* right before the last"),
        ([AutoRate(), Weighting(step="rms"), Sgd()], "weighting.* needs scalars before .* put it after"),
        ([Averaging(rounds=3), Averaging(rounds=4), Sgd()], "needs steps that are the round's own"),
        ([ReuseFactor(rounds=3), Sgd()], "needs directions with two factors"),
        ([Averaging(rounds=3)], "put one rule of kind sgd"),
        ([Sgd(), Momentum()], "put one rule of kind sgd"),
    ],
)
def test_rules_that_cannot_stand_together_say_why(rules, why) -> None:
    rate = "auto" if any(isinstance(rule, AutoRate) for rule in rules) else 1e-3
    with pytest.raises(FedzeroError, match=why):
        DeComFL(rate=rate, rules=tuple(rules)).check(SOME)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (FedKSeed(rate=1e-3, average=3), r"algorithm\.average = 3 needs plain steps, .* fedkseed adds scalars up"),
        (FedKSeed(rate=1e-3, distribution="rank1", hold=3), "drawn anew in every round, but fedkseed"),
        (FedKSeed(rate=1e-3, rules=(Momentum(),)), "leaves its step to a rule, but fedkseed"),
        (HiSo(rate=1e-3, rules=(Averaging(rounds=3), Sgd())), "but a step of hiso is scaled"),
        (DeComFL(rate=1e-3, rules=(Sgd(),), average=3), r"algorithm\.rules and algorithm\.average both say"),
        (DeComFL(rate=1e-3, rules=(Sgd(),), optimizer=Adam()), r"algorithm\.rules and algorithm\.optimizer both"),
        (DeComFL(rate="auto", rules=(Sgd(),)), "go together"),
        (DeComFL(rate=1e-3, rules=(AutoRate(), Sgd())), "go together"),
    ],
)
def test_what_a_method_has_no_place_for_is_refused(method: Method, why) -> None:
    with pytest.raises(FedzeroError, match=why):
        method.check(SOME)


def test_a_method_with_a_step_of_its_own_weighs_scalars_by_rules() -> None:
    for kind in (FedKSeed, HiSo):
        flat = kind(rate=1e-2, directions=3, local_steps=1, step="rms")
        listed = kind(rate=1e-2, directions=3, local_steps=1, rules=(Weighting(step="rms"), Sgd()))
        listed.check(SOME)
        ends = [each.apply(each.init(params(), 4), updates(each, 6), KEYS) for each in (flat, listed)]
        assert bits(ends[0]) == bits(ends[1])


# ---- in a recipe


def table(**algorithm: Any) -> dict[str, Any]:
    return {
        "name": "ruled",
        "rounds": 3,
        "algorithm": {"kind": "decomfl", "rate": 1e-3} | algorithm,
        "task": {"kind": "quadratic", "dimension": 50},
        "federation": {"clients": 4, "cohort": 4},
    }


def test_rules_are_written_only_where_they_are_used(tmp_path: Path) -> None:
    assert b"rules" not in recipes.canonical(recipes.decode(table()))
    listed = recipes.decode(table(rules=[{"kind": "weighting", "step": "rms"}, {"kind": "momentum", "beta": 0.5}]))
    assert listed.algorithm.rules == (Weighting(step="rms"), Momentum(beta=0.5))  # type: ignore[attr-defined]
    assert recipes.from_canonical(recipes.canonical(listed)) == listed
    file = tmp_path / "recipe.toml"
    file.write_text(recipes.to_toml(listed))
    assert "\nrules = [\n" in file.read_text()
    assert recipes.load(file) == listed


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([{"kind": "averging", "rounds": 3}], r"algorithm\.rules\[0\]\.kind = 'averging': .* averaging"),
        ([{"kind": "averaging", "round": 3}], r"unknown key algorithm\.rules\[0\]\.round: did you mean rounds"),
        ([{"kind": "averaging", "rounds": 0}, {"kind": "sgd"}], r"algorithm\.rules\[0\]\.rounds = 0 is not valid"),
        ([], "one at least"),
        ("sgd", "Expected `?array|expected array"),
    ],
)
def test_a_rule_that_is_wrong_is_named(rules, why) -> None:
    with pytest.raises((FedzeroError, msgspec.ValidationError), match=why):
        recipes.decode(table(rules=rules))


# ---- what every rule must do, for ours


OURS = {
    "auto-rate": AutoRate(),
    "averaging": Averaging(rounds=3),
    "reuse-factor": ReuseFactor(rounds=3),
    "weighting": Weighting(step="normalised"),
    "adam": Adam(),
}


@pytest.mark.parametrize("rule", OURS.values(), ids=OURS)
def test_ours_conform(rule) -> None:
    check_rule(rule, [each for each in rule_checks.CHECKS if each is not rule_checks.runs])


class Forgetful(Rule, tag="forgetful"):
    """Counts its steps where nobody else can see it, and writes into what it is given."""

    def update(self, steps: list[Step], state: Any, at: Any) -> tuple[list[Step], Any]:
        SEEN.append(at.round)
        for step in steps:
            step.scalars[:] *= len(SEEN)
        return steps, state


class Unbounded(Rule, tag="unbounded"):
    def update(self, steps: list[Step], state: Any, at: Any) -> tuple[list[Step], Any]:
        return [step._replace(weight=step.weight * 1e6) for step in steps], state


SEEN: list[int] = []


@pytest.mark.parametrize(
    ("rule", "why"),
    [(Forgetful(), "writes into the scalars(.|\\n)*|lead elsewhere"), (Unbounded(), "max_update_scale says")],
    ids=["forgetful", "unbounded"],
)
def test_the_checks_find_what_is_wrong(rule, why) -> None:
    with pytest.raises(CheckFailed, match=why):
        check_rule(rule, [rule_checks.folds_in_one_pass, rule_checks.keeps_scalars_and_bounds])
