"""Runs with [privacy] for clients: what is summed, what is drawn, and what a ledger has of it."""

from __future__ import annotations

import copy
from math import exp, lgamma, log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from harness import recipe_of

import fedzero
from entropy import given_entropy
from fedzero.errors import FedzeroError
from fedzero.gatherings.private import central
from fedzero.gatherings.private.units import Integers, PrivateUnits
from fedzero.ledger import replay
from fedzero.ledger.answers import files_of
from fedzero.ledger.records import Round, spent_of
from fedzero.ledger.store import Tampered
from fedzero.links.contract import ClientContext, Contribution
from fedzero.methods import DeComFL, FedAvg, ScaffoldZO
from fedzero.model.updates import decode_update, unpack
from fedzero.protocol.messages import decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.privacy import most_drawn
from fedzero.recipe.sampling import PrivateCohorts
from fedzero.runs import session
from fedzero.runs.growing import Growth
from fedzero.runs.progress import Silent
from fedzero.testing.trial import Trial, trial
from ledgers import first_bad_round

METHOD = DeComFL(rate=2e-3, directions=6)


def private(method: Any = METHOD, rounds: int = 4, clients: int = 8, cohort: int = 3, **privacy: Any) -> recipes.Recipe:
    recipe = recipe_of(method, clients=clients, cohort=cohort)
    table = msgspec.to_builtins(recipe) | {"rounds": rounds, "evaluate_every": 2}
    return recipes.decode(table | {"privacy": {"sigma": 1.0} | privacy})


def played(folder: Path, recipe: recipes.Recipe, rounds: int = 4) -> Trial:
    run = trial(folder, recipe)
    run.play(rounds)
    return run


def test_without_noise_an_update_is_the_sum_of_normalised_clients_over_the_expected_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(central, "rounded_gaussian", lambda deviation, count, entropy: np.zeros(count, np.int64))
    with given_entropy(coins=b"coins"):
        one, other = trial(tmp_path / "private", private()), trial(tmp_path / "plain", recipe_of(METHOD, 8, 3))
    cohort = one.server.schedule.cohort(0)
    assert len(cohort) > 1
    one.play(1)
    sending = other.server.delivery.instructions(0, cohort)
    other.engine.send(0, 0, sending.messages, sending.which)
    replies = [decode_reply(arrival.data, len(arrival.data)) for _ in cohort for arrival in other.engine.receive(0.0)]
    told = [other.setup.chain.decode(reply.values, 6).astype(np.float64) for reply in replies]
    assert len(told) == len(cohort)
    expected = sum((values / np.linalg.norm(values) for values in told), np.zeros(6)) / 3
    update = one.records[0].update
    assert update is not None
    found = unpack(decode_update(update).scalars)
    step = 2.0**-one.setup.chain.gathering.exponent
    np.testing.assert_allclose(found, expected, atol=len(cohort) * step / 3 + 1e-6)


def test_noise_has_the_deviation_that_the_accountant_counts(tmp_path: Path) -> None:
    """Rounds of which nobody takes part are noise alone: σ C/(qn) in each scalar, five deviations at most off."""
    recipe = private(DeComFL(rate=1e-9, directions=200), clients=1000, cohort=1, probability=1e-9, clip=2.0, sigma=3.0)
    with given_entropy(coins=b"coins", noise=b"noise"):
        run = played(tmp_path, recipe, 20)
    scalars = np.concatenate([unpack(decode_update(record.update or b"").scalars) for record in run.records])
    expected = 3.0 * 2.0 / (1e-9 * 1000)
    assert abs(scalars.std() / expected - 1) < 5 / np.sqrt(2 * scalars.size)
    assert abs(scalars.mean()) < 5 * expected / np.sqrt(scalars.size)


def test_a_ledger_does_not_name_clients_and_its_costs_are_constants(tmp_path: Path) -> None:
    with given_entropy(coins=b"coins"):
        run = played(tmp_path, private(clients=8, cohort=2), 5)
    sizes = {len(run.server.schedule.cohort(round)) for round in range(5)}
    assert len(sizes) > 1, "the draws differ in size, so constants are worth something"
    for record in run.records:
        assert (record.cohort, record.refused, record.remembered, record.loss) == ((), (), (), None)
        assert not record.bounded and not record.asked
        assert record.update is not None
    assert len({(r.bytes_up, r.bytes_down, r.queries) for r in run.records[1:]}) == 1
    assert run.records[0].queries == 2 * METHOD.cost(0, run.setup.plan.scale).queries
    spent = [spent_of(record) or (0.0, 0.0) for record in run.records]
    assert spent == sorted(spent) and spent[0][0] > 0 and all(server is None for _, server in spent)
    assert run.replayed().digest() == run.replica.digest()


def test_clients_that_fail_or_say_nonsense_count_as_zero_and_nobody_is_told(tmp_path: Path) -> None:
    bounds, coder = PrivateUnits(clip=1.0, normalise=True, exponent=12), Integers(exponent=12)
    context = ClientContext(lambda: np.random.default_rng(0), entropy=bytes)
    for strange in (np.nan, np.inf, 0.0):
        values = np.full(5, strange, np.float32)
        left = bounds.on_client(Contribution(values, 1.0), context)
        assert left.loss is None and coder.encode(left.values, context.draw)[1] == bytes(20)


def test_every_client_has_its_own_coin(tmp_path: Path) -> None:
    """Poisson: sizes of cohorts vary as a binomial's; of two clients each is drawn independently (five deviations)."""
    plan = trial(tmp_path / "run", private(clients=40, cohort=10)).setup.plan
    cohorts = PrivateCohorts(tmp_path, plan, np.random.default_rng(1).bytes)
    drawn = [cohorts(round) for round in range(400)]
    sizes = np.array([len(cohort) for cohort in drawn])
    q, n = 0.25, 40
    assert abs(sizes.mean() - n * q) < 5 * np.sqrt(n * q * (1 - q) / 400)
    assert abs(sizes.var() / (n * q * (1 - q)) - 1) < 5 * np.sqrt(2 / 400)
    together = sum({0, 1} <= set(cohort) for cohort in drawn)
    assert abs(together - 400 * q * q) < 5 * np.sqrt(400 * q * q)
    assert drawn[:3] == [PrivateCohorts(tmp_path, plan)(round) for round in range(3)], "a draw is durable"


def test_two_runs_of_a_recipe_draw_other_noise_and_other_clients(tmp_path: Path) -> None:
    one, other = played(tmp_path / "1", private()), played(tmp_path / "2", private())
    assert [r.update for r in one.records] != [r.update for r in other.records]
    drawn = [[run.server.schedule.cohort(r) for r in range(12)] for run in (one, other)]
    assert drawn[0] != drawn[1], "96 coins"


def test_a_run_ends_verified_with_its_budget_spent_and_keeps_no_cohort(tmp_path: Path) -> None:
    found = session.start(_with_budget(2.0, 5), tmp_path, Environment(), Silent())
    assert found.complete and found.epsilon == pytest.approx(2.0, rel=1e-2) and found.epsilon_server is None
    assert not any(path.exists() for path in files_of(tmp_path))
    assert first_bad_round(tmp_path) is None
    with pytest.raises(FedzeroError, match=r"privacy\.epsilon = 2 is less than"):
        session.resume(tmp_path, Environment(), Silent(), growth=Growth(rounds=9))


def _with_budget(epsilon: float, rounds: int) -> recipes.Recipe:
    table = msgspec.to_builtins(private(rounds=rounds))
    table["privacy"] = {"epsilon": epsilon}
    return recipes.decode(table)


def test_a_ledger_that_takes_back_what_was_spent_is_not_read(tmp_path: Path) -> None:
    run = trial(tmp_path, private())
    run.play(2)
    last = msgspec.structs.replace(run.records[-1], round=2)
    for record in (msgspec.structs.replace(last, spent=(0.0, None)), Round(2, (), last.update, False, 0, 0, 0, None)):
        with pytest.raises(Tampered, match=r"ε|budget"):
            replay.read(run.ledger).outline.note(record, b"", 0.0)


def test_what_cannot_be_accounted_for_is_refused(tmp_path: Path) -> None:
    table = msgspec.to_builtins(private())
    refused = (
        ({"filters": [{"kind": "clip", "norm": 1.0}]}, "leave out filters"),
        ({"sampling": "private"}, "leave out sampling"),
        ({"engine": table["engine"] | {"attack": {"kind": "sign-flip", "fraction": 0.3}}}, r"engine\.attack"),
        ({"federation": table["federation"] | {"bound": 1.5}}, r"federation\.bound"),
        ({"federation": table["federation"] | {"sync": True}}, r"federation\.sync"),
        ({"federation": table["federation"] | {"replacement": True}}, r"federation\.replacement"),
        ({"privacy": {"sigma": 1.0, "delta": 0.5}}, r"privacy\.delta = 0\.5 is too large"),
        ({"privacy": {}}, "give epsilon"),
        ({"privacy": {"sigma": 1.0, "unit": "example", "clip": 1.0}}, "population"),
        ({"privacy": {"sigma": 1.0, "unit": "example"}}, "needs a clip"),
        ({"privacy": {"sigma": 1.0, "unit": "person", "clip": 1.0}}, "go together"),
    )
    for change, why in refused:
        with pytest.raises(FedzeroError, match=why):
            recipes.decode(table | change)
    for method, why in ((ScaffoldZO(rate=1e-3), "privacy"), (FedAvg(rate=0.1, local_steps=1), "privacy")):
        changed = table | {"algorithm": msgspec.to_builtins(method)}
        with pytest.raises(FedzeroError, match=why):
            trial(tmp_path / method.name, recipes.decode(changed))


def test_a_recipe_without_it_has_the_bytes_of_before() -> None:
    assert b"privacy" not in recipes.canonical(recipe_of(METHOD))
    recipe = private()
    assert recipes.from_canonical(recipes.canonical(recipe)) == recipe
    assert recipes.decode(msgspec.toml.decode(recipes.to_toml(recipe))) == recipe


def test_more_units_than_are_counted_are_never_drawn() -> None:
    """An exact binomial tail, against Bernstein's bound."""
    for n, q in ((1000, 0.01), (65_800, 512 / 65_800), (50, 0.5)):
        most = most_drawn(n, q)

        def tail(k: int, n: int = n, q: float = q) -> float:
            return exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(q) + (n - k) * log(1 - q))

        assert most == n or sum(tail(k) for k in range(most + 1, min(n, most + 2000) + 1)) < 1e-19


def test_from_python_it_needs_public_test_data(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    began = copy.deepcopy(model)
    data = [(torch.randn(20, 4), torch.randint(0, 2, (20,))) for _ in range(4)]
    how: Any = {"loss": torch.nn.functional.cross_entropy, "method": METHOD, "privacy": fedzero.Privacy(sigma=1.0)}
    for wrong, why in (({}, "public data"), ({"test": data[0], "validation": 0.1}, "share of the clients' data")):
        with pytest.raises(FedzeroError, match=why):
            fedzero.train(model, data, out=tmp_path, rounds=2, progress=False, **how, **wrong)
    made = fedzero.train(model, data, out=tmp_path, rounds=2, progress=False, test=data[0], **how)
    assert made.summary.epsilon and made.recipe.privacy
    again = fedzero.train(began, data, out=tmp_path, progress=False, test=data[0], **how | {"privacy": None})
    assert again.summary.ledger_head == made.summary.ledger_head, "what is not said is as in the run"
    with pytest.raises(FedzeroError, match="minimise has no privacy"):
        fedzero.minimise([lambda x: 0.0], bounds=[(0, 1)], privacy={"epsilon": 1.0})
    with pytest.raises(FedzeroError, match="each would be a release"):
        fedzero.tune(msgspec.to_builtins(private()), {"algorithm.rate": [0.1, 0.2]}, out=tmp_path / "tuned")
