"""[privacy] on devices: nothing but bounded integers leaves, ε is counted without amplification, at the server and on
the device; noise is never drawn twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import harness
import msgspec
import numpy as np
import pytest
from fedzero_client import cli, noise, packing
from fedzero_client import plan as device_plan
from fedzero_client.budget import Journal, Limit, epsilon_of
from fedzero_client.errors import ClientError
from fedzero_client.model import Model
from fedzero_client.privacy import Privacy
from fedzero_client.turn import Rows, Worker
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from devices.fleet import data_of, fleet, made, recipe_of
from devices.test_device_sessions import House, order
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.hub import Declined, Said, Went
from fedzero.engines.devices.sums import Sums
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.folder import PRIVACY
from fedzero.ledger.records import PrivateRound
from fedzero.methods import DeComFL
from fedzero.privacy import gaussian, renyi
from fedzero.privacy.integers import choose_grid, clipped, normalised, quantised
from fedzero.privacy.noise import discrete_gaussian
from fedzero.protocol.messages import Reply, decode_reply, encode_reply, encode_work
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import prepare
from fedzero.runs import session, statement
from fedzero.runs.progress import Silent
from ledgers import first_bad_round, rounds_of


def private(folder: Path, engine: dict[str, Any] | None = None, **privacy: Any) -> Recipe:
    table = msgspec.to_builtins(recipe_of(folder, engine))
    table["federation"] |= {"bound": 0.0}
    return recipes.decode(table | {"privacy": {"epsilon": 4.0, "present": True} | privacy})


def test_three_devices_make_a_run_with_privacy(tmp_path: Path) -> None:
    with fleet(tmp_path / "run", tmp_path) as processes:
        session.start(private(tmp_path), tmp_path / "run", Environment(), Silent())
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert first_bad_round(tmp_path / "run") is None
    rounds = rounds_of(tmp_path / "run")
    assert all(isinstance(record, PrivateRound) and not record.cohort and record.update for record in rounds)
    reply = len(encode_reply(Reply(0, 0, bytes(8), b"", b"", 5)))  # docs/ledger.md, "Costs of a private round"
    assert [(record.bytes_up, record.queries) for record in rounds] == [(3 * (reply + 4 * 4), 3 * 5)] * 8
    update = len(encode_work(1, 0, [rounds[0].update or b""]))
    assert [record.bytes_down for record in rounds] == [3 * len(encode_work(0, 0, [])), *[3 * update] * 7]
    found = statement.statement_in(tmp_path / "run")
    readers, server = found.figures
    assert readers.epsilon == pytest.approx(gaussian.epsilon_of(found.sigma, 8, found.delta)) and server.epsilon is None


def test_the_servers_figure_with_noise_of_devices(tmp_path: Path) -> None:
    """More places than devices: a cohort of those that are there, and the figures count every round."""
    recipe = private(tmp_path, {"least": 2}, noise="local", epsilon=30.0)
    recipe = msgspec.structs.replace(
        recipe, rounds=3, federation=msgspec.structs.replace(recipe.federation, clients=9, cohort=2)
    )
    with fleet(tmp_path / "run", tmp_path, ("socket", "poll")) as processes:
        session.start(recipe, tmp_path / "run", Environment(), Silent())
    assert [process.returncode for process in processes] == [0, 0]
    found = statement.statement_in(tmp_path / "run")
    readers, server = found.figures
    assert readers.epsilon == server.epsilon is not None and not readers.amplified and not server.amplified
    assert (found.adjacency, found.q, found.simulated) == ("one contributes nothing", 1.0, False)
    assert "without amplification" in statement.words(found)
    assert statement.read(tmp_path / "run" / PRIVACY)[0] == found
    rounds = rounds_of(tmp_path / "run")
    assert all(record.update for record in rounds) and len({record.bytes_up for record in rounds}) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"probability": 0.1}, "probability do not go together: .* no chance protects"),
        ({"hosts": 3}, "hosts do not go together"),
        ({"noise": "distributed", "sum": "secure"}, "secure"),
        ({"noise": "distributed"}, "distributed"),
        ({"unit": "example", "clip": 1.0, "population": 100}, "units are whole clients"),
    ],
)
def test_recipes_that_claim_amplification_are_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(FedzeroError, match=why):
        private(tmp_path, **changes)


def test_a_recipe_that_says_nothing_of_presence_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    recipe = private(tmp_path)
    chance = msgspec.structs.replace(recipe.privacy, present=msgspec.UNSET)
    with pytest.raises(FedzeroError, match=r"draws units by chance: .* set privacy\.present = true"):
        session.start(msgspec.structs.replace(recipe, privacy=chance), tmp_path / "run", Environment(), Silent())
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_presence_means_nothing_where_clients_are_always_there() -> None:
    table = msgspec.to_builtins(harness.recipe_of(DeComFL(rate=2e-3)))
    recipe = recipes.decode(table | {"privacy": {"sigma": 1.0, "present": True}})
    with pytest.raises(FedzeroError, match="clients are always there"):
        prepare(recipe, Environment())


def test_a_journal_of_the_server_does_not_count_the_data_of_devices(tmp_path: Path) -> None:
    with pytest.raises(FedzeroError, match="which count for themselves"):
        session.start(private(tmp_path), tmp_path / "run", Environment(journal=tmp_path / "journal"), Silent())


# ---- the device's half


@pytest.mark.parametrize("noise", ["central", "local"])
def test_a_plan_with_privacy_is_another_version_that_older_clients_refuse(tmp_path: Path, noise: str) -> None:
    recipe = recipes.with_noise(private(tmp_path, noise=noise, epsilon=30.0))
    data = plans.encode(plans.plan_of(made(recipe, tmp_path)))
    version, _, *rest = packing.unpack(data)
    found = device_plan.read(data)
    assert version == 2 and found.privacy is not None and found.privacy.sigma == recipe.privacy.sigma
    plain = msgspec.structs.replace(recipe, privacy=msgspec.UNSET)
    assert packing.unpack(plans.encode(plans.plan_of(made(plain, tmp_path)))) == [1, 1, *rest[:-1]]
    with pytest.raises(ClientError, match="version 3"):
        device_plan.read(packing.pack([3, 1, *rest]))
    with pytest.raises(ClientError, match="cannot be read"):  # a private plan without what it promises
        device_plan.read(packing.pack([2, 1, *rest[:-1]]))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [(0, 2, "unit 2"), (1, 3, "noise of kind 3"), (2, 3, "bound"), (4, 3.0, "integers"), (5, 0.0, "σ"), (6, 0.5, "δ")],
)
def test_a_device_believes_nothing_of_a_plan(tmp_path: Path, field: int, value: float, why: str) -> None:
    plan = packing.unpack(plans.encode(plans.plan_of(made(recipes.with_noise(private(tmp_path)), tmp_path))))
    plan[9][field] = value
    with pytest.raises(ClientError, match=why):
        device_plan.read(packing.pack(plan))


def test_a_limit_is_a_number_above_zero(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-1", "inf", "nan", "many"):
        with pytest.raises(SystemExit):
            cli.main(["join", "https://here/join#x", "--data", "my.npz", f"--epsilon={text}"])
        assert "--epsilon" in capsys.readouterr().err


class Bytes:
    """The same random bytes for both, in whatever pieces they are drawn."""

    def __init__(self, seed: int):
        self.random, self.left = np.random.default_rng(seed), b""

    def __call__(self, count: int) -> bytes:
        while len(self.left) < count:
            self.left += self.random.bytes(1 << 16)
        found, self.left = self.left[:count], self.left[count:]
        return found


@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32)),
    st.sampled_from([1.0, 0.3, 50.0]),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_the_integers_of_a_device_are_fedzeros(values: Any, clip: float, normalise: bool, seed: int) -> None:
    grid = choose_grid(clip, values.size, units=1000, message=1)
    ours = Privacy(1, 1, 2 if normalise else 1, clip, float(grid.scale), 1.0, 1e-5)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = (normalised if normalise else clipped)(values[None], clip)
        assert (ours.integers(values, Bytes(seed)) == quantised(rows, grid, Bytes(seed))[0]).all()
    assert ours.allowance(values.size) == grid.allowance


def test_the_noise_of_a_device_is_fedzeros(tmp_path: Path) -> None:
    for variance in (Fraction(1, 3), Fraction(12345, 7), Fraction(10**9)):
        expected = discrete_gaussian(variance, 50, Bytes(1)).tolist()
        assert noise.discrete_gaussian(variance, 50, Bytes(1)) == expected


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize(("sigma", "turns"), [(0.3, 1), (1.0, 10), (4.0, 300), (50.0, 20)])
def test_the_figures_of_a_device_are_fedzeros(sigma: float, turns: int, delta: float) -> None:
    found = epsilon_of(turns / sigma**2, delta, True)
    assert found == pytest.approx(gaussian.epsilon_of(sigma, turns, delta), rel=1e-6, abs=1e-6)
    exact = renyi.epsilon_of(lambda order: turns * order / (2 * sigma**2), delta, renyi.REAL)
    assert exact * 0.99 <= epsilon_of(turns / sigma**2, delta, False) <= exact * 1.01


def test_a_journal_pays_each_order_once_and_refuses_beyond_the_limit(tmp_path: Path) -> None:
    privacy = Privacy(1, 1, 2, 1.0, 2.0**20, 2.0, 1e-2)
    limit = Limit(epsilon_of(3 / 4, 1e-2, True) * 1.001)
    for run in (bytes(16), bytes([1]) * 16):  # runs on the same data
        with closing(Journal(tmp_path / "j.db", limit)) as journal:
            for _ in range(2):  # the same order, after a restart as well
                assert journal.reserve(run, 0, (0, 0, 0), bytes(32), privacy) == ""
    with closing(Journal(tmp_path / "j.db", limit)) as journal:
        assert journal.reserve(bytes(16), 0, (0, 0, 0), b"x" * 32, privacy) == ""  # another order under the same number
        assert "owner's limit is ε = " in journal.reserve(bytes(16), 0, (1, 0, 0), bytes(32), privacy)
        assert journal.spent(privacy) == pytest.approx(epsilon_of(3 / 4, 1e-2, True))


# ---- sessions


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path, recipes.with_noise(private(tmp_path)))
    yield found
    found.registry.close()


def test_nothing_but_integers_leaves_and_the_same_order_gets_the_same_bytes(house: House) -> None:
    device = house.device()
    session = house.ready(device)
    house.hub.deliver({0: order()})
    said = house.talk(session, device)
    (event,) = house.events()
    assert isinstance(event, Said)
    reply = decode_reply(event.body, 4096)
    assert (reply.loss, reply.queries, len(reply.values)) == (b"", 5, 16)
    device.store.close()
    again = house.device()  # another process, with other random bytes: it answers from its disk
    session = house.ready(again)
    del house.hub._before[0]
    house.hub.deliver({0: order()})
    house.talk(session, again)
    assert said and [each for each in house.events() if isinstance(each, Said)] == [event]
    assert again._journal is not None and again.plan is not None and again.plan.privacy is not None
    one = epsilon_of(1 / again.plan.privacy.sigma**2, again.plan.privacy.delta, True)
    assert again._journal.spent(again.plan.privacy) == one


def test_rows_on_which_nothing_can_be_computed_look_like_any_others(house: House) -> None:
    """Neither a refusal nor another size says that the loss is infinite there."""
    plan = device_plan.read(house.hub.plan)
    x, y = data_of(0)
    replies, model = [], Model(plan)
    model.x[0] *= np.float32(1e6)
    for rows in (x, np.full_like(x, 3e38)):
        worker = Worker(plan, Rows(rows, y), 0)
        replies.append(decode_reply(worker.reply(model, 0, 0, 0.1), 4096))
    usual, strange = replies
    assert any(usual.values) and not any(strange.values)
    assert len(usual.values) == len(strange.values) and usual.queries == strange.queries


def test_a_device_stops_at_its_owners_limit(house: House) -> None:
    privacy = device_plan.read(house.hub.plan).privacy
    assert privacy is not None
    two = Limit(epsilon_of(2 / privacy.sigma**2, privacy.delta, True) * 1.0001)
    device = house.device(limit=two)
    session = house.ready(device)
    for round in range(3):
        house.hub.deliver({0: order(round)})
        house.talk(session, device)
    first, second, declined, went = house.events()
    assert isinstance(first, Said) and isinstance(second, Said) and went == Went(0, True)
    assert isinstance(declined, Declined) and declined.code == 6 and "owner's limit is ε = " in declined.text
    assert device.finished
    device.store.close()
    with pytest.raises(ClientError, match="no turn of this run is left: its owner's limit"):
        house.joined(house.device(limit=two))


def test_a_device_without_random_numbers_has_no_privacy(house: House) -> None:
    def nothing(count: int) -> bytes:
        raise NotImplementedError

    with pytest.raises(ClientError, match="no source of random numbers, so it has no privacy"):
        house.joined(house.device(entropy=nothing))


def test_an_owner_who_asks_for_privacy_is_sent_no_run_without_it(tmp_path: Path) -> None:
    plain = House(tmp_path)
    for limit, why in ((Limit(2.0), "has no privacy"), (Limit(None, "server"), "has no privacy")):
        with pytest.raises(ClientError, match=why):
            plain.joined(plain.device(str(limit.epsilon), limit=limit))
    plain.registry.close()


def test_an_owner_who_does_not_trust_the_server_refuses_its_noise(house: House) -> None:
    with pytest.raises(ClientError, match="--against server refuses"):
        house.joined(house.device(limit=Limit(None, "server")))


def test_privacy_cannot_be_taken_back(house: House, tmp_path: Path) -> None:
    device = house.device()
    house.joined(device)
    house.hub.plan = plans.encode(plans.plan_of(made(recipe_of(tmp_path), tmp_path)))
    with pytest.raises(ClientError, match="had privacy and has none any more"):
        house.joined(device)


# ---- the server's half


def test_a_reply_leaves_its_integers_for_the_sum() -> None:
    sums = Sums()
    given = encode_reply(Reply(3, 0, bytes(8), b"numbers!", b"", 5))
    assert sums.taken(3, "device 1", given) == encode_reply(Reply(3, 0, bytes(8), b"", b"", 5))
    assert sums.answers(3, 0, {"device 1": b""}) == {"device 1": b"numbers!"}
    assert isinstance(sums.answers(3, 0, {"device 2": b""})["device 2"], FedzeroError)
    assert isinstance(sums.answers(3, 1, {"device 1": b""})["device 1"], FedzeroError)
    loss = sums.taken(3, "device 1", encode_reply(Reply(3, 0, bytes(8), b"numbers!", bytes(4), 5)))
    assert isinstance(loss, Refused) and "sent a loss" in str(loss)
    assert isinstance(sums.taken(3, "device 1", b"\xc1"), Refused)
