"""Sites and a server that are killed in the middle of a private round: coins, batches and noise are drawn once, and a
round that was begun is paid for once."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import private_site_child
import pytest
from private_site_child import MOMENTS, NAMES, ROUND

from fedzero.ledger.answers import FILE
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import BATCHES
from fedzero.runs import recorded
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.charges import Policy

ROUNDS = 3
RECIPE = """
name = "killed"
rounds = 3
seed = 3
evaluate_every = 3
algorithm = {{ kind = "decomfl", rate = 0.01, directions = 4 }}
task = {{ kind = "quadratic", dimension = 12, noise = 0.1 }}
federation = {{ clients = 6, cohort = 3 }}
engine = {{ kind = "local", merge = false }}
privacy = {{ sigma = 1.0, {privacy} }}
"""
KINDS = {"local": 'noise = "local"', "distributed": 'noise = "distributed", sum = "secure"'}


class Killed:
    """A federation that was killed at a moment; `resume` ends its run."""

    def __init__(self, server: Any, place: Path, kind: str, moment: str, plant: bool = False):
        self.server, self.place, self.plant = server, place, plant
        (place / "recipe.toml").write_text(RECIPE.format(privacy=KINDS[kind]))
        assert self._process(moment) == -signal.SIGKILL, f"was not killed at {moment!r}"
        self.coins = self.roots()

    def _process(self, moment: str) -> int:
        given = str(self.place / "recipe.toml"), str(self.place), moment, self.plant
        process = self.server.Process(target=private_site_child.go, args=given, daemon=True)
        process.start()
        process.join(240)
        code: int = process.exitcode
        return code

    def resume(self) -> None:
        assert self._process("") == 0, "the run does not go on"

    def heard(self) -> list[tuple[str, int, str, str]]:
        file = self.place / "heard"
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []

    def roots(self) -> dict[tuple[str, int, int], bytes]:
        """What coins follow from, by site, round and client."""

        found = {}
        for name in NAMES:
            path = self.place / "sites" / "kept" / name / FILE
            if path.exists():
                with closing(sqlite3.connect(path)) as db:
                    query = "SELECT round, client, answer FROM answers WHERE client BETWEEN ? AND ?"
                    rows = db.execute(query, (BATCHES - 1000, BATCHES)).fetchall()
                found |= {(name, round, client): root for round, client, root in rows}
        return found


def drawn_once(killed: Killed) -> None:
    killed.resume()
    answers: dict[tuple[str, str], str] = {}
    for site, _, order, answer in killed.heard():
        assert answers.setdefault((site, order), answer) == answer, "another answer to the same question"
    now = killed.roots()
    assert killed.coins.items() <= now.items(), "coins were thrown again"
    assert len(now) == 6 * ROUNDS


def paid_once(killed: Killed) -> None:
    for name in NAMES:
        with closing(Budget(killed.place / "sites" / "kept" / name, Policy())) as budget:
            assert [each.attempts for each in budget.totals()] == [ROUNDS]


SAMPLED = {("local", "coins"), ("local", "phase"), ("distributed", "answers")}
CASES = [
    pytest.param(*case, marks=() if case in SAMPLED else pytest.mark.slow)
    for case in product(KINDS, (moment for moment in MOMENTS if moment))
]


@pytest.mark.parametrize(("kind", "moment"), CASES)
def test_a_federation_that_is_killed_draws_and_pays_once(
    warm_server: Any, tmp_path: Path, kind: str, moment: str
) -> None:
    killed = Killed(warm_server, tmp_path, kind, moment)
    drawn_once(killed)
    paid_once(killed)
    recorded.verified(tmp_path / "run", Environment())


def test_coins_that_are_thrown_again_are_found(warm_server: Any, tmp_path: Path) -> None:
    killed = Killed(warm_server, tmp_path, "local", "before answers", plant=True)
    with pytest.raises(AssertionError):
        drawn_once(killed)
    assert ROUND < ROUNDS
