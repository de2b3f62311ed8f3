"""The server is killed: the supervisor, FLARE's server, its job process. The ledger is the run, and nothing is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial

import pytest
from federation import SERVER, SERVER_JOB, SITE, Federation, processes_of, refused_in, seconds_until, until


def kill_supervisor(federation: Federation) -> None:
    """And start it again, with the same command."""
    assert federation.supervisor is not None
    federation.supervisor.kill()
    federation.supervisor.wait(10)
    federation.serve()


def kill_server(federation: Federation) -> None:
    kill_one(federation, SERVER)


def kill_job(federation: Federation) -> None:
    kill_one(federation, SERVER_JOB)


def kill_one(federation: Federation, kind: str) -> None:
    victim = federation.only(kind)
    victim.send(signal.SIGKILL)
    until(5, lambda: not victim.alive, "its end")


@pytest.mark.parametrize("kill", [kill_supervisor, kill_server, kill_job])
def test_killed_three_times_the_run_is_the_same(made: Callable[..., Federation], kill: Callable[..., None]) -> None:
    """While sites get ready for the first time, in the middle of a round, and again when most of it is done."""
    federation = made(sites=["north", "south"], rounds=150)
    federation.pace(0.1)
    federation.serve()
    for site in federation.sites:
        federation.join(site)
    name = kill.__name__.removeprefix("kill_")
    until(120, (federation.out / "sites.json").exists, "sites that are told to get ready")
    assert federation.view() is None
    for instant in (0, 15, 100):
        federation.pace(0.1 if instant < 20 else 0.02)
        if instant:
            federation.reaches(instant)
        killed = time.monotonic()
        kill(federation)
        done = len(federation.rounds())
        goes_on = partial(federation.reaches, done + 2, 120)
        seconds_until(f"{name} killed in round {done}, the run goes on after", goes_on, killed)
    summary = federation.finish()
    assert (summary["rounds"], summary["refused"]) == (150, 0)
    assert summary["ledger_head"] == federation.undisturbed().ledger_head


def test_a_federation_that_is_only_tried(made: Callable[..., Federation]) -> None:
    """`fedzero federate`: its sites are started again when they crash. Killed itself it leaves nothing running, and the
    run can be resumed."""
    federation = made(sites=["site-1", "site-2"], rounds=200)
    federation.pace(0.1)
    federation.federate(federation.recipe, "--sites", "2")
    federation.reaches(5, 120)
    (site,) = processes_of(federation.out / "federation" / "kits" / "site-2", SITE)
    site.send(signal.SIGKILL)
    seconds_until("a site's parent process killed, the site is missed after", partial(missed, federation))
    seconds_until("… and counts again after", federation.everybody_counts)
    assert federation.supervisor is not None
    federation.supervisor.kill()
    until(30, lambda: not federation.processes(), "the end of all that it started")
    done = len(federation.rounds())
    federation.federate()
    seconds_until(
        "federate killed and started again, the run goes on after", partial(federation.reaches, done + 2, 120)
    )
    assert not refused_in(federation.rounds()[done:])
    assert federation.finish()["rounds"] == 200


def missed(federation: Federation) -> None:
    federation.round_where(lambda record: bool(record.refused), "a round without the site")
