"""Differential privacy between a server and sites: sites draw, all of them answer in every round, and nothing but the
noisy sum says who took part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of
from slopes import Private, Slopes
from test_private_sums import silent

from entropy import given_entropy
from fedzero import plugins
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.assignment import SITES as ASSIGNED
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Exchange, Phase, Prepared, Replies, decode_answer, decode_order
from fedzero.errors import FedzeroError
from fedzero.ledger.answers import Place
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import PrivateRound, spent_of
from fedzero.methods import DeComFL
from fedzero.model.updates import decode_update
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import BATCHES, HiddenTurns, PrivateBatches
from fedzero.runs import recorded, session, statement
from fedzero.runs.growing import Growth
from fedzero.runs.progress import Silent
from fedzero.runs.summary import summary_of
from fedzero.testing.engines import LocalSites
from fedzero.testing.non_interference import _tables
from ledgers import rounds_of

NAMES = ["north", "south", "west", "east", "centre"]
ROUNDS = 3
KINDS: dict[str, dict[str, Any]] = {
    "central": {},
    "secure": {"sum": "secure"},
    "distributed": {"sum": "secure", "noise": "distributed"},
    "local": {"noise": "local"},
}
UNITS: dict[str, dict[str, Any]] = {
    "clients": {},
    "examples": {"unit": "example", "clip": 0.0625, "population": 18, "probability": 0.5},
}


@pytest.fixture(autouse=True)
def slopes() -> Iterator[None]:
    plugins.register(Slopes)
    before = Slopes.private
    yield
    Slopes.private = before


def recipe(rounds: int = ROUNDS, **privacy: Any) -> recipes.Recipe:
    method = DeComFL(rate=2e-3, directions=4)
    table = msgspec.to_builtins(recipe_of(method, clients=6, cohort=3, bound=0.0, task=Slopes(dimension=6, rows=3)))
    noise = {} if "epsilon" in privacy else {"sigma": 1.0}
    return recipes.decode(table | {"rounds": rounds, "evaluate_every": 2, "privacy": noise | privacy})


class Spied(LocalSites):
    """Keeps what passes, as bytes: (site, order, answer)."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.passed: list[tuple[str, bytes, bytes]] = []
        self.asking: bytes = b""

    def ask(self, orders: Any, *rest: Any) -> Any:
        for site, answer in super().ask(orders, *rest):
            if isinstance(answer, bytes):
                self.passed.append((site, orders[site], answer))
            yield site, answer

    def rounds(self) -> list[tuple[str, bytes, bytes]]:
        """Exchanges and phases."""
        return [each for each in self.passed if isinstance(decode_order(each[1]), Exchange | Phase)]


def run(folder: Path, made: Any, link: LocalSites, names: list[str] = NAMES, **options: Any) -> Any:
    service = Service(link, lambda: names)
    return run_at_sites(made, folder / "run", Environment(), Silent(), service, **options)


def whole(folder: Path, made: Any, names: list[str] = NAMES, *breaks: int) -> tuple[Any, Spied]:
    link = Spied(folder / "sites", names, breaks.__contains__)
    return run(folder, made, link, names), link


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Roots of turns, roundings and the server's noise follow from round and client; hosts add no noise."""
    silent(monkeypatch)

    def begin(self: Any, round: int, clients: Any) -> None:
        self._round = round
        self._roots = {client: bytes([round, client]) * 16 for client in clients} | self._roots
        self._roots |= {client: bytes([round, client]) * 16 for client in clients}

    monkeypatch.setattr(PrivateBatches, "begin", begin)
    with given_entropy(rounding=b"r", noise=b"n"):
        yield


# ---- the same run


SLOW = pytest.mark.slow
EACH = [
    pytest.param(kind, unit, marks=() if (kind, unit) in (("secure", "clients"), ("local", "examples")) else SLOW)
    for kind in KINDS
    for unit in UNITS
]


@pytest.mark.parametrize(("kind", "unit"), EACH)
def test_sites_write_the_ledger_of_one_process(tmp_path: Path, drawn: None, kind: str, unit: str) -> None:
    made = recipe(hosts=5, **KINDS[kind], **UNITS[unit])
    local = session.start(made, tmp_path / "local", Environment(), Silent())
    found, link = whole(tmp_path, made)
    assert found.complete and (found.ledger_head, found.model_digest) == (local.ledger_head, local.model_digest)
    assert all(decode_update(record.update or b"").scalars.strip(b"\0") for record in rounds_of(tmp_path / "run"))
    answers = [decode_answer(answer) for _, _, answer in link.passed]
    assert not any(each.failed for each in answers if isinstance(each, Replies))
    assert all(each.facts == {} for each in answers if isinstance(each, Prepared)), "of data no fact leaves"
    recorded.verified(tmp_path / "run", Environment())


def test_a_server_fills_in_how_many_sites_there_are_and_solves_the_noise(tmp_path: Path) -> None:
    """For the hosts that it has: fewer of them are counted on than there are clients."""
    asking = recipe(epsilon=3.0, sum="secure", noise="distributed")
    found, _ = whole(tmp_path, asking)
    now = recorded.recipe_in(tmp_path / "run").privacy
    assert found.complete and now and now.hosts == 5 and now.sigma
    assert now == recipes.with_noise(recipe(epsilon=3.0, sum="secure", noise="distributed", hosts=5)).privacy
    assert 2.9 < found.epsilon <= 3.0 and found.epsilon_server == found.epsilon
    again = run(tmp_path, asking, Spied(tmp_path / "sites", NAMES))
    assert again.ledger_head == found.ledger_head, "the same recipe goes on with the run"


def test_a_server_that_counts_other_sites_than_the_recipe_does_not_begin(tmp_path: Path) -> None:
    for wrong, why in (
        ({"hosts": 4}, "privacy.hosts = 4, and there are 5 sites with clients"),
        ({"sum": "secure", "names": NAMES[:3]}, "at least 4 hosts"),
        ({"names": []}, "the project has none"),
    ):
        names = wrong.pop("names", NAMES)
        with pytest.raises(FedzeroError, match=why):
            run(tmp_path, recipe(**wrong), Spied(tmp_path / "sites", NAMES), names)
    assert not (tmp_path / "run" / LEDGER).exists()


def test_the_statement_of_a_run_at_sites(tmp_path: Path) -> None:
    whole(tmp_path, recipe(epsilon=3.0, noise="local"))
    found = statement.statement_in(tmp_path / "run")
    readers, server = found.figures
    assert not found.simulated and readers.epsilon == server.epsilon and server.amplified
    assert statement.checked(tmp_path / "run", found) == found
    said = statement.words(found)
    for words in (
        "thrown at its host and told to nobody",
        "each host draws its own, and answers in every step",
        "noise: discrete Gaussians of hosts",
        "hosts tell nobody which units they drew",
        "each site counts, in a journal of its own, all runs on its data",
    ):
        assert words in said, words


# ---- what is lost


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("local", 12),
        ("distributed", 18),
        *(pytest.param(*case, marks=SLOW) for case in product(["local", "distributed"], [7, 14, 16, 23, 27])),
    ],
)
def test_an_epoch_that_ends_anywhere_draws_nothing_again(tmp_path: Path, kind: str, at: int) -> None:
    """Sites are made anew; all that leaves them about a round is what left before."""
    found, link = whole(tmp_path, recipe(**KINDS[kind]), NAMES, at)
    assert found.complete and link.epochs == 2
    expect_once(link)
    assert attempts(link) == dict.fromkeys(NAMES, ROUNDS)


def expect_once(link: Spied) -> None:
    before: dict[tuple[str, bytes], bytes] = {}
    for site, order, answer in link.rounds():
        assert before.setdefault((site, order), answer) == answer, "another answer to the same question"


def attempts(link: LocalSites) -> dict[str, int]:
    return {name: site.run.budget.totals()[0].attempts for name, site in link.sites.items()}


@pytest.mark.parametrize("orders", [12, *(pytest.param(at, marks=SLOW) for at in (8, 16, 20))])
def test_a_server_that_is_stopped_in_a_round_goes_on_with_the_same_draws(tmp_path: Path, orders: int) -> None:
    link = Spied(tmp_path / "sites", NAMES)

    def stopping(site: str, answer: bytes) -> bytes:
        if link.asked == orders:
            raise KeyboardInterrupt
        return answer

    link.spoil, made = stopping, recipe(**KINDS["local"])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, made, link)
    again = Spied(tmp_path / "sites", NAMES)
    again.passed = link.passed
    assert run(tmp_path, None, again).complete
    expect_once(again)
    assert attempts(again) == dict.fromkeys(NAMES, ROUNDS)


@pytest.mark.parametrize("unit", ["clients", pytest.param("examples", marks=SLOW)])
def test_a_site_that_is_lost_counts_as_zero(tmp_path: Path, drawn: None, unit: str) -> None:
    """As if nobody there had anything to say; and the record is that of any round, but for the sum."""
    made = recipe(hosts=5, **UNITS[unit])
    link = Spied(tmp_path / "sites", NAMES)
    link.spoil = lambda site, answer: (link.leaves.add("south") if link.asked == 6 else None, answer)[1]
    assert run(tmp_path, made, link).complete
    Slopes.private = Private({1: [0.0] * 3})  # the client of south
    _, other = whole(tmp_path / "zero", made)
    assert other.epochs == 1
    for one, two in zip(rounds_of(tmp_path / "run"), rounds_of(tmp_path / "zero" / "run"), strict=True):
        assert isinstance(one, PrivateRound) and one == two
        assert one.cohort == () == one.refused


def test_a_round_without_enough_honest_hosts_is_lost_and_spent(tmp_path: Path) -> None:
    """Of five members two may collude: the noise of three is there only where all five are."""
    made = recipe(sum="secure", noise="distributed", honest=3)
    link = Spied(tmp_path / "sites", NAMES)
    link.spoil = lambda site, answer: (link.leaves.add("south") if link.asked == 30 else None, answer)[1]
    found = run(tmp_path, made, link)
    records = rounds_of(tmp_path / "run")
    assert [record.update is not None for record in records] == [True, False, False]
    spent = [spent_of(record) for record in records]
    assert all(one and two and one[0] < two[0] for one, two in pairwise(spent)), "begun is spent"
    assert found.epsilon_server == spent[-1][1] == spent[-1][0]


def test_clients_stay_where_their_coins_are(tmp_path: Path) -> None:
    """A site that comes later gets no client of another one."""
    link = Spied(tmp_path / "sites", NAMES)
    stopping = iter([None] * 7)

    def stop(site: str, answer: bytes) -> bytes:
        if next(stopping, 1):
            raise KeyboardInterrupt
        return answer

    link.spoil = stop
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, recipe(), link)
    before = (tmp_path / "run" / ASSIGNED).read_bytes()
    more = [*NAMES, "island"]
    assert run(tmp_path, None, Spied(tmp_path / "sites", more), more).complete
    assert (tmp_path / "run" / ASSIGNED).read_bytes() == before


def test_a_finished_run_grows_as_far_as_the_budget_pays(tmp_path: Path) -> None:
    whole(tmp_path, recipe(epsilon=4.0, probability=1.0))
    with pytest.raises(FedzeroError, match=r"privacy.epsilon = 4 is less than"):
        run(tmp_path, None, Spied(tmp_path / "sites", NAMES), said=Growth(rounds=ROUNDS + 2))
    free = tmp_path / "free"
    whole(free, recipe(probability=1.0))
    before = summary_of(free / "run").epsilon
    found = run(free, None, Spied(free / "sites", NAMES), said=Growth(rounds=ROUNDS + 2))
    assert found.rounds == ROUNDS + 2 and found.epsilon > before
    recorded.verified(free / "run", Environment())


# ---- what shows


def everything(folder: Path, made: Any, private: Private) -> tuple[list[tuple[str, bytes, bytes]], Any]:
    """All that left or reached a site, and the entries of the ledger."""
    Slopes.private = private
    shutil.rmtree(folder, ignore_errors=True)
    found, link = whole(folder, made)
    assert found.complete
    stable = [(site, order, answer) for site, order, answer in link.rounds()]
    return stable, _tables(folder / "run" / LEDGER)["entries"]


LONG = Private({client: [16.0] * 3 for client in range(6)})
LONGER = Private({client: [2.0 ** (4 + client % 3)] * 3 for client in range(6)}, shift=1024.0)


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("central", "clients"),
        ("local", "examples"),
        *(pytest.param(*case, marks=SLOW) for case in (("central", "examples"), ("local", "clients"))),
    ],
)
def test_data_show_in_bounded_vectors_alone(tmp_path: Path, drawn: None, kind: str, unit: str) -> None:
    """Two data sets with equal bounded vectors, and the same draws: every message and every entry are the same."""
    made = recipe(hosts=5, **KINDS[kind], **UNITS[unit])
    assert everything(tmp_path, made, LONG) == everything(tmp_path, made, LONGER)


class Coins:
    """Other coins: who takes part in a round."""

    def __init__(self, *chosen: int):
        self.chosen = chosen

    def __enter__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(HiddenTurns, "taking", lambda _, round, clients: [c for c in clients if c in self.chosen])

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


ZERO = Private({client: [0.0] * 3 for client in range(6)})


def of_two_draws(folder: Path, plant: Any = None) -> list[Any]:
    made = recipe(hosts=5)
    found = []
    for chosen in ((), (0, 1, 3)):
        with Coins(*chosen), ExitStack() as stack:
            if plant is not None:
                stack.enter_context(plant())
            found.append(everything(folder, made, ZERO))
    return found


def test_who_took_part_shows_in_the_sum_alone(tmp_path: Path, drawn: None) -> None:
    """Where nobody has anything to say, coins change no byte of any message, nor of the ledger."""
    one, other = of_two_draws(tmp_path)
    assert one == other and len(one[0]) == 2 * ROUNDS * len(NAMES)


def _queries_of_takers() -> Any:
    from fedzero.protocol.client import Client
    from fedzero.protocol.messages import decode_reply, encode_reply

    patch, absent = pytest.MonkeyPatch.context(), Client.absent

    def cheaper(self: Any, round: int) -> bytes:
        return encode_reply(msgspec.structs.replace(decode_reply(absent(self, round), 1000), queries=0))

    stack = ExitStack()
    stack.enter_context(patch).setattr(Client, "absent", cheaper)
    return stack


def _takers_alone() -> Any:
    from fedzero.engines.local import LocalClients

    stack = ExitStack()
    exchange = LocalClients._exchange

    def only(self: Any, round: int, *rest: Any) -> Any:
        taking = self._hidden.taking(round, range(6)) if self._hidden else range(6)
        yield from ((number, data) for number, data in exchange(self, round, *rest) if number in taking)

    stack.enter_context(pytest.MonkeyPatch.context()).setattr(LocalClients, "_exchange", only)
    return stack


@pytest.mark.parametrize("plant", [_queries_of_takers, _takers_alone])
def test_a_reply_that_shows_a_coin_is_found(tmp_path: Path, drawn: None, plant: Any) -> None:
    one, other = of_two_draws(tmp_path, plant)
    assert one[0] != other[0], "the messages differ"


def test_coins_at_a_site_are_durable_and_its_own(tmp_path: Path) -> None:
    """Every site keeps roots of its own clients, other ones in every run."""
    roots = []
    for name in ("one", "two"):
        _, link = whole(tmp_path / name, recipe(noise="local"))
        found = {}
        for site in link.sites.values():
            journal = site.run._journal
            for client in site.run.agreement.clients:
                for round in range(ROUNDS):
                    found[client, round] = journal.find(Place(round, BATCHES - client)).answer
        roots.append(found)
    assert roots[0].keys() == roots[1].keys() and len(roots[0]) == 6 * ROUNDS
    assert len({*roots[0].values(), *roots[1].values()}) == 2 * 6 * ROUNDS
