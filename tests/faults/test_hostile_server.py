"""A server with good certificates that sends what it should not: an honest site tells it nothing, does nothing that it
did not agree to, and then serves the run that it did agree to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from federation import Federation

from fedzero.deploy.site.reasons import SEE, Reason
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

sys.path.append(str(Path(__file__).parents[1] / "language"))
SECRET = "known to the clients alone"
UNDECLARED = "is not among the files that this site has declared"
EXPECTED = {
    "a row of a declared file": f"{Reason.TASK}: {SEE}",
    "a program": "is not one of this site's",
    "a module": "is not one of this site's",
    "a service": "is not one of this site's",
    "an open run": "federation.private = false is not served, because it has a secret",
    "another method": "its terms serve the methods decomfl, not 'fedkseed'",
    "a cohort too large": "federation.cohort = 9 exceeds federation.clients = 2",
    "a client that is none": "client 7 is assigned to this site, but federation.clients = 2",
    "words for a terminal": "cannot be read by fedzero",
    "a run that was agreed to": "Prepared",
    "a model": "was sent a model, which decomfl never sends",
    "an instruction of another round": "in an order of exchange 0 of round 1",
    "a round beyond the last": "was sent an order of round 10828: the recipe has 3 rounds",
    "an exchange beyond the last": "was sent exchange 1 of a round that has 1",
    "a client of another site": "client 1 is not at this site",
    "an outcome": "federation.sync = false never sends",
    "an update of a later round": "was sent an update of round 3",
    "an evaluation out of turn": "was told to evaluate the model after round 1",
    "an end beyond the last round": "was told of 10828 rounds",
    "a question": "Replies",
    "another question": "before, by another question",
    "an earlier round": "is asked about round 0, and answered round 1 before",
    "an order of many megabytes": "was sent an order of 83,886,080 bytes",
    "work before a run": "was given work before it was prepared for a run",
}


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    from small_language import make

    folder = tmp_path / "own" / "clinic"
    folder.mkdir(parents=True)
    make("opt", folder / "model")
    (folder / "patients.csv").write_text("name,diagnosis\nAda,typhoid-4711\n")
    (folder / "secret").write_text(SECRET)
    return folder


def test_an_honest_site(clinic: Path, made: Callable[..., Federation]) -> None:
    federation = made(sites=["north"], rounds=20, server_model=False)
    (federation.folder / "server").write_text("hostile")
    federation.serve("--set", "federation.private=true", "--deadline", "60")
    federation.join(
        "north", "--secret", clinic / "secret", "--only-method", "decomfl", "--file", f"rows={clinic / 'patients.csv'}",
        "--file", f"theirs={clinic / 'model'}",
    )  # fmt: skip
    assert federation.supervisor is not None
    assert federation.supervisor.wait(180) == 0
    heard = [json.loads(line) for line in (federation.folder / "heard").read_text().splitlines()]
    said = {each["order"]: each["said"] for each in heard}
    assert len(said) > 200
    for name, words in EXPECTED.items():
        assert words in said[name], (name, said[name])
    for what in ("rows", "a tokenizer", "a base"):
        there, absent = (said[f"{what}, {how}"] for how in ("there", "not there"))
        assert UNDECLARED in there
        assert there == absent.replace("nothing.csv", "patients.csv"), "the same words, whether it is there or not"
    everything = (federation.folder / "heard").read_text() + (federation.folder / "serve.txt").read_text()
    for secret in ("4711", SECRET, "Traceback", str(federation.kit("north"))):
        assert secret not in everything
    assert not (clinic / "touched").exists()
    console = (federation.kit("north") / "console.txt").read_text()
    assert "typhoid-4711" in console, "the people at the site can read why"
    assert "\x1b[2J" not in console
    summary = json.loads((federation.folder / "serve.json").read_text().splitlines()[-1])
    assert (summary["rounds"], summary["refused"]) == (20, 0)
    recipe = recipes.load(federation.recipe, ["federation.private=true"])
    here = Environment(secret=SECRET.encode())
    alone = session.start(recipe, federation.folder / "undisturbed", here, Silent())
    assert summary["ledger_head"] == alone.ledger_head
