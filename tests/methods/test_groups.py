"""Steps made of the replies to questions of several rounds: what they do, and which methods do not take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError, Refused
from fedzero.links.combining import mean
from fedzero.methods.contract import Scale, StepInputs
from fedzero.methods.decomfl import DeComFL
from fedzero.methods.rules.contract import Rule
from fedzero.methods.rules.kernels import Sgd
from fedzero.methods.rules.weighting import Weighting
from fedzero.methods.shared.groups import listed, summed, why_one_round
from fedzero.model.params import Params
from fedzero.model.updates import Group, Seeded, Stepped, Update, pack, unpack
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes

KEYS, CLIENTS = Keys.of_seed(4), 5
DECOMFL = {"kind": "decomfl", "rate": {"kind": "inverse-sqrt", "start": 0.05}, "directions": 3, "local_steps": 2}
WALK = {"rate": 0.02, "directions": 3, "local_steps": 2, "form": "seeded"}
MIXING: dict[str, dict[str, Any]] = {
    "plain": DECOMFL,
    "momentum": DECOMFL | {"optimizer": {"kind": "momentum"}},
    "adam": DECOMFL | {"optimizer": {"kind": "adam"}},
    "rms": DECOMFL | {"step": "rms"},
    "normalised": DECOMFL | {"step": "normalised"},
    "average": DECOMFL | {"average": 3, "average_from": 1},
    "hold": DECOMFL | {"distribution": "rank1", "rank": 2, "hold": 3},
    "pool": {"kind": "fedkseed", "rate": 0.02, "pool": 16, "local_steps": 2, "directions": 3},
    "pool-rounds": {"kind": "fedkseed", "rate": 0.02, "pool": 16, "local_steps": 2, "directions": 3, "order": "rounds"},
    "fedzo": {"kind": "fedzo"} | WALK,
    "fedprox": {"kind": "fedprox-zo", "gamma": 0.5} | WALK,
    "zo-adafl": {"kind": "zo-adafl"} | WALK,
}
REFUSING: dict[str, tuple[dict[str, Any], str]] = {
    "fedkseed-pro": ({"rate": 0.01, "pool": 16}, "its directions are drawn by the state"),
    "hiso": ({"rate": 0.01}, "its directions are scaled by the state"),
    "zofedht": (WALK, "beside the state"),
    "dzopa": ({"rate": 0.01, "form": "seeded"}, "beside the state"),
    "feedsign": ({"rate": 0.01}, "a vote"),
    "zone-s": ({"rate": 0.01, "form": "seeded"}, "beside the state"),
    "scaffold-zo": (WALK | {"type": "I"}, "several exchanges"),
    "fedavg": ({"rate": 0.01}, "numbers of the model"),
    "fedzo": ({"rate": 0.01, "form": "dense"}, "numbers of the model"),
    "decomfl": ({"rate": "auto"}, "'auto' compares the scalars of a round with those of the round before"),
}


def replica(table: dict[str, Any], dtype: torch.dtype = torch.float32) -> Replica:
    torch.manual_seed(1)
    tensors = {"w": torch.randn(4, 3).to(dtype), "b": torch.randn(5).to(dtype)}
    return Replica(recipes.method(table), Params(tensors), KEYS, CLIENTS)


def numbers(seed: int, count: int = 6) -> bytes:
    return pack(np.random.default_rng(seed).standard_normal(count).astype(np.float32))


def own(table: dict[str, Any]) -> tuple[int, ...]:
    """Clients of a group: of methods whose clients have directions of their own they are named."""
    return (2,) if table["kind"] in ("fedzo", "fedprox-zo", "zo-adafl") else ()


def mixed(table: dict[str, Any], steps: int = 7) -> list[Update]:
    """Steps of the last three rounds' replies, some of them of the round alone, and one in which nobody answered."""
    found: list[Update] = []
    for round in range(steps):
        asked = sorted({max(0, round - age) for age in ((0,), (0, 2), (1,), (0, 1, 2))[round % 4]})
        groups = tuple(Group(a, numbers(10 * round + a), own(table)) for a in asked)
        found.append(Seeded(round, numbers(round), own(table)) if asked == [round] else Stepped(round, groups))
    return [update for update in found if update.round != 4]


def bits(found: Replica) -> tuple[Any, ...]:
    return found.round, found.state.to_bytes(), found.state.numbers


@pytest.mark.parametrize("name", MIXING)
def test_a_step_of_one_fresh_group_is_the_step_of_a_round(name: str) -> None:
    table = MIXING[name]
    one, other = replica(table), replica(table)
    for round in range(5):
        one.follow([Seeded(round, numbers(round), own(table))])
        other.follow([Stepped(round, (Group(round, numbers(round), own(table)),))])
        assert bits(one) == bits(other)


@pytest.mark.parametrize("name", MIXING)
def test_many_at_once_and_one_at_a_time_and_from_a_snapshot_give_the_same_bits(name: str) -> None:
    table = MIXING[name]
    together, apart, begun = replica(table), replica(table), bits(replica(table))
    updates = mixed(table)
    together.follow(updates)
    for update in updates:
        apart.follow([update])
        fresh, state = replica(table), apart.state
        part = state.carry.part(0)
        taken = fresh.state.restored(state.to_bytes(part), state.round, state.numbers, part)
        if not part.params:
            taken.carry.rebuild_params(taken.params, KEYS)
        fresh.state = taken
        if part.vectors is None:
            assert bits(fresh)[1] == bits(apart)[1]
    assert bits(together) == bits(apart) != begun
    elsewhere = replica(table)
    elsewhere.follow(
        [Stepped(u.round, u.groups[:-1]) if isinstance(u, Stepped) and u.groups[1:] else u for u in updates]
    )
    assert bits(elsewhere) != bits(apart)


def direction(params: Params, key: int) -> torch.Tensor:
    return params.direction(Domain.GAUSSIAN, key).double()


def test_keys_and_p_follow_what_was_asked_and_the_rate_follows_the_step() -> None:
    """x_{v+1} = x_v − (η_v/P) Σ_a Σ_p c_a[p] z(a, p), with the P of every a."""
    table = DECOMFL | {"local_steps": 1, "directions": {"start": 2, "then": [[4, 3]]}}
    here, groups = replica(table), (Group(3, numbers(1, 2)), Group(5, numbers(2, 3)))
    before = here.state.params.vector().double()
    wanted = before.clone()
    for group in groups:
        c = unpack(group.scalars)
        for p, value in enumerate(c):
            wanted -= (
                0.05
                / np.sqrt(10)
                * float(value)
                / c.size
                * direction(here.state.params, KEYS.direction(group.asked, 0, p))
            )
    here.follow([Stepped(9, groups)])
    assert torch.allclose(here.state.params.vector().double(), wanted, atol=1e-6)
    assert not torch.allclose(before, wanted, atol=1e-3)
    with pytest.raises(FedzeroError, match="round 3 has 3 scalars where decomfl has 2"):
        replica(table).follow([Stepped(9, (Group(3, numbers(1, 3)),))])


def test_factors_that_are_held_are_those_of_what_was_asked() -> None:
    """Rounds 3 to 5 keep one right factor: a late reply goes along that of its own round."""
    method: Any = recipes.method(MIXING["hold"])
    low = [key & 0xFFFFFFFF for key in method.directions_of(None, KEYS, 3, 0, 3)]
    assert [key & 0xFFFFFFFF for key in method.directions_of(None, KEYS, 5, 0, 3)] == low
    one, other = replica(MIXING["hold"]), replica(MIXING["hold"])
    one.follow([Stepped(6, (Group(5, numbers(1)),))])
    terms = [
        term
        for k, row in enumerate(unpack(numbers(1)).reshape(2, 3))
        for term in zip(
            method.directions_of(None, KEYS, 5, k, 3), -0.05 / np.sqrt(7) / 3 * row.astype(float), strict=True
        )
    ]
    keys, coefficients = zip(*terms, strict=True)
    other.state.params.fold(Terms.of(keys, np.array(coefficients).astype(np.float32), method.stream))
    assert torch.equal(one.state.params.vector(), other.state.params.vector())


def test_keys_of_roundings_follow_the_step() -> None:
    """The replies to one question are in two steps: with its key, both would round by the same random numbers."""
    table = DECOMFL | {"local_steps": 1, "rate": 0.05}
    here, by_hand = replica(table, torch.bfloat16), replica(table, torch.bfloat16)
    method: Any = here.algorithm
    for step in (4, 5):
        here.follow([Stepped(step, (Group(3, numbers(step, 3)),))])
        keys, row = method.directions_of(None, KEYS, 3, 0, 3), unpack(numbers(step, 3))
        terms = Terms.of(keys, (-0.05 / 3 * row.astype(np.float64)).astype(np.float32), method.stream)
        by_hand.state.params.fold(terms, KEYS.rounding(step))
    assert here.digest() == by_hand.digest()


def test_a_step_that_is_stated_by_its_length_has_that_length() -> None:
    table = DECOMFL | {"local_steps": 1, "rate": 0.05, "step": "rms", "directions": {"start": 2, "then": [[4, 3]]}}
    method: Any = recipes.method(table)
    update = Stepped(9, (Group(3, numbers(1, 2)), Group(5, numbers(2, 3))))
    (step,) = Weighting(step="rms").local(method.own_steps(None, update, KEYS), None, None)
    coefficients = step.change().coefficients
    assert np.linalg.norm(coefficients) == pytest.approx(0.05, rel=1e-6)
    ratio = coefficients[0] / coefficients[2]
    c = [unpack(numbers(1, 2)), unpack(numbers(2, 3))]
    assert ratio == pytest.approx((c[0][0] / np.sqrt(2)) / (c[1][0] / np.sqrt(3)), rel=1e-5)


def test_a_window_of_mixed_steps_ends_in_the_mean_of_its_iterates() -> None:
    plain, averaged = replica(DECOMFL), replica(DECOMFL | {"average": 4})
    seen = []
    for round, asked in enumerate([(0,), (0, 1), (2,), (1, 2, 3)]):
        update = Stepped(round, tuple(Group(a, numbers(10 * round + a)) for a in asked))
        plain.follow([update])
        averaged.follow([update])
        seen.append(plain.state.params.vector().double())
    assert torch.allclose(averaged.state.params.vector().double(), torch.stack(seen).mean(0), atol=1e-6)


def gathered(asked: dict[int, int], discounts: dict[int, float], size: int = 6) -> StepInputs:
    given = {client: unpack(numbers(client, size)) for client in asked}
    return StepInputs(9, Scale(17, CLIENTS), KEYS, given, dict.fromkeys(asked, 1), mean, None, (), asked, discounts)


def test_replies_become_groups_by_what_was_asked() -> None:
    """c_a[p] = (1/K) Σ_{j asked in a} w_j g_j[p]"""
    asked, discounts = {0: 9, 1: 7, 2: 9, 4: 7}, {1: 3**-0.5, 4: 3**-0.5}
    given = gathered(asked, discounts)
    for found, wanted in ((summed(given), ((7, (1, 4)), (9, (0, 2)))), (listed(given), ((7, (1, 4)), (9, (0, 2))))):
        assert [group.asked for group in found.groups] == [round for round, _ in wanted]
    for group, clients in zip(summed(given).groups, ((1, 4), (0, 2)), strict=True):
        c = sum(discounts.get(i, 1.0) * given.contributions[i].astype(float) for i in clients) / 4
        assert np.array_equal(unpack(group.scalars), np.asarray(c, np.float32))
        assert group.clients == ()
    for group, clients in zip(listed(given).groups, ((1, 4), (0, 2)), strict=True):
        rows = [discounts.get(i, 1.0) / 4 * given.contributions[i].astype(float) for i in clients]
        assert np.allclose(unpack(group.scalars), np.concatenate(rows), rtol=1e-7)
        assert group.clients == clients


def test_fresh_replies_alone_are_written_as_before() -> None:
    for name in ("plain", "fedzo"):
        method = recipes.method(MIXING[name])
        fresh, late = gathered({}, {}), gathered({0: 9, 1: 8}, {1: 0.5})
        fresh = StepInputs(9, late.scale, KEYS, late.contributions, late.weights, mean)
        assert isinstance(method.aggregate(fresh), Seeded)
        assert isinstance(method.aggregate(late), Stepped)


@pytest.mark.parametrize("name", MIXING)
def test_methods_whose_replies_say_it_all_say_nothing_against_it(name: str) -> None:
    assert why_one_round(recipes.method(MIXING[name]).traits(Scale(17, CLIENTS)), 1) == ""


class Again(Rule, tag="again"):
    """A stranger's rule: every second round goes along the directions of the round before."""

    def asked(self, round: int) -> int:
        return round - round % 2


def test_a_rule_that_uses_directions_again_keeps_its_method_out() -> None:
    method = DeComFL(rate=0.01, rules=(Again(), Sgd()))
    why = why_one_round(method.traits(Scale(17, CLIENTS)), 1)
    assert why == "algorithm.rules[0] (again) compares the scalars of a round with those of the round before"
    assert why_one_round(DeComFL(rate=0.01, rules=(Sgd(),)).traits(Scale(17, CLIENTS)), 1) == ""


@pytest.mark.parametrize("name", REFUSING)
def test_the_others_say_why_not(name: str) -> None:
    table, why = REFUSING[name]
    here = replica({"kind": name} | table)
    assert why in why_one_round(here.traits, here.exchanges)
    with pytest.raises(Refused, match=f"which {name} does not allow: .*{why}"):
        here.follow([Stepped(2, (Group(1, numbers(1)),))])


def test_a_step_names_clients_that_there_are() -> None:
    here = replica(MIXING["fedzo"])
    with pytest.raises(Refused, match="names client 5 of 5"):
        here.follow([Stepped(2, (Group(1, numbers(1), (5,)),))])
    with pytest.raises(Refused, match="do not fit"):
        here.follow([Stepped(2, (Group(1, numbers(1)),))])  # nobody's
