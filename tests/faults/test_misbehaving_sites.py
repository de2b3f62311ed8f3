"""Sites with good certificates that send what they should not: refused by name, for its reason, and no harm done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from federation import SERVER_JOB, SITE_JOB, Federation, refused_in, until

SITE = "south"


@pytest.fixture
def spoilt(running: Federation) -> Iterator[Federation]:
    yield running
    running.spoil(SITE, "honest")


@pytest.mark.parametrize(
    "how, reason",
    [
        ("nan", "NaN"),
        ("short", "3 numbers where 4 were expected"),
        ("another round", "answered round"),
        ("10 MB", "bytes where at most"),
    ],
)
def test_what_makes_no_sense_is_refused(spoilt: Federation, how: str, reason: str) -> None:
    clients, done, job = spoilt.clients(SITE), len(spoilt.rounds()), spoilt.only(SERVER_JOB)
    spoilt.spoil(SITE, how)
    found = spoilt.round_where(lambda r: bool(r.refused), "a refusal", done)
    spoilt.reaches(found.round + 3)
    spoilt.spoil(SITE, "honest")
    back = spoilt.everybody_counts()
    assert {client for client, why in found.refused if reason in why} == clients, found.refused
    assert found.update is not None
    assert refused_in(spoilt.rounds()[done : back.round]) == clients
    assert spoilt.only(SERVER_JOB) == job, "nothing was begun anew for it"


def test_a_reply_sent_twice_counts_once(spoilt: Federation) -> None:
    before = spoilt.rounds()[-1]
    done, job = len(spoilt.rounds()), spoilt.only(SERVER_JOB)
    spoilt.spoil(SITE, "twice")
    log, refused = spoilt.kit("server") / "log.txt", f"refused a message of {SITE} that nobody waits for"
    until(30, lambda: log.exists() and refused in log.read_text(), "a reply that nobody waits for any more")
    seen = spoilt.reaches(len(spoilt.rounds()) + 10)[done:]
    assert not refused_in(seen)
    assert {record.bytes_up for record in seen} == {before.bytes_up}
    assert spoilt.only(SERVER_JOB) == job


def test_a_corrupted_replica_is_refused_rebuilt_and_counted_again(spoilt: Federation) -> None:
    """One bit of one weight is wrong."""
    clients, done, job = spoilt.clients(SITE), len(spoilt.rounds()), spoilt.only(SITE_JOB, SITE)
    spoilt.spoil(SITE, "corrupt")
    found = spoilt.round_where(lambda r: bool(r.refused), "a refusal", done)
    assert {client for client, why in found.refused if "must rebuild" in why} == clients, found.refused
    again = spoilt.everybody_counts(found.round + 1)
    assert again.round == found.round + 1, "rebuilt before its next turn"
    assert spoilt.spoiling(SITE) == "corrupted"
    assert spoilt.only(SITE_JOB, SITE) == job, "in the same process"
