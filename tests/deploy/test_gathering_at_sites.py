"""A gathering of several phases between a server and sites: epochs that end in any phase, sites that are gone between
two of them, orders out of place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import recipe_of
from masks import Masks

from fedzero import plugins
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Failed, Phase, Phased, Prepare, Replies, decode_answer, decode_order, encode
from fedzero.methods import DeComFL, ScaffoldZO
from fedzero.model.updates import decode_update, unpack
from fedzero.protocol.messages import decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites
from ledgers import rounds_of

SITES = ["north", "south", "west"]
ROUNDS, PHASES = 3, 2


@pytest.fixture(autouse=True)
def known() -> None:
    plugins.register(Masks)


def recipe(summed: bool = True, algorithm: Any = None) -> recipes.Recipe:
    method = algorithm or DeComFL(rate=2e-3, directions=4)
    table = msgspec.to_builtins(recipe_of(method, clients=6, cohort=6, bound=0.0))
    table |= {"rounds": ROUNDS, "evaluate_every": 2} | ({"gathering": {"kind": "test-masks"}} if summed else {})
    return recipes.decode(table)


def run(tmp_path: Path, link: LocalSites) -> Any:
    return run_at_sites(recipe(), tmp_path / "run", Environment(), Silent(), Service(link, lambda: SITES))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that nobody disturbs."""
    plugins.register(Masks)
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, LocalSites(folder / "sites", SITES))


class Spied(LocalSites):
    """Keeps what passes. gone: (site, phase) that are not answered."""

    gone: frozenset[tuple[str, int]] = frozenset()

    def begin(self) -> Any:
        self.passed: list[tuple[str, Any, Any]] = getattr(self, "passed", [])
        return super().begin()

    def ask(self, orders: Any, seconds: float, limit: int, *rest: Any) -> Any:
        for site, answer in super().ask(orders, seconds, limit, *rest):
            order = decode_order(orders[site])
            if isinstance(order, Phase) and (site, order.phase) in self.gone:
                answer = encode(Failed("the line is dead"))
            self.passed.append((site, order, decode_answer(answer)))
            yield site, answer

    def phases(self) -> list[tuple[str, Phase, Any]]:
        return [each for each in self.passed if isinstance(each[1], Phase)]


def test_sites_leave_the_sum_of_plain_replies(tmp_path: Path) -> None:
    plain = session.start(recipe(summed=False), tmp_path / "plain", Environment(), Silent())
    link = Spied(tmp_path / "sites", SITES)
    found = run(tmp_path, link)
    assert found.complete and found.queries == plain.queries
    for one, other in zip(rounds_of(tmp_path / "plain"), rounds_of(tmp_path / "run"), strict=True):
        values = [unpack(decode_update(each.update).scalars) for each in (one, other)]
        np.testing.assert_allclose(values[1], values[0], rtol=1e-4, atol=1e-8)
        assert not other.refused
        said = [answer for _, order, answer in link.passed if getattr(order, "round", None) == other.round]
        whole = sum(len(data) for answer in said if isinstance(answer, Replies) for data in answer.replies.values())
        assert other.bytes_up == whole + sum(len(answer.body) for answer in said if isinstance(answer, Phased))
    for _, _, answer in link.passed:
        for data in answer.replies.values() if isinstance(answer, Replies) else ():
            assert decode_reply(data, 1000).values == b"" == decode_reply(data, 1000).loss
    assert len(link.phases()) == ROUNDS * PHASES * len(SITES)


@pytest.mark.parametrize("at", range(4, 4 + 2 * (1 + PHASES) * len(SITES), 2))
def test_an_epoch_that_ends_in_any_phase_changes_nothing(tmp_path: Path, whole: Any, at: int) -> None:
    """Sites are made anew in every epoch: what a phase needs of those before it is on their disks."""
    link = Spied(tmp_path / "sites", SITES, {at}.__contains__)
    found = run(tmp_path, link)
    assert link.epochs == 2
    assert (found.ledger_head, found.model_digest) == (whole.ledger_head, whole.model_digest)


def two_exchanges(folder: Path, *breaks: int) -> tuple[Any, LocalSites]:
    made = recipe(algorithm=ScaffoldZO(rate=1e-3, type="I", form="dense"))
    link = LocalSites(folder / "sites", SITES, breaks.__contains__)
    return run_at_sites(made, folder / "run", Environment(), Silent(), Service(link, lambda: SITES)), link


@pytest.fixture(scope="module")
def whole_of_two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same of a method of two exchanges."""
    plugins.register(Masks)
    return two_exchanges(tmp_path_factory.mktemp("two"))[0]


@pytest.mark.parametrize("at", [8, 11, 14, 16, 20])
def test_an_epoch_that_ends_in_a_round_of_two_exchanges_changes_nothing(
    tmp_path: Path, whole_of_two: Any, at: int
) -> None:
    found, link = two_exchanges(tmp_path, at)
    assert link.epochs == 2 and not any(record.refused for record in rounds_of(tmp_path / "run"))
    assert (found.ledger_head, found.model_digest) == (whole_of_two.ledger_head, whole_of_two.model_digest)


def killed_after(orders: int, folder: Path) -> Spied:
    """Sites whose server is killed when they have answered so many orders."""
    link = Spied(folder / "sites", SITES)

    def stopping(site: str, answer: bytes) -> bytes:
        if link.asked == orders:
            raise KeyboardInterrupt
        return answer

    link.spoil = stopping
    with pytest.raises(KeyboardInterrupt):
        run(folder, link)
    return link


@pytest.mark.parametrize("at", [7, 8, 10, 11])
def test_a_server_that_is_killed_in_a_phase_goes_on(tmp_path: Path, whole: Any, at: int) -> None:
    link = killed_after(at, tmp_path)
    before = {(site, order): answer for site, order, answer in link.phases()}
    found = run(tmp_path, link)
    again = {(site, order): answer for site, order, answer in link.phases()}
    assert all(again[place] == answer for place, answer in before.items()), "another answer to the same phase"
    assert (found.ledger_head, found.model_digest) == (whole.ledger_head, whole.model_digest)


@pytest.mark.parametrize("at", [9, 10, 11, 12])
def test_a_server_that_is_killed_between_phases_goes_on_though_a_site_does_not_come_back(
    tmp_path: Path, at: int
) -> None:
    """Hosts that answered the second phase for three sites do not answer it for two: the sums could be compared. That
    round is over, with the reason by client, and the next one counts. Before the second phase nothing is lost."""
    killed_after(at, tmp_path)
    left = Spied(tmp_path / "sites", ["north", "south"])
    assert run(tmp_path, left).complete
    first, *others = rounds_of(tmp_path / "run")
    away = dict.fromkeys((2, 5), "failed: its site west is away")
    for record in others:
        assert dict(record.refused) == away and record.update is not None
    refused = dict(first.refused)
    if at == 9:
        assert refused == away and first.update is not None
        return
    assert first.update is None and refused.keys() == set(range(6))
    changed, clients = "failed: was sent phase 1 of exchange 0 of round 0 before, with another body", {0, 1, 3, 4}
    few = {client for client in clients if refused[client].startswith("only ")}
    assert {refused[client] for client in clients - few} == {changed}
    assert few == set() if at > 10 else {1, 4}


def test_a_site_that_is_gone_between_the_phases_is_not_in_the_sum(tmp_path: Path) -> None:
    link = Spied(tmp_path / "sites", SITES)
    link.gone = frozenset({("south", 1)})
    run(tmp_path, link)
    for record in rounds_of(tmp_path / "run"):
        assert dict(record.refused) == dict.fromkeys((1, 4), "failed: the line is dead")
        assert record.update is not None
    asked = {(site, order.phase) for site, order, _ in link.phases()}
    assert asked == {(site, phase) for site in SITES for phase in range(2)} | {("north", 2), ("west", 2)}


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Phase(0, 0, 1, b""), "with another body"),
        (Phase(0, 0, 3, b""), "not the one before it"),
        (Phase(2, 0, 0, b""), "has no reply of exchange 0 of round 2"),
        (Phase(0, 1, 0, b""), "a phase of exchange 1 of a round that has 1"),
        (Phase(9, 0, 0, b""), "the recipe has 3 rounds"),
    ],
)
def test_a_phase_out_of_place_is_refused(tmp_path: Path, order: Phase, why: str) -> None:
    link = Spied(tmp_path / "sites", SITES)
    found: list[Any] = []

    def asking(site: str, answer: bytes) -> bytes:
        before = [each for each in link.phases() if each[0] == "north"]
        if site == "north" and len(before) == PHASES and not found:
            found.append(decode_answer(link.sites["north"].answer(encode(order))))
        return answer

    link.spoil = asking
    run(tmp_path, link)
    assert isinstance(found[0], Failed) and why in found[0].reason


def test_a_recipe_without_a_gathering_has_no_phases(tmp_path: Path) -> None:
    link = LocalSites(tmp_path / "sites", ["north"])
    link.begin()
    site = link.sites["north"]
    prepare = Prepare("a run", recipes.canonical(recipe(summed=False)), (0, 1))
    assert not isinstance(decode_answer(site.answer(encode(prepare))), Failed)
    answer = decode_answer(site.answer(encode(Phase(0, 0, 0, b""))))
    assert isinstance(answer, Failed) and "which this recipe does not have" in answer.reason
