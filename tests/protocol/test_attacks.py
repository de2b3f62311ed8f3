"""Attackers in simulations: who they are, what they send, and that no real site ever plays them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.directions import Keys
from fedzero.engines.remote.engine import Service
from fedzero.errors import FedzeroError
from fedzero.links.bound import Bound
from fedzero.protocol.attacks import Adaptive, Constant, FlippedLabels, LabelFlip, LittleIsEnough, Scaling, SignFlip
from fedzero.protocol.coalition import Seen, most_harmful
from fedzero.protocol.engine import arrivals
from fedzero.protocol.messages import decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.plan import cohort_of
from fedzero.recipe.setup import chain_of, prepare
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites

OWN = np.array([1.0, -2.0, 3.0], np.float32)
HONEST = [np.array(row, np.float32) for row in ([0.0, 1.0, 2.0], [2.0, 1.0, 4.0])]


def recipe(attack: dict[str, Any] | None, *filters: dict[str, Any], **algorithm: Any) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "attacked",
            "rounds": 4,
            "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 6} | algorithm,
            "task": {"kind": "quadratic", "dimension": 20},
            "filters": list(filters),
            "federation": {"clients": 10, "cohort": 10, "bound": 0},
            "engine": {"device": "cpu", "merge": False} | ({} if attack is None else {"attack": attack}),
        }
    )


@pytest.mark.parametrize(
    ("attack", "sent"),
    [
        (SignFlip(), [-1, 2, -3]),
        (SignFlip(factor=10.0), [-10, 20, -30]),
        (Scaling(factor=3.0), [3, -6, 9]),
        (Constant(value=7.0), [7, 7, 7]),
        (LittleIsEnough(z=0.5), [0.5, 1.0, 2.5]),
        (LabelFlip(), OWN),
    ],
)
def test_what_they_send(attack, sent) -> None:
    found = attack.sent(OWN, HONEST)
    assert found.dtype == np.float32
    assert found.tolist() == list(sent)


def test_what_is_beyond_float32_would_be_refused() -> None:
    assert np.isfinite(Scaling(factor=1e300).sent(OWN, HONEST)).all()


def test_who_attacks_follows_from_the_keys() -> None:
    chosen = [SignFlip(fraction=0.3).who(Keys.of_seed(seed), 20) for seed in (1, 1, 2)]
    assert len(chosen[0]) == 6
    assert chosen[0] == chosen[1] != chosen[2]


def replies_of(folder: Path, attack: dict[str, Any] | None, *filters: dict[str, Any], **algorithm: Any) -> Any:
    """What arrives in round 0, by client."""
    setup = prepare(recipe(attack, *filters, **algorithm), Environment())
    server = session.Server(setup.plan, setup.replica(), session.create(folder, setup.start))
    sending = server.delivery.instructions(0, range(10))
    with session.opened(setup, Environment(), Silent()) as found:
        found.clients.send(0, 0, sending.messages, sending.which)
        arrived = {a.client: decode_reply(a.data, 1 << 20) for a in arrivals(found.clients)}  # type: ignore
    wanted = setup.plan.cost(0).replies[0]
    return {client: setup.chain.decode(reply.values, wanted) for client, reply in arrived.items()}


@pytest.mark.parametrize("algorithm", [{}, {"kind": "fedzo", "form": "dense"}], ids=["scalars", "models"])
def test_only_attackers_change_what_they_send(tmp_path: Path, algorithm) -> None:
    attack = {"kind": "sign-flip", "factor": 2.0, "fraction": 0.2}
    honest, attacked = (
        replies_of(tmp_path / name, given, **algorithm) for name, given in (("honest", None), ("attacked", attack))
    )
    who = SignFlip(fraction=0.2).who(Keys.of_seed(0), 10)
    assert len(who) == 2
    for client in honest:
        assert (attacked[client] == honest[client] * (-2 if client in who else 1)).all()


def test_they_collude(tmp_path: Path) -> None:
    """All send the same: the mean of the honest less so many of their deviations."""
    attacked = replies_of(tmp_path, {"kind": "little-is-enough", "z": 1.0, "fraction": 0.3})
    who = sorted(LittleIsEnough(fraction=0.3).who(Keys.of_seed(0), 10))
    rows = np.stack([attacked[c] for c in attacked if c not in who]).astype(np.float64)
    for client in who:
        np.testing.assert_allclose(attacked[client], rows.mean(0) - rows.std(0), rtol=1e-6)


def test_they_keep_to_the_filters_of_the_chain(tmp_path: Path) -> None:
    """What the chain does not leave is refused, so a wise attacker sends what it does leave."""
    run = recipe({"kind": "scaling", "factor": 1e6}, {"kind": "clip", "norm": 1.0}, {"kind": "quantise"})
    assert session.start(run, tmp_path / "run", Environment(), Silent()).refused == 0


def test_a_run_with_attackers_resumes_and_verifies(tmp_path: Path) -> None:
    run = recipe({"kind": "constant", "value": 5.0})
    whole = session.start(run, tmp_path / "run", Environment(), Silent())
    assert recorded.recipe_in(tmp_path / "run").engine.attack == Constant(value=5.0)
    assert session.resume(tmp_path / "run", Environment(), Silent()) == whole
    recorded.verified(tmp_path / "run", Environment())


class Pairs:
    clients = 3

    def batch(self, keys: Any, round: int, step: int, client: int) -> Any:
        return torch.zeros(2), torch.tensor([0, 9]) if client < 2 else torch.tensor([0.5, 1.5])


def test_labels_are_flipped_for_attackers_alone() -> None:
    shards = FlippedLabels(Pairs(), frozenset({1, 2}), 10)
    assert shards.batch(None, 0, 0, 0)[1].tolist() == [0, 9]
    assert shards.batch(None, 0, 0, 1)[1].tolist() == [9, 0]
    with pytest.raises(FedzeroError, match="pairs"):
        shards.batch(None, 0, 0, 2)


def test_no_site_plays_them(tmp_path: Path) -> None:
    link = LocalSites(tmp_path / "sites", ["north"])
    service = Service(link, lambda: link.names)
    with pytest.raises(FedzeroError, match="in a simulation"):
        run_at_sites(recipe({"kind": "sign-flip"}), tmp_path / "run", Environment(), Silent(), service)
    assert not (tmp_path / "run").exists()


# ---- attackers who know the rule

ADAPTIVE = {"kind": "adaptive", "fraction": 0.4}
RULES: dict[str, tuple[float, list[dict[str, Any]]]] = {
    "mean": (0.0, []),
    "bound": (1.5, []),
    "krum": (0.0, [{"kind": "krum", "fraction": 0.3}]),
    "multi-krum": (0.0, [{"kind": "multi-krum", "fraction": 0.3}]),
    "median": (0.0, [{"kind": "median"}]),
    "trimmed-mean": (0.0, [{"kind": "trimmed-mean", "fraction": 0.4}]),
    "nnm + median": (0.0, [{"kind": "nnm", "fraction": 0.4}, {"kind": "median"}]),
}


def with_bound(attack: dict[str, Any] | None, bound: float, *filters: dict[str, Any], **algorithm: Any) -> Any:
    made = recipe(attack, *filters, **algorithm)
    return msgspec.structs.replace(made, federation=msgspec.structs.replace(made.federation, bound=bound))


@pytest.mark.parametrize("rule", RULES)
def test_no_fixed_attack_harms_a_round_more(rule) -> None:
    """Against each rule: the outcome is turned farther from the honest mean than by any of the other attacks."""
    bound, filters = RULES[rule]
    chain, bounds = chain_of(recipe(None, *filters), 8), (Bound(factor=bound),) if bound else ()
    generator, weights = np.random.default_rng(3), dict.fromkeys(range(10), 1)
    for _ in range(10):
        honest = list((generator.standard_normal((6, 8)) + generator.standard_normal(8)).astype(np.float32))
        mean = np.mean(honest, axis=0, dtype=np.float64)

        def outcome(value, honest=honest):
            return chain.outcome(dict(enumerate([*honest, *[value] * 4])), weights, *bounds)

        def along(value, mean=mean, outcome=outcome):
            return float(mean @ outcome(value))

        own = honest[0]
        others = (SignFlip(), SignFlip(factor=10.0), Scaling(), LittleIsEnough())
        found = Adaptive().together(Seen(honest, outcome))
        assert found is not None and found.dtype == np.float32
        assert along(found) <= min(along(attack.sent(own, honest)) for attack in others)
        assert (found == Adaptive().together(Seen(honest, outcome))).all(), "nothing is drawn"


def test_krum_picks_what_attackers_have_agreed_on() -> None:
    """They are fewer than n ≥ 2f + 3 allows, and what they send is the outcome, against the honest mean."""
    chain = chain_of(recipe(None, {"kind": "krum", "fraction": 0.3}), 8)
    generator, weights = np.random.default_rng(1), dict.fromkeys(range(10), 1)
    honest = list((generator.standard_normal((7, 20)) + 0.2).astype(np.float32))

    def outcome(value):
        return chain.outcome(dict(enumerate([*honest, *[value] * 3])), weights)

    found = most_harmful(Seen(honest, outcome))
    assert (outcome(found) == found).all()
    assert float(np.mean(honest, axis=0) @ found) < 0


@pytest.mark.parametrize("rule", RULES)
def test_all_send_the_same_and_nothing_is_refused_and_it_resumes(tmp_path: Path, rule) -> None:
    bound, filters = RULES[rule]
    run = with_bound(ADAPTIVE, bound, *filters)
    whole = session.start(run, tmp_path / "run", Environment(), Silent())
    assert whole.refused == 0
    again = session.start(run, tmp_path / "again", Environment(), Silent())
    assert again.ledger_head == whole.ledger_head
    recorded.verified(tmp_path / "run", Environment())
    arrived = replies_of(tmp_path / "arrived", ADAPTIVE, *filters)
    who = sorted(Adaptive(fraction=0.4).who(Keys.of_seed(0), 10))
    assert len({arrived[client].tobytes() for client in who}) == 1
    assert len({values.tobytes() for values in arrived.values()}) == 10 - len(who) + 1


@pytest.mark.parametrize("filters", [[{"kind": "clip", "norm": 1.0}], [{"kind": "quantise"}], [{"kind": "top-k"}]])
def test_what_they_send_passes_the_chain(tmp_path: Path, filters) -> None:
    run = with_bound(ADAPTIVE, 1.5, *filters)
    assert session.start(run, tmp_path / "run", Environment(), Silent()).refused == 0


def test_where_all_of_a_round_attack_they_send_their_own(tmp_path: Path) -> None:
    attack = {"kind": "adaptive", "fraction": 1.0}
    honest, attacked = (replies_of(tmp_path / name, given) for name, given in (("honest", None), ("attacked", attack)))
    assert all((attacked[client] == honest[client]).all() for client in honest)


def test_methods_whose_numbers_are_not_comparable_are_refused(tmp_path: Path) -> None:
    run = recipe({"kind": "adaptive"}, kind="fedzo", form="seeded", directions=1)
    with pytest.raises(FedzeroError, match=r"engine\.attack = adaptive works against the mean"):
        session.start(run, tmp_path / "run", Environment(), Silent())


def test_who_is_drawn_twice_counts_twice_for_the_attackers_too() -> None:
    """The rule that they try is the server's, with its weights."""
    made = recipe(None, {"kind": "median"})
    federation = msgspec.structs.replace(made.federation, replacement=True)
    setup = prepare(msgspec.structs.replace(made, federation=federation), Environment())
    cohort = cohort_of(setup.keys, 0, federation)
    values = {client: np.array([float(client)] * 6, np.float32) for client in set(cohort)}
    assert len(values) < len(cohort)
    assert setup.plan.outcome(0, values)[0] == np.float32(np.median(cohort))
