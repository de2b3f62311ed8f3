"""What is written of what sites measured: no site's number ends a run, steers it, or is averaged into the others'."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from harness import recipe_of

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote import measuring
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Measured, decode_answer, encode
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger
from fedzero.methods import DeComFL
from fedzero.oracles import Metrics
from fedzero.oracles.ranges import strange
from fedzero.recipe.environment import Environment
from fedzero.recipe.stopping import Stop
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites

HONEST = {
    "north": Metrics(1.0, 0.5, {"f1": 0.4, "tokens": 900.0}),
    "south": Metrics(1.4, 0.7, {"f1": 0.5, "tokens": 950.0}),
    "west": Metrics(2.0, 0.8, {"f1": 0.6, "tokens": 990.0}),
}
LIES = [
    Metrics(1e308, 0.5),
    Metrics(-1e308, 0.5),
    Metrics(1e38, 0.5),
    Metrics(-1e38, 0.5),
    Metrics(-1.0, 0.5),
    Metrics(0.0, 1.0),
    Metrics(1.0, 1e9, {"f1": 0.4}),
    Metrics(1.0, -1e9, {"f1": 0.4}),
    Metrics(1.0, 0.5, {"f1": 1e9}),
    Metrics(1.0, 0.5, {"f1": 0.5, "tokens": 1e308}),
    Metrics(1.0, 0.5, {"f1": 0.5, "tokens": -1e308}),
    Metrics(1.0, 0.5, {"f1": 0.5, "tokens": math.inf}),
    Metrics(1.0, 0.5, {"f1": 0.5, "tokens": 900.0, "mine": 1e308}),
    Metrics(math.nan, math.nan),
    Metrics(math.inf, 0.5),
    Metrics(1.0),
]


ONE = dict.fromkeys([*HONEST, "a", "b", "z", "liar", "alone"], 1)


def of(found: dict[str, Metrics], own: bool) -> dict[str, Measured]:
    return {site: Measured(b"", metrics, own) for site, metrics in found.items()}


@pytest.mark.parametrize("own", [True, False], ids=["own", "shared"])
@pytest.mark.parametrize("liar", ["a", "z"])
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_one_of_four_sites_moves_nothing_beyond_what_the_others_say(lie, liar, own) -> None:
    honest = HONEST if own else dict.fromkeys(HONEST, HONEST["south"])
    metrics, _ = measuring.combined(of(honest | {liar: lie}, own), ONE, 0.0)
    assert metrics is not None and metrics.accuracy is not None
    assert min(m.loss for m in honest.values()) <= metrics.loss <= max(m.loss for m in honest.values())
    assert min(m.accuracy for m in honest.values()) <= metrics.accuracy <= max(m.accuracy for m in honest.values())
    assert metrics.others.keys() == {"f1", "tokens"}
    for name, value in metrics.others.items():
        assert value in {m.others[name] for m in honest.values()}


@pytest.mark.parametrize("lie", [lie for lie in LIES if strange(lie, 0.0)], ids=str)
def test_who_sends_what_cannot_be_true_is_named_and_nobody_is_asked_to_agree_with_it(lie) -> None:
    for own in (True, False):
        _, odd = measuring.combined(of(HONEST | {"liar": lie}, own), ONE, 0.0)
        assert "measured" in odd["liar"]
    assert not measuring.settled(of(dict.fromkeys(("a", "b", "c"), lie), False), 0.0)
    assert measuring.combined(of({"alone": lie}, True), ONE, 0.0)[0] is None, "nor where it is the only one"


def test_what_can_be_true() -> None:
    for metrics in (*HONEST.values(), Metrics(-1e-7, 1.0 + 1e-7), Metrics(math.nan, math.nan), Metrics(3e38)):
        assert not strange(metrics, 0.0)
    assert not strange(Metrics(-5.0, None, {"reward": -1e200}), -math.inf)
    assert strange(Metrics(-5.0), 0.0)


def test_a_site_with_most_clients_has_one_figure_as_the_others() -> None:
    found, clients = of({"north": Metrics(1.0), "south": Metrics(1.2), "west": Metrics(1e30)}, True), ONE | {"west": 99}
    assert measuring.combined(found, clients, 0.0) == (Metrics(1.2), {})


def test_of_two_sites_the_mean_is_written() -> None:
    """Of their clients; nobody can tell which of two is wrong, unless it cannot be true."""
    found, clients = (
        of({"north": Metrics(1.0, 0.5, {"f1": 0.2}), "south": Metrics(2.0, 0.8)}, True),
        {"north": 2, "south": 1},
    )
    expected = Metrics((2 * 1.0 + 2.0) / 3, (2 * 0.5 + 0.8) / 3, {"f1": 0.2})
    assert measuring.combined(found, clients, 0.0) == (expected, {})
    lied = found | of({"south": Metrics(1e308, 0.8)}, True)
    metrics, odd = measuring.combined(lied, clients, 0.0)
    assert metrics == found["north"].metrics and list(odd) == ["south"]


def test_figures_that_are_not_finite_are_left_out_unless_most_are() -> None:
    metrics, odd = measuring.combined(of(HONEST | {"z": Metrics(math.inf, 0.5)}, True), ONE, 0.0)
    assert metrics == HONEST["south"]
    assert list(odd) == ["z"]
    diverged = dict.fromkeys(HONEST, Metrics(math.nan)) | {"north": HONEST["north"]}
    metrics, _ = measuring.combined(of(diverged, True), ONE, 0.0)
    assert metrics is not None
    assert math.isnan(metrics.loss), "most say so"


def test_rounding_is_no_difference() -> None:
    found = of({"a": Metrics(1.0, 0.91), "b": Metrics(1.001, 0.913)}, False)
    assert measuring.settled(found, 0.0)
    assert measuring.combined(found, ONE, 0.0) == (Metrics(1.0, 0.91), {})


# ---- a whole run

SITES = ["north", "south", "west"]
STOP = Stop(above=1e6, patience=2)


@pytest.mark.parametrize("lie", [Metrics(1e308), Metrics(3e38), Metrics(-1e38), Metrics(1.0, 1e9)], ids=str)
def test_no_site_ends_a_run_by_a_number(tmp_path: Path, lie) -> None:
    """Sites with data of their own, and a recipe that stops above a loss or without a better one."""
    recipe = recipe_of(DeComFL(rate=2e-3, directions=8), clients=6, cohort=6, server_model=False)
    recipe = msgspec.structs.replace(recipe, rounds=8, evaluate_every=2, stop=STOP)

    def spoil(site: str, data: bytes) -> bytes:
        answer = decode_answer(data)
        if not isinstance(answer, Measured):
            return data
        metrics = lie if site == "south" else answer.metrics
        return encode(Measured(answer.model, metrics, True, answer.sha256))

    link = LocalSites(tmp_path / "sites", SITES)
    link.spoil = spoil
    service = Service(link, lambda: SITES, patience=0.0)
    found = run_at_sites(recipe, tmp_path / "run", Environment(), Silent(), service)
    assert found.rounds == 8 and not found.reason
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    try:
        written = [e.metrics for e in replay.read(ledger).evaluations]
    finally:
        ledger.close()
    assert len(written) == 5 and all(0 < m.loss < 1e4 and m.accuracy is None for m in written)


@pytest.mark.parametrize("honest", [True, False], ids=["data of its own", "the same data"])
@pytest.mark.parametrize("sites", [1, 2])
def test_half_of_the_sites_do_not_decide_whose_data_it_is(sites: int, honest: bool) -> None:
    """One of two said that its data were those of all: its figures alone were written, and the other was named."""
    found = of({f"honest {n}": Metrics(1.0, 0.5) for n in range(sites)}, honest)
    found |= of({f"liar {n}": Metrics(0.0, 1.0) for n in range(sites)}, not honest)
    metrics, odd = measuring.combined(found, dict.fromkeys(found, 1), 0.0)
    assert metrics is None
    assert odd.keys() == found.keys()
