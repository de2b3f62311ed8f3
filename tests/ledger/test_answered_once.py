"""What a link drew in private is drawn once: killed anywhere, a run sends the same bytes again, and another question in
the same place is refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import crash_child
import pytest
from harness import small
from killed import KilledRun
from noise import Noise
from test_crash import together

from fedzero import plugins
from fedzero.engines.local import LocalClients
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.answers import Answered, Answers, Place, files_of, question_of
from fedzero.methods import DeComFL, ScaffoldZO
from fedzero.protocol.engine import arrivals
from fedzero.protocol.messages import decode_reply
from fedzero.rounds.server import Server
from fedzero.testing.engines import Changing
from fedzero.testing.trial import Trial

RECIPE = """
name = "noisy"
rounds = 3
seed = 3
evaluate_every = 2
algorithm = { kind = %s, rate = 0.01, directions = 2 }
task = { kind = "quadratic", dimension = 6, noise = 0.1 }
filters = [{ kind = "test-noise" }]
federation = { clients = 3, cohort = 2 }
engine = { kind = "local", merge = false }
"""
RECIPES = {"scalars": RECIPE % '"decomfl"', "two exchanges": RECIPE % '"scaffold-zo", type = "I"'}
"""One that sends scalars once a round, and one whose clients go on in a second exchange and keep a memory."""


@pytest.fixture(autouse=True)
def known() -> None:
    plugins.register(Noise)


class Case(KilledRun):
    """A recipe, and a folder for its runs."""

    def __init__(self, server: Any, folder: Path, recipe: str):
        super().__init__(server, folder, RECIPES[recipe], crash_child.go_noisy, "heard")

    def heard(self, name: str) -> dict[tuple[str, ...], Counter[str]]:
        """By round, exchange and client: how often which bytes reached the server."""
        found: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        path = self.beside(name)
        for line in path.read_text().splitlines() if path.exists() else ():
            *place, data = line.split()
            found[tuple(place)][data] += 1
        return found

    def killed_at(self, at: int) -> Generator[Any, Any, tuple[list[str], int]]:
        """What is wrong after a kill and a resume; how many replies left twice."""
        if why := (yield from self.resumed(at)):
            return [why], 0
        heard, report = self.heard(str(at)), self.report(str(at))
        wrong = [f"{place} left as {len(sent)} replies" for place, sent in heard.items() if len(sent) > 1]
        if not report["summary"]["complete"] or report["summary"]["refused"]:
            wrong.append("somebody was refused")
        return [f"killed at {at}: {why}" for why in wrong], sum(sent.total() > 1 for sent in heard.values())

    def steps(self) -> int:
        report = self.undisturbed()
        assert not any(path.exists() for path in files_of(self.folder / "whole")), "a finished run asks nobody again"
        return int(report["steps"])


def all_of(case: Case, every: int) -> None:
    points = range(every - 1, case.steps(), every)
    found = together(case.killed_at(at) for at in points)
    assert [line for wrong, _ in found for line in wrong] == []
    assert sum(again for _, again in found) > 0, "no kill was between a reply and its round"


def test_killed_now_and_then(warm_server, tmp_path: Path) -> None:
    all_of(Case(warm_server, tmp_path, "two exchanges"), every=29)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_killed_at_every_step(warm_server, tmp_path: Path, recipe) -> None:
    all_of(Case(warm_server, tmp_path, recipe), every=1)


def again(run: Trial) -> Trial:
    """The same run, in another process: what is not on the disk is gone."""
    setup = run.prepared()
    replica = setup.replica()
    how = setup.problem.objective, setup.problem.shards, False, False, setup.chain
    engine = LocalClients(replica, *how, answers=run.ledger.path.parent)
    server = Server(setup.plan, replica, run.ledger)
    return Trial(setup, replica, engine, server, run.ledger, run.prepared)


@pytest.mark.parametrize("method", [DeComFL(rate=1e-3), ScaffoldZO(rate=1e-3, type="I")], ids=["one", "two"])
def test_a_round_that_was_lost_is_answered_by_the_same_bytes(tmp_path: Path, method) -> None:
    """Without the file, by others: so the noise does come from where nobody can draw it again."""
    heard: list[dict[tuple[int, int], bytes]] = []

    def asked(run: Trial) -> dict[tuple[int, int], bytes]:
        heard.append({})

        def listen(replies: Any, round: int, exchange: int) -> Any:
            heard[-1] |= {(exchange, client): data for client, data in replies}
            return replies

        run.engine = Changing(run.engine, listen)
        run.server._exchanges(0, run.engine)
        return heard[-1]

    run = small(tmp_path, method, filters=(Noise(),), clients=4, cohort=3)
    first, second = asked(run), asked(again(run))
    assert first == second and len(first) == 3 * len(run.server.cost(0).replies)
    for path in files_of(tmp_path):
        path.unlink(missing_ok=True)
    other = asked(again(run))
    values = [{place: decode_reply(data, 1 << 20).values for place, data in found.items()} for found in (first, other)]
    assert all(values[0][place] != values[1][place] for place in first)


def test_another_question_for_the_same_turn_is_refused(tmp_path: Path) -> None:
    run = small(tmp_path, DeComFL(rate=1e-3), filters=(Noise(),), clients=4, cohort=4)
    sending = run.server.delivery.instructions(0, range(4))
    asked = {client: sending.messages[message] for client, message in sending.which.items()}

    def answered(clients: LocalClients, questions: dict[int, bytes]) -> dict[int, bytes | Exception]:
        clients.send(0, 0, list(questions.values()), {client: place for place, client in enumerate(questions)})
        return {arrival.client: arrival.data for arrival in arrivals(clients)}

    first = answered(run.engine, asked)
    found = answered(again(run).engine, asked | {2: asked[2] + b"\0"})
    assert isinstance(found[2], Refused) and "by another question" in str(found[2])
    assert {client: found[client] for client in (0, 1, 3)} == {client: first[client] for client in (0, 1, 3)}


def test_nothing_private_leaves_where_nothing_is_kept(tmp_path: Path) -> None:
    run = small(tmp_path, DeComFL(rate=1e-3), filters=(Noise(),))
    run.engine._answers = None
    with pytest.raises(FedzeroError, match="nobody said where replies are kept"):
        run.play(1)


def test_two_processes_that_answer_at_once_are_told_apart(tmp_path: Path) -> None:
    """Who comes second must not send what it made."""
    asked, place = {0: b"question"}, Place(3, 0)
    with closing(Answers(tmp_path)) as one, closing(Answers(tmp_path)) as other:
        one.keep(3, 0, asked, {0: b"first"})
        with pytest.raises(FedzeroError, match="client 0 was asked before"):
            other.keep(3, 0, asked, {0: b"second"})
        other.keep(3, 0, asked, {0: b"first"})
        assert other.find(place) == Answered(question_of(b"question"), b"", b"first")
