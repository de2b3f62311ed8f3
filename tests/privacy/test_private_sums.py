"""Sums of private runs: plain and secure, with the server's noise and that of hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import recipe_of

from entropy import given_entropy
from fedzero.errors import FedzeroError
from fedzero.gatherings.private import central, secure
from fedzero.ledger.records import spent_of
from fedzero.links.contract import Contribution
from fedzero.links.gathering import HostContext
from fedzero.methods import DeComFL
from fedzero.model.updates import decode_update, unpack
from fedzero.privacy.integers import choose_grid
from fedzero.privacy.mechanism import Mechanism
from fedzero.recipe import recipe as recipes
from fedzero.testing.trial import Trial, trial

METHOD = DeComFL(rate=2e-3, directions=6)
KINDS = ({}, {"sum": "secure"}, {"sum": "secure", "noise": "distributed"}, {"noise": "local"})
NAMES = ["central", "secure", "distributed", "local"]


def private(rounds: int = 4, clients: int = 5, cohort: int = 3, method: Any = METHOD, **privacy: Any) -> recipes.Recipe:
    recipe = recipe_of(method, clients=clients, cohort=cohort)
    table = msgspec.to_builtins(recipe) | {"rounds": rounds, "evaluate_every": 2}
    return recipes.decode(table | {"privacy": {"sigma": 1.0} | privacy})


def scalars(run: Trial) -> np.ndarray:
    return np.stack([unpack(decode_update(record.update or b"").scalars) for record in run.records])


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((central, "rounded_gaussian"), (central, "discrete_gaussian"), (secure, "discrete_gaussian")):
        monkeypatch.setattr(module, name, lambda size, count, draws: np.zeros(count, np.int64))


@pytest.mark.parametrize("kind", KINDS[1:], ids=NAMES[1:])
def test_without_noise_all_sums_are_the_same_to_the_integer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str]
) -> None:
    """Same coins and same roundings: the sums differ by nothing, whoever adds them up, also where nobody is drawn."""
    silent(monkeypatch)
    found = []
    for name, how in (("plain", {}), ("other", kind)):
        run = trial(tmp_path / name, private(probability=0.3, **how))
        source = np.random.default_rng(5)
        run.server.schedule.cohort._entropy = source.bytes
        run.engine.inner._made = _with(run.engine.inner._made, np.random.default_rng(6).bytes)
        run.play(4)
        found.append(scalars(run))
        assert run.replayed().digest() == run.replica.digest()
        assert all(record.cohort == () == record.refused for record in run.records)
    assert found[0].any() and np.array_equal(*found)


def _with(made: Any, entropy: Any) -> Any:
    def client(number: int) -> Any:
        found = made(number)
        found._entropy = entropy
        return found

    return client


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_the_noise_of_a_sum_has_the_deviation_that_is_accounted_for(tmp_path: Path, kind: dict[str, str]) -> None:
    """Rounds of which nobody takes part are noise alone: of variance σ²C², or of all n hosts n/h of it (five standard
    deviations of its estimate)."""
    clients, rounds, sigma = 5, 4, 2.0
    method = DeComFL(rate=2e-3, directions=90)
    recipe = private(rounds, clients, 1, method, probability=1e-9, sigma=sigma, clip=3.0, **kind)
    run = trial(tmp_path, recipe)
    run.engine._entropy = np.random.default_rng(8).bytes  # of hosts
    with given_entropy(noise=b"noise"):
        run.play(rounds)
    noise = scalars(run) * (1e-9 * clients)
    honest = recipe.privacy._honest(recipe.federation) or clients
    expected = sigma * 3.0 * np.sqrt(clients / honest)
    assert abs(noise.std() / expected - 1) < 5 / np.sqrt(2 * noise.size)


def test_hosts_draw_their_noise_once_and_by_themselves(tmp_path: Path) -> None:
    recipe = private(noise="local")
    gathering = recipe.privacy.chain(recipe.federation, 6).gathering
    mine = {0: Contribution(np.zeros(6, np.float32), None)}

    def answer(entropy: Any) -> bytes:
        return next(gathering.at_host(mine, HostContext(0, 0, 6, b"", entropy)))

    one, again, other = (answer(np.random.default_rng(seed).bytes) for seed in (1, 1, 2))
    assert one == again != other and len(one) == 48


def test_what_is_spent_against_whom(tmp_path: Path) -> None:
    """Readers see no cohort; the server drew it, and knows it where clients are the units."""
    grid = choose_grid(1.0, 6, units=100)
    known, hidden = (Mechanism(grid, 0.1, 1e-3, honest=5, secret=secret) for secret in (False, True))
    readers, server = known.figures(2.0, 10)
    assert server is not None and server > 3 * readers and hidden.figures(2.0, 10) == (readers, readers)
    assert Mechanism(grid, 0.1, 1e-3).figures(2.0, 10)[1] is None
    for mechanism in (known, hidden, Mechanism(grid, 1.0, 1e-3, honest=1)):
        sigma = mechanism.sigma(4.0, 10)
        assert 3.9 < mechanism.budgeted(sigma, 10) <= 4.0 + 1e-9
    run = trial(tmp_path, private(sum="secure", noise="distributed"))
    run.play(1)
    spent = spent_of(run.records[0])
    assert spent is not None and spent[1] is not None and spent[1] > spent[0] > 0


def test_what_does_not_fit_together_is_refused() -> None:
    for wrong, why in (
        ({"noise": "distributed"}, "hides nothing from a server"),
        ({"noise": "local", "sum": "secure"}, "protects by itself"),
        ({"sum": "secure", "clients": 3}, "at least 4 hosts"),
    ):
        with pytest.raises(FedzeroError, match=why):
            private(**wrong)
