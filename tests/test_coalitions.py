"""What is said of a rule before a run begins: how likely a cohort is that breaks it, and what coalitions do to it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import Service
from fedzero.links.krum import Krum, MultiKrum
from fedzero.links.median import Median
from fedzero.links.nnm import NearestNeighbours
from fedzero.links.server_clip import ServerClip
from fedzero.links.trimmed_mean import TrimmedMean
from fedzero.methods.contract import Federation
from fedzero.recipe import coalitions
from fedzero.recipe import recipe as recipes
from fedzero.recipe.coalitions import in_some_round, more_than, warnings
from fedzero.recipe.environment import Environment
from fedzero.recipe.plan import cohort_of
from fedzero.recipe.secret import keys_of
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites


def recipe(*filters: dict[str, Any], attack: float | None = None, **federation: Any) -> recipes.Recipe:
    engine = {} if attack is None else {"attack": {"kind": "adaptive", "fraction": attack}}
    return recipes.decode(
        {
            "name": "chosen",
            "rounds": 4,
            "algorithm": {"kind": "decomfl", "rate": 1e-3},
            "task": {"kind": "quadratic", "dimension": 20},
            "filters": list(filters),
            "federation": {"clients": 20, "cohort": 10} | federation,
            "engine": {"device": "cpu"} | engine,
        }
    )


@pytest.mark.parametrize(("clients", "cohort", "attackers"), [(8, 3, 3), (7, 7, 2), (9, 4, 0), (6, 2, 6)])
def test_the_probability_is_that_of_counting_all_cohorts(clients, cohort, attackers) -> None:
    federation = Federation(clients=clients, cohort=cohort)
    every = list(itertools.combinations(range(clients), cohort))
    for f in range(cohort + 1):
        counted = sum(sum(client < attackers for client in each) > f for each in every)
        assert more_than(f, attackers, federation) == pytest.approx(counted / len(every))


def test_with_replacement_too() -> None:
    every = list(itertools.product(range(4), repeat=3))
    for f in range(4):
        counted = sum(sum(client < 1 for client in each) > f for each in every)
        federation = Federation(clients=4, cohort=3, replacement=True)
        assert more_than(f, 1, federation) == pytest.approx(counted / len(every))


def test_the_cohorts_of_a_run_are_drawn_so() -> None:
    made = recipe(attack=0.4)
    keys, who = keys_of(made, None), frozenset(range(8))
    counts = [len(who & set(cohort_of(keys, round, made.federation))) for round in range(4000)]
    for f in (3, 4, 5):
        p = more_than(f, 8, made.federation)
        assert np.mean(np.array(counts) > f) == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 4000))


def test_some_round_of_many() -> None:
    assert in_some_round(0.0, 100) == 0
    assert in_some_round(1.0, 100) == 1
    assert in_some_round(0.5, 2) == pytest.approx(0.75)
    assert in_some_round(1e-12, 10**6) == pytest.approx(1e-6, rel=1e-5)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(fraction=0.3), Krum(), MultiKrum(fraction=0.4)])
@pytest.mark.parametrize("count", [5, 8, 20])
def test_what_a_rule_withstands_does_not_carry_it_away(rule, count) -> None:
    """f far away together: the result is within what the others send."""
    f = rule.withstands(count)
    assert 0 < f < count / 2
    honest = np.random.default_rng(count).uniform(-1, 1, (count - f, 3)).astype(np.float32)
    rows = dict(enumerate([*honest, *[np.full(3, 1e6, np.float32)] * f]))
    found = rule.combine(rows, dict.fromkeys(rows, 1))
    assert (honest.min(axis=0) <= found).all() and (found <= honest.max(axis=0)).all()


def test_a_chain_withstands_what_its_weakest_rule_does() -> None:
    nnm, median = {"kind": "nnm", "fraction": 0.1}, {"kind": "median"}
    assert NearestNeighbours(fraction=0.1).withstands(10) == 1
    assert ServerClip(norm=1.0).withstands(10) is None
    assert coalitions.withstood(recipe(nnm, median), 10) == 1
    assert coalitions.withstood(recipe(median), 10) == 4
    assert coalitions.withstood(recipe(), 10) == 4
    assert coalitions.withstood(recipe(bound=0), 10) is None


def test_a_cohort_that_breaks_the_rule_is_told_of_with_its_probability() -> None:
    """8 of 20 attack, 10 are asked: more than 4 with (20 choose 10)⁻¹ Σ (8 choose k)(12 choose 10 − k) = 32.5 %."""
    (line, *_) = warnings(recipe({"kind": "median"}, attack=0.4))
    assert line.startswith(
        "median withstands 4 attackers among the 10 clients of a round; if 8 of the 20 clients attack"
    )
    assert "a probability of 32.5 %, and some of 4 rounds with 79.2 %" in line and "federation.cohort" in line
    (line, *_) = warnings(recipe({"kind": "trimmed-mean", "fraction": 0.2}))
    assert "withstands 2 attackers" in line and "if 4 of the 20 clients attack" in line
    assert not warnings(recipe({"kind": "median"}, attack=0.4, cohort=20)), "all are asked"
    assert not warnings(recipe({"kind": "median"})), "it says nothing of attackers"
    assert not warnings(recipe(attack=0.4, bound=0)), "no rule was chosen"
    assert "some of 4 rounds with 100 %" in warnings(recipe({"kind": "krum", "fraction": 0.49}, cohort=20))[0]


@pytest.mark.parametrize("kind", ["krum", "multi-krum"])
def test_rules_that_coalitions_lead_are_told_of_with_figures(kind) -> None:
    (line,) = warnings(recipe({"kind": kind}, cohort=20))
    assert line.startswith(f"{kind} picks contributions") and "%" in line and "robustness.md" in line


def test_the_bound_alone_is_told_of_where_somebody_attacks() -> None:
    assert not warnings(recipe(cohort=20))
    for found in (warnings(recipe(cohort=20, attack=0.2)), warnings(recipe(cohort=20), real=True)):
        assert "federation.bound" in found[-1] and "robustness.md" in found[-1]
    assert not warnings(recipe({"kind": "median"}, cohort=20), real=True)


class Hearing(Silent):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, text: str) -> None:
        self.heard.append(text)


def test_it_is_said_when_a_run_begins_and_not_again(tmp_path: Path) -> None:
    made, watch = recipe({"kind": "krum"}), Hearing()
    session.start(made, tmp_path / "run", Environment(), watch)
    assert watch.heard == warnings(made) != []
    session.resume(tmp_path / "run", Environment(), watch)
    assert watch.heard == warnings(made)


def test_it_is_said_where_a_run_is_served(tmp_path: Path) -> None:
    made, watch, link = recipe(), Hearing(), LocalSites(tmp_path / "sites", ["north"])
    run_at_sites(made, tmp_path / "run", Environment(), watch, Service(link, lambda: link.names))
    assert watch.heard == warnings(made, real=True) != []
