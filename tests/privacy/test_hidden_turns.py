"""Who takes part where hosts draw: private coins of the right probability, each thrown once; and nothing else shows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slopes import Linear, Rows
from test_private_sums import private, scalars, silent

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.ledger.answers import Answers
from fedzero.links.gathering import repeatable
from fedzero.model.params import Params
from fedzero.model.updates import decode_update
from fedzero.oracles.contract import RowLosses
from fedzero.oracles.counted import Oracle
from fedzero.oracles.poisson import Poisson
from fedzero.recipe.sampling import HiddenTurns, PrivateBatches, PrivateCohorts
from fedzero.testing.trial import trial

CLIENTS = range(200)
CALLED = PrivateCohorts.__call__


def turns(folder: Path, rate: float = 0.3, seed: bytes | None = None) -> HiddenTurns:
    folder.mkdir(exist_ok=True)
    roots = PrivateBatches(partial(Answers, folder), close=True)
    if seed is not None:
        roots._entropy = repeatable(seed)
    return HiddenTurns(rate, roots)


def test_coins_have_the_probability_of_the_recipe_and_are_independent(tmp_path: Path) -> None:
    """Of n = 40 · 200 coins q n come up, within five standard deviations; so do q² n pairs of neighbours, and as many
    pairs of one client in neighbouring rounds. The numbers of a round have the variance of a binomial (its estimate
    from 40 rounds is within five of its own deviations)."""
    q, hidden = 0.3, turns(tmp_path, 0.3, b"seed")
    heads = np.zeros((40, len(CLIENTS)))
    for round in range(len(heads)):
        heads[round, hidden.taking(round, CLIENTS)] = 1
    for found, expected in ((heads, q), (heads[:, 1:] * heads[:, :-1], q * q), (heads[1:] * heads[:-1], q * q)):
        assert abs(found.mean() - expected) < 5 * np.sqrt(2 * expected / found.size)
    variance, counts = len(CLIENTS) * q * (1 - q), heads.sum(1)
    assert abs(counts.var(ddof=1) / variance - 1) < 5 * np.sqrt(2 / (len(heads) - 1))


def test_a_coin_is_thrown_once(tmp_path: Path) -> None:
    """Also where another process asks, or where others are asked first."""
    first = turns(tmp_path).taking(3, CLIENTS)
    again = turns(tmp_path)
    again.taking(3, [7])
    assert again.taking(3, CLIENTS) == first
    assert turns(tmp_path).taking(4, CLIENTS) != first != turns(tmp_path / "other").taking(3, CLIENTS)


def test_a_coin_is_on_the_disk_before_it_is_used(tmp_path: Path) -> None:
    turns(tmp_path).taking(0, range(5))
    with closing(Answers(tmp_path)) as answers:
        assert answers._one("SELECT count(*) FROM answers WHERE round = 0 AND length(answer) = 32") == (5,)


def test_without_noise_the_sum_is_that_of_the_clients_that_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same coins, thrown by the server and by hosts: equal sums. All reply, and only these are evaluated."""
    silent(monkeypatch)
    chosen = [(0, 2), (), (1, 2, 4)]
    monkeypatch.setattr(HiddenTurns, "taking", lambda self, round, clients: [c for c in chosen[round] if c in clients])
    found = []
    for name, how in (("server", {}), ("hosts", {"hosts": 5})):
        run = trial(tmp_path / name, private(rounds=3, **how))
        monkeypatch.setattr(PrivateCohorts, "__call__", CALLED if how else lambda self, round: chosen[round])
        inner = run.engine.inner
        made, all_made = inner._made, list[Any]()

        def client(number: int, made: Any = made, all_made: Any = all_made) -> Any:
            all_made.append(_with(made(number), number))
            return all_made[-1]

        inner._made = client
        replied = _replies(run)
        run.play(3)
        found.append(scalars(run))
        for number in range(5):
            queries = sum(each.oracle.queries for each in all_made if each.number == number)
            assert queries == 7 * sum(number in mine for mine in chosen)
        assert run.replayed().digest() == run.replica.digest()
        assert replied == ([set(range(5))] * 3 if how else [set(mine) for mine in chosen])
    assert found[0].any() and np.array_equal(*found)


def _with(client: Any, number: int) -> Any:
    context = client._context

    def of(exchange: int) -> Any:
        found = context(exchange)
        return replace(found, entropy=repeatable(repr((found.round, number)).encode()))

    client._context = of
    return client


def _replies(run: Any) -> list[set[int]]:
    found: list[set[int]] = []
    kept = run.engine._kept

    def keep(batch: Any, given: Any) -> Any:
        found[batch.asked :] = [set(given)]
        return kept(batch, given)

    run.engine._kept = keep
    send = run.engine.send

    def sent(asked: int, *rest: Any) -> None:
        found.append(set())
        send(asked, *rest)

    run.engine.send = sent
    return found


def test_a_row_that_fails_takes_no_other_row_with_it(tmp_path: Path) -> None:
    """At a host all errors of a row count as zero, not only those of fedzero: one row more or less must not change what
    the others add."""

    class Broken(Linear):
        def row_losses(self, base: Any, points: Any, batch: Any) -> Any:
            if (batch[1] == 8.0).any():
                raise ZeroDivisionError
            return super().row_losses(base, points, batch)

    lines, scales = np.ones((1, 6, 4)), np.ones((1, 6))
    scales[0, 2] = 8.0
    base, points = (
        Params.of_vector(torch.ones(4)),
        [Terms.of([1], np.array([c]), Domain.RADEMACHER) for c in (0.0, 0.5)],
    )
    ask = RowLosses(base, points, Poisson(1.0))
    whole = Oracle(Broken(0.0), Rows(lines, np.ones((1, 6))), Keys(b"k" * 32, b"k" * 32), 0)
    broken = Broken(0.0), Rows(lines, scales), Keys(b"k" * 32, b"k" * 32), 0
    found = Oracle(*broken, failures=Exception).answer(0, ask)
    assert np.isnan(found[:, 2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, 1), np.delete(whole.answer(0, ask), 2, 1))
    with pytest.raises(ZeroDivisionError):
        Oracle(*broken).answer(0, ask)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"hosts": 6}, "privacy.hosts = 6, and there are 5 clients"),
        ({"hosts": 3, "sum": "secure"}, "at least 4 hosts"),
        ({"population": 4}, "privacy.population = 4, and there are 5 clients"),
    ],
)
def test_hosts_that_cannot_be(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(FedzeroError, match=why):
        private(**wrong)


def test_figures_of_hosts_that_draw(tmp_path: Path) -> None:
    """The server's figure is that of readers, since it does not see who took part; where it adds the noise there is
    none. Fewer hosts than clients are counted on where several clients are at one."""
    drawn, hosts = (private(sigma=2.0, noise="local", **how) for how in ({}, {"hosts": 5}))
    for recipe, same in ((drawn, False), (hosts, True)):
        readers, server = recipe.privacy.spent(recipe.federation, 6, 4, 4)
        assert server is not None and (readers == server) == same and readers <= server
    central = private(hosts=5)
    assert central.privacy.spent(central.federation, 6, 4, 4)[1] is None
    many = private(clients=40, cohort=10, sum="secure", noise="distributed", hosts=7)
    assert many.privacy._honest(many.federation) == 7 - 2 - 2, "7 members: 2 may collude, 2 may be away"
    assert central.privacy.asked(central.federation) == 3.0 < central.privacy.answering(central.federation) == 5
    run = trial(tmp_path, hosts)
    run.play(1)
    assert decode_update(run.records[0].update or b"") and run.records[0].queries == 3 * 7
