"""A private run whose site and server are killed: it goes on, each site pays for a round once, and its coins and
answers are those of before."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from federation import SITES, Federation, until

from fedzero.ledger.answers import FILE
from fedzero.ledger.records import spent_of
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, statement
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.charges import Policy

ROUNDS = 40


def kept(federation: Federation, site: str) -> Path:
    (found,) = federation.kit(site).rglob(FILE)
    return found.parent


def answers(federation: Federation, site: str) -> dict[tuple[int, int, int], bytes]:
    """Coins, whole replies and answers to phases, by round, client and exchange."""
    with closing(sqlite3.connect(kept(federation, site) / FILE)) as db:
        rows = db.execute("SELECT round, client, exchange, answer FROM answers WHERE client >= 0 OR client < -1")
        return {(round, client, exchange): answer for round, client, exchange, answer in rows}


def test_kill_a_site_and_the_server_of_a_private_run(made) -> None:
    federation = made(rounds=ROUNDS, evaluate_every=20)
    with federation.recipe.open("a") as file:
        file.write('\n[privacy]\nsigma = 4.0\nnoise = "local"\n')
    federation.pace(0.2)
    federation.begin()
    federation.reaches(5)
    for process in federation.processes(site="west"):
        process.send(signal.SIGKILL)
    until(5, lambda: not federation.processes(site="west"), "the end of the site's processes")
    before = {site: answers(federation, site) for site in SITES}
    done = len(federation.rounds())
    federation.reaches(done + 3)
    federation.join("west")
    supervisor = federation.supervisor
    assert supervisor is not None
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait(10)
    before |= {site: answers(federation, site) for site in ("north", "south")}
    federation.serve()
    federation.finish()
    for site in SITES:
        now = answers(federation, site)
        assert before[site].items() <= now.items(), "something was drawn again"
        with closing(Budget(kept(federation, site), Policy())) as budget:
            (total,) = budget.totals()
        assert total.attempts <= ROUNDS and (site == "west" or total.attempts == ROUNDS)
    records = federation.rounds()
    assert len(records) == ROUNDS and not any(record.refused or record.cohort for record in records)
    assert all(spent_of(record) for record in records)
    found = statement.statement_in(federation.out)
    assert statement.checked(federation.out, found) == found and not found.simulated
    assert found.figures[0].epsilon == found.figures[1].epsilon
    recorded.verified(federation.out, Environment())
