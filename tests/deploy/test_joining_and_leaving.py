"""Sites that come and go while a round goes on: the others are asked nothing again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from harness import recipe_of

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import RemoteClients, Service
from fedzero.engines.remote.messages import Exchange, Prepare, decode_order
from fedzero.estimators.surrogate.settings import Active, Transfer
from fedzero.methods import DeComFL, FZooS
from fedzero.protocol.engine import Event, Joined, Left
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites
from ledgers import rounds_of

SITES = ["north", "south", "west"]


class Asked(LocalSites):
    """Notes who was asked what; west comes, and south leaves, when north answers an exchange."""

    def __init__(self, folder: Path, comes: tuple[int, int], leaves: tuple[int, int], returns: tuple[int, int]):
        super().__init__(folder, SITES[:2])
        self.comes, self.leaves_at, self.returns = comes, leaves, returns
        self.exchanges: Counter[tuple[str, int, int]] = Counter()
        self.prepared: list[str] = []

    def ask(self, orders, seconds, limit, enough=lambda: False):
        said = {site: decode_order(order) for site, order in orders.items()}
        self.prepared += [site for site, order in said.items() if isinstance(order, Prepare)]
        for site, order in said.items():
            if isinstance(order, Exchange):
                self.exchanges[site, order.round, order.exchange] += 1
        for site, answer in super().ask(orders, seconds, limit, enough):
            yield site, answer

    def _made(self, name: str):
        made = super()._made(name)
        if name == "north":
            honest = made.answer

            def answer(data: bytes) -> bytes:
                order = decode_order(data)
                place = (order.round, order.exchange) if isinstance(order, Exchange) else None
                if place == self.comes:
                    self.wants.add("west")
                if place == self.leaves_at:
                    self.leaves.add("south")
                if place == self.returns:
                    self.wants.add("south")
                return honest(data)

            made.answer = answer
        return made


def run(tmp_path: Path, link: LocalSites, method, monkeypatch) -> list[Event]:
    seen: list[Event] = []
    honest = RemoteClients.receive

    def receive(self, seconds):
        events = honest(self, seconds)
        seen.extend(event for event in events if isinstance(event, Joined | Left))
        return events

    monkeypatch.setattr(RemoteClients, "receive", receive)
    recipe = recipe_of(algorithm=method, clients=6, cohort=6)
    recipe = msgspec.structs.replace(recipe, rounds=6, evaluate_every=6)
    run_at_sites(recipe, tmp_path / "run", Environment(), Silent(), Service(link, lambda: SITES))
    return seen


def test_a_site_joins_in_the_middle_of_an_exchange_and_another_leaves(tmp_path: Path, monkeypatch) -> None:
    link = Asked(tmp_path / "sites", comes=(1, 0), leaves=(3, 0), returns=(4, 0))
    events = run(tmp_path, link, DeComFL(rate=2e-3, directions=4), monkeypatch)
    refused = [dict(record.refused) for record in rounds_of(tmp_path / "run")]
    away = dict.fromkeys((2, 5), "failed: its site west is away")
    left = dict.fromkeys((1, 4), "failed: its site south left the federation")
    gone = dict.fromkeys((1, 4), "failed: its site south is not here")
    assert refused == [away, away, {}, left, gone, {}]
    assert link.epochs == 1
    assert set(link.exchanges.values()) == {1}, "nobody was asked twice"
    assert link.prepared == ["north", "south", "west", "south"], "nobody else gets ready again"
    assert [(type(event), event.host) for event in events] == [
        (Joined, "north"),
        (Joined, "south"),
        (Joined, "west"),
        (Left, "south"),
        (Joined, "south"),
    ]
    assert events[3].clients == (1, 4)
    assert recorded.verified(tmp_path / "run", Environment()).end is not None


def test_between_the_exchanges_of_a_round(tmp_path: Path, monkeypatch) -> None:
    """Who comes back has not played the first exchange: its clients sit the round out, and no one is asked again."""
    link = Asked(tmp_path / "sites", comes=(1, 0), leaves=(2, 0), returns=(2, 1))
    few = Active(initial=6, a_step=2, candidates=6, around=4, around_candidates=8)
    run(tmp_path, link, FZooS(rate=1e-2, transfer=Transfer(count=40), active=few), monkeypatch)
    refused = [sorted(dict(record.refused)) for record in rounds_of(tmp_path / "run")]
    assert refused == [[2, 5], [2, 5], [1, 4], [], [], []]
    assert set(link.exchanges.values()) == {1}
    assert link.epochs == 1
