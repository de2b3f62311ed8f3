"""A site with a certificate that does its worst, over mutual TLS: the run of the others goes on, it is named, and the
model that comes out is that of the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
from federation import SITE_JOB, Federation, refused_in, seconds_until, until

from fedzero.recipe.environment import Environment
from fedzero.runs import recorded

SITE, ROUNDS = "south", 1000
REFUSED = {
    "another model": "worked on model ffffffffffffffff, not",
    "markup": "failed: ",
    "nested": "failed: ",
    "oversize": "bytes where at most",
}
"""How the site misbehaves in its turns, and what the ledger says of it."""
MEASURED = {
    "cannot evaluate": "",
    "too good": "south could not evaluate the model: sent a metric whose name",
    "another model": "south evaluated model ffffffffffffffff (SHA-256 ",
    "nested": "south could not evaluate the model",
}
"""… in evaluations, and what the supervisor says."""


def goes_on(federation: Federation, rounds: int, seconds: float = 90) -> list[int]:
    """So many more rounds with an update; who was refused in them."""
    done = len(federation.rounds())
    found = federation.reaches(done + rounds, seconds)[done:]
    assert all(record.update is not None for record in found)
    return sorted(refused_in(found))


def test_a_site_does_its_worst(made: Callable[..., Federation]) -> None:
    """A server without a model, which has only the sites to ask."""
    federation = made(rounds=ROUNDS, server_model=False, evaluate_every=5, deadline=10.0)
    federation.pace(0.2)
    federation.begin("--patience", "5")
    federation.everybody_counts()
    clients = federation.clients(SITE)
    for how, reason in REFUSED.items():
        done = len(federation.rounds())
        federation.spoil(SITE, how)
        found = federation.round_where(lambda r: bool(r.refused), f"a refusal of {how}", done)
        assert {c for c, why in found.refused if reason in why and why.isprintable()} == clients, found.refused
        assert goes_on(federation, 7) == sorted(clients), how
        federation.spoil(SITE, "honest")
        federation.everybody_counts()
    for how, sentence in MEASURED.items():
        federation.spoil(SITE, how)
        before = len(federation.said())
        evaluated = len(evaluations(federation))
        until(60, partial(said, federation, sentence, before), sentence)
        until(60, lambda least=evaluated + 2: len(evaluations(federation)) >= least, f"evaluations beside {how}")
        federation.spoil(SITE, "honest")
        federation.everybody_counts()
    assert all(e.metrics.accuracy is None and e.metrics.loss > -1e8 for e in evaluations(federation))

    # Its process ends in every exchange.
    federation.spoil(SITE, "exit")
    began = time.monotonic()
    sentence = f"site {SITE} failed 2 times in a row (ended its process for the run): it is left out for 10 s"
    until(120, partial(said, federation, sentence, 0), sentence)
    took = time.monotonic() - began
    assert set(goes_on(federation, 20)) == clients
    federation.spoil(SITE, "hang in prepare")

    # It hangs while it gets ready; nobody waits for it.
    sentence = f"site {SITE} is gone (still gets ready)"
    until(120, partial(said, federation, sentence, 0), sentence)
    assert set(goes_on(federation, 10)) == clients
    job = federation.only(SITE_JOB, "north")
    federation.spoil(SITE, "honest")
    seconds_until("a site that hung while it got ready counts after", federation.everybody_counts)
    assert federation.only(SITE_JOB, "north") == job, "without a new epoch"
    assert took < 100
    federation.finish(300)


def evaluations(federation: Federation) -> list:
    view = federation.view()
    return [] if view is None else view.evaluations


def said(federation: Federation, sentence: str, since: int) -> bool:
    return sentence in federation.said()[since:]


def test_a_finite_reply_of_1e30(made: Callable[..., Federation]) -> None:
    """What one client can do to a round is bounded."""
    pytest.importorskip("fedzero.rounds.guard")
    federation = made(rounds=200, evaluate_every=20, deadline=10.0)
    federation.spoil(SITE, "1e30")
    federation.begin()
    federation.reaches(20, 120)
    federation.spoil(SITE, "honest")
    summary = federation.finish(200)
    last = recorded.replayed(federation.out, Environment(), None)
    assert last.digest().hex() == summary["model_digest"]
    assert evaluations(federation)[-1].metrics.loss <= evaluations(federation)[0].metrics.loss
