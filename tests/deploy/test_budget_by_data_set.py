"""What a site's journal of differential privacy promises: by data set, before the first answer, over runs."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from harness import recipe_of
from test_directions_by_data_set import clinics
from test_hostile_server import asked, prepare, recipe_for, refused, site_with, turn
from test_orders_out_of_place import reply

from fedzero.deploy.site import run
from fedzero.engines.remote.messages import Measure, Prepared, encode
from fedzero.errors import FedzeroError, Sendable
from fedzero.methods import DeComFL
from fedzero.privacy import renyi
from fedzero.recipe import recipe as recipes
from fedzero.recipe.privacy import Privacy
from fedzero.runs.spending import budget
from fedzero.runs.spending.budget import FILE, HEAD, Budget, Tampered, lines
from fedzero.runs.spending.charges import Charge, Policy, epsilon_of
from fedzero.tasks.own import Own

__all__ = ["clinics"]

HERE = Path(__file__).parent
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
CHARGE = Charge(recipe="ab", unit="example", delta=1e-5, sigma=1.0, q=(0.01, 1.0))
POLICY = Policy(epsilon=2.0, delta=1e-6, unit="example")


def opened(keep: Path, data: bytes = b"data", name: str = "run", policy: Policy = POLICY) -> Budget:
    return Budget(keep, policy, data, name)


def spend(journal: Budget, rounds: int, charge: Charge = CHARGE, first: int = 0) -> None:
    for round in range(first, first + rounds):
        journal.reserve(charge, round, b"question %d" % round)


def test_runs_on_one_data_set_add_up_to_the_budget_and_no_more(tmp_path: Path) -> None:
    """Another recipe goes on with the count; another data set begins its own."""
    policy = Policy(epsilon=3.0, delta=1e-6)
    strong = msgspec.structs.replace(CHARGE, recipe="cd", q=(0.05, 1.0))
    one, two = opened(tmp_path, name="one", policy=policy), opened(tmp_path, name="two", policy=policy)
    spend(one, 40)
    begun = 0
    with pytest.raises(Sendable, match=r"privacy.epsilon = 3 \(delta = 1e-06\) for this data"):
        for begun in range(100):
            two.reserve(strong, begun, b"%d" % begun)
    assert begun > 0
    order = policy.order(CHARGE)
    within = epsilon_of([(CHARGE, 40), (strong, begun)], policy, order)
    assert within <= 3.0 < epsilon_of([(CHARGE, 40), (strong, begun + 1)], policy, order)
    by_hand = 40 * renyi.subsampled(renyi.gaussian(1.0), 0.01, 1)(order)
    by_hand += begun * renyi.subsampled(renyi.gaussian(1.0), 0.05, 1)(order)
    assert within == pytest.approx(by_hand + renyi.converted(order, 1e-6 / 2)), "half of δ is for this order"
    (found,) = one.totals()
    assert (found.epsilon, found.attempts, found.runs) == (pytest.approx(within), 40 + begun, 2)
    other = opened(tmp_path, b"other data", policy=policy)
    other.reserve(strong, 0, b"q")
    assert len(lines(tmp_path, policy)) == 2
    with pytest.raises(Sendable, match="unit = 'example' before"):
        other.reserve(msgspec.structs.replace(CHARGE, unit="client"), 1, b"q")


def test_a_question_is_paid_once_and_another_attempt_again(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    spend(journal, 3)
    journal.close()
    journal = opened(tmp_path)
    spend(journal, 3)
    assert journal.totals()[0].attempts == 3, "in another process, too"
    journal.reserve(CHARGE, 1, b"another question")
    assert journal.totals()[0].attempts == 4


def test_a_run_that_does_not_fit_does_not_begin(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(Sendable, match="with 100000 more of these rounds"):
        journal.expect_room(CHARGE, 100_000, ())
    assert not journal.totals(), "nothing was spent"
    spend(journal, 10)
    journal.expect_room(CHARGE, 100, range(10))
    with pytest.raises(Sendable, match="a round that it answered"):
        journal.expect_room(CHARGE, 100, [10])


KILLED = """
import os, sys
from pathlib import Path
from test_budget_by_data_set import CHARGE, opened, spend
from fedzero.model import files
journal = opened(Path(sys.argv[1]))
spend(journal, 2)
files.write = lambda *_, **__: os._exit(9)
spend(journal, 1, first=2)
"""


def test_a_process_that_is_killed_before_it_answers_has_spent(tmp_path: Path) -> None:
    """Killed after the entry, before the file beside it: the entry counts, and the journal goes on."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=HERE, env=ENV, check=False)
    assert done.returncode == 9
    journal = opened(tmp_path)
    assert journal.totals()[0].attempts == 3
    spend(journal, 4)
    assert journal.totals()[0].attempts == 4
    assert msgspec.json.decode((tmp_path / HEAD).read_bytes())["number"] == 3


def test_two_processes_at_once_do_not_exceed_the_budget(tmp_path: Path) -> None:
    """Each reserves 300 rounds of its own run; together they are allowed fewer."""
    script = """
import sys
from pathlib import Path
from test_budget_by_data_set import CHARGE, opened
from fedzero.errors import Sendable
import msgspec
journal, done = opened(Path(sys.argv[1]), name=sys.argv[2]), 0
try:
    for round in range(60):
        journal.reserve(msgspec.structs.replace(CHARGE, sigma=1.5, q=(0.1, 1.0)), round, b"q")
        done += 1
except Sendable:
    pass
print(done)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    both = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, cwd=HERE, env=ENV) for name in ("a", "b")]
    done = [int(process.communicate()[0]) for process in both]
    (found,) = opened(tmp_path).totals()
    assert found.attempts == sum(done) < 60
    assert found.epsilon <= POLICY.epsilon


def test_older_copies_are_found(tmp_path: Path) -> None:
    """Of the journal, or of the file beside it; of all files together nobody can tell, but for the site's answers."""
    keep, old = tmp_path / "keep", tmp_path / "old"
    journal = opened(keep)
    spend(journal, 3)
    journal.close()
    shutil.copytree(keep, old)
    journal = opened(keep)
    spend(journal, 6)
    journal.close()
    shutil.copy(old / FILE, keep)
    with pytest.raises(Tampered, match="older copy"):
        opened(keep)


@pytest.mark.parametrize("kept", [FILE, HEAD])
def test_half_a_restored_folder_is_found(tmp_path: Path, kept: str) -> None:
    keep, old = tmp_path / "keep", tmp_path / "old"
    (journal := opened(keep)).close()
    shutil.copytree(keep, old)
    journal = opened(keep)
    spend(journal, 5)
    journal.close()
    gone = HEAD if kept == FILE else FILE
    (keep / gone).unlink()
    if (old / gone).exists():
        shutil.copy(old / gone, keep)
    with pytest.raises(Tampered, match="older copy"):
        opened(keep)


TAMPERED = {
    "a charge that was lowered": "UPDATE charges SET body = CAST(replace(body, '1.0', '9.0') AS BLOB) WHERE number = 1",
    "an entry of another data set": "UPDATE charges SET data = x'00' WHERE number = 1",
    "an entry less": "DELETE FROM charges WHERE number = 1",
    "the last entries": "DELETE FROM charges WHERE number >= 1",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON charges BEGIN DELETE FROM charges; END",
    "a view": "ALTER TABLE charges RENAME TO c; CREATE VIEW charges AS SELECT * FROM c WHERE 0",
    "another table": "CREATE TABLE more (x)",
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_tampering_is_found(tmp_path: Path, kind: str) -> None:
    journal = opened(tmp_path)
    spend(journal, 4)
    journal.close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.executescript(TAMPERED[kind])
    with pytest.raises(Tampered):
        opened(tmp_path)


def test_clocks_change_nothing(tmp_path: Path, monkeypatch) -> None:
    journal = opened(tmp_path)
    for number, now in enumerate((1e9, -1e12, 1e15)):
        monkeypatch.setattr(budget.time, "time", lambda now=now: now)
        spend(journal, 1, first=number)
    journal.close()
    assert opened(tmp_path).totals()[0].attempts == 3


# ---- at a site


def private_recipe(**options):
    privacy = Privacy(sigma=1.0, delta=1e-4, clip=1.0, unit="example", population=32, probability=0.25, hosts=4)
    method = DeComFL(rate=1e-3, directions=2)
    recipe = recipe_of(method, clients=4, cohort=4, task=Own(name="north", batch=8))
    table = msgspec.to_builtins(recipe) | {"rounds": 5, "privacy": msgspec.to_builtins(privacy)} | options
    return recipes.decode(table)


def test_a_site_refuses_by_its_policy_before_it_touches_data(tmp_path: Path, clinics, capsys) -> None:
    def said(policy: Policy, recipe) -> str:
        return refused(site_with(tmp_path, privacy=policy, tasks=clinics), prepare(recipe, clients=(0,)))

    assert "privacy.require = true" in said(Policy(require=True), recipe_for())
    assert "privacy.unit = 'client', and the recipe has 'example'" in said(Policy(unit="client"), private_recipe())
    assert "privacy.adversary = 'server'" in said(Policy(adversary="server"), private_recipe())
    assert "privacy.epsilon = 0.01 (delta = 0.001) for this data" in said(
        Policy(epsilon=0.01, delta=1e-3), private_recipe()
    )
    assert not (tmp_path / "keep" / HEAD).exists(), "nothing was charged"
    with pytest.raises(FedzeroError, match="epsilon = 1e-09 of this site is too small"):
        Policy(epsilon=1e-9).check()


def test_a_round_at_a_site_is_reserved_before_its_answer(tmp_path: Path, clinics, monkeypatch, capsys) -> None:
    """Where the answer fails, the round is spent; asked again, it is answered and not paid again."""
    site = site_with(tmp_path, privacy=Policy(epsilon=50.0, require=True), tasks=clinics)
    assert isinstance(answer := asked(site, prepare(private_recipe(), clients=(0,))), Prepared), answer
    journal = site.run.budget
    monkeypatch.setattr(site.run._journal, "record", lambda *_: 1 / 0)
    refused(site, turn(0, 0))
    assert journal.totals()[0].attempts == 1
    monkeypatch.undo()
    given = reply(site, turn(0, 0))
    assert reply(site, turn(0, 0)) == given
    assert journal.totals()[0].attempts == 1
    reply(site, turn(1, 0))
    assert journal.totals()[0].attempts == 2
    assert asked(site, encode(Measure((), 0))) is not None
    site.leave()
    assert "2 rounds of 1 runs" in lines(tmp_path / "keep", Policy(epsilon=50.0))[0]
    assert run.SAVE_EVERY
