"""Sites that crash, freeze and come back. The run goes on without them, and with them once they are there again."""

from __future__ import annotations

import signal
import time

import pytest
from federation import SITE_JOB, Federation, refused_in, seconds_until, until

GOES_ON = 45
"""Seconds after which the run must go on at the latest."""


def test_kill_a_site_s_job(running: Federation) -> None:
    """Rounds go on without it; after a pause a new epoch has the site in it again."""
    victim, done, killed = running.only(SITE_JOB, "north"), len(running.rounds()), time.monotonic()
    victim.send(signal.SIGKILL)
    until(5, lambda: not victim.alive, "the end of the job's process")
    took = seconds_until("a site's job killed, the run goes on after", lambda: running.reaches(done + 3, 90), killed)
    assert took < GOES_ON
    took = seconds_until("a site's job killed, the site counts again after", running.everybody_counts, killed)
    assert refused_in(running.rounds()[done:]) <= running.clients("north")
    assert running.only(SITE_JOB, "north") != victim


def test_kill_a_whole_site(running: Federation) -> None:
    said_before = len((running.folder / "serve.txt").read_text())
    done, killed = len(running.rounds()), time.monotonic()
    for process in running.processes(site="west"):
        process.send(signal.SIGKILL)
    until(5, lambda: not running.processes(site="west"), "the end of the site's processes")

    def without() -> None:
        clients = running.clients("west")
        gone = running.round_where(
            lambda r: refused_in([r]) == clients and r.update is not None, "a round without", done
        )
        running.reaches(gone.round + 3)

    assert seconds_until("a site killed, the run goes on after", without, killed) < GOES_ON
    running.join("west")
    seconds_until("the site started again, it counts after", running.everybody_counts)
    assert refused_in(running.rounds()[done:]) == running.clients("west")
    # Said once each, however many rounds went by. The two clients that were away were sent nothing meanwhile.
    said = (running.folder / "serve.txt").read_text()[said_before:]
    assert said.count("site west is gone") == said.count("site west is back") == 1, said
    assert "clients 2, 5 are left out until it returns" in said
    assert "failed:" not in said
    absent = [r.bytes_down for r in running.rounds()[done:] if any("does not answer" in why for _, why in r.refused)]
    # A round's number takes up to two bytes more as it grows, twice in each of four instructions. What a client missed
    # would be 20 bytes a round.
    assert max(absent, default=0) - min(absent, default=0) <= 16


@pytest.mark.parametrize("what", ["site", "job"])
def test_freeze_past_the_deadline(running: Federation, what: str) -> None:
    """What it was asked before it froze it answers when it thaws, too late to count. Of a frozen job process the site
    does not know: it gets another one, and the old one wakes up to rounds long over."""
    frozen = running.processes(site="south") if what == "site" else [running.only(SITE_JOB, "south")]
    done, clients = len(running.rounds()), running.clients("south")
    try:
        for process in frozen:
            process.send(signal.SIGSTOP)
        late = running.round_where(
            lambda r: any("did not answer in" in why for _, why in r.refused), "a round past the deadline", done
        )
        assert refused_in([late]) == clients
        assert late.update is not None
        if what == "site":
            running.reaches(late.round + 5)
        else:
            seconds_until("a frozen job replaced after", lambda: running.everybody_counts(late.round))
    finally:
        for process in frozen:
            process.send(signal.SIGCONT)
    seconds_until(f"a frozen {what} thawed, everybody counts after", running.everybody_counts)
    assert refused_in(running.rounds()[done:]) == clients
