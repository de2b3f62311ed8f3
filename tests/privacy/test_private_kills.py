"""A private run that is killed: what a client answered is said again byte for byte, and noise that was drawn for nobody
is nowhere."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import private_child
import pytest
from detectors import Wrong, expect
from private_child import ROUND

from fedzero.ledger.answers import Answers
from fedzero.ledger.store import Ledger
from fedzero.model.updates import decode_update
from fedzero.protocol.messages import decode_reply
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded

RECIPE = """
name = "killed"
rounds = 3
seed = 3
evaluate_every = 3
algorithm = { kind = "decomfl", rate = 0.01, directions = 6 }
task = { kind = "quadratic", dimension = 12, noise = 0.1 }
federation = { clients = 4, cohort = 4 }
engine = { kind = "local", merge = false }
privacy = { sigma = 1.0 }
"""

INTEGERS = 6 * 4
"""Bytes: a reply has them last."""


class Killed:
    """A run that was killed at a moment, and what was heard of it so far; `resume` ends it."""

    def __init__(self, server: Any, place: Path, moment: str, plant: str = ""):
        self.server, self.place, self.folder, self.plant = server, place, place / "run", plant
        (place / "recipe.toml").write_text(RECIPE)
        expect(self._process(moment) == -signal.SIGKILL, f"was not killed at {moment!r}")
        self.first = self.heard()

    def _process(self, moment: str) -> int:
        paths = map(str, (self.place / "recipe.toml", self.folder, self.place / "heard"))
        process = self.server.Process(target=private_child.go, args=(*paths, moment, self.plant), daemon=True)
        process.start()
        process.join(120)
        code: int = process.exitcode
        return code

    def heard(self) -> list[tuple[str, int, bytes]]:
        lines = (self.place / "heard").read_text().splitlines()
        return [(kind, round, bytes.fromhex(what)) for kind, round, what in map(json.loads, lines)]

    def resume(self) -> list[tuple[str, int, bytes]]:
        """What is heard of round ROUND after the kill."""
        expect(self._process("") == 0, "the run does not go on")
        return [each for each in self.heard()[len(self.first) :] if each[1] == ROUND]

    def bytes_on_disk(self) -> bytes:
        return b"\0".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())


def answers_are_repeated(killed: Killed) -> None:
    """A host has one client: its answer is the integers of the reply that was kept."""
    with closing(Answers(killed.folder)) as answers:
        replies = answers.of_exchange(ROUND, 0)
    kept = {client: decode_reply(data, len(data)).values[-INTEGERS:] for client, data in replies.items()}
    expect(kept, "nothing was kept before the kill")
    before = {kind: what for kind, round, what in killed.first if round == ROUND and kind.startswith("answer")}
    after = {kind: what for kind, _, what in killed.resume() if kind.startswith("answer")}
    found = {int(kind.split()[-1]): what for kind, what in after.items()}
    expect(found == kept, "clients rounded again after a kill")
    expect(not before or before == after, "hosts answered otherwise after a kill")


def nothing_drawn_is_left(killed: Killed) -> None:
    """Noise of a round that was not committed: nothing on disk has it. It may be drawn again."""
    (drawn,) = [what for kind, round, what in killed.first if kind == "noise" and round == ROUND]
    left = killed.bytes_on_disk()
    released = [what for kind, round, what in killed.first if kind == "released" and round == ROUND]
    expect(not released, "an update was released before it was durable")
    numbers = [drawn[place : place + 8] for place in range(0, len(drawn), 8)]
    expect(drawn not in left and not any(each in left for each in numbers), "noise of nobody's update is on disk")


def released_once(killed: Killed) -> None:
    """In all processes a round has one update, the ledger's; and the model is made of it."""
    killed.resume()
    found: dict[int, set[bytes]] = {}
    for kind, round, what in killed.heard():
        if kind == "released":
            found.setdefault(round, set()).add(what)
    with closing(Ledger.open(killed.folder / "ledger.db")) as ledger:
        written = {record.round: decode_update(record.update or b"").scalars for record in ledger.rounds()}
    expect(len(written) == 3, "the run has not ended")
    for round, updates in found.items():
        expect(updates == {written[round]}, f"round {round} was released with {len(updates)} draws of noise")
    recorded.verified(killed.folder, Environment())


@pytest.mark.parametrize("moment", ["answers", "phase"])
def test_integers_of_a_client_are_drawn_once(warm_server: Any, tmp_path: Path, moment: str) -> None:
    answers_are_repeated(Killed(warm_server, tmp_path, moment))


def test_integers_drawn_again_are_found(warm_server: Any, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="rounded again"):
        answers_are_repeated(Killed(warm_server, tmp_path, "answers", "rounded again"))


@pytest.mark.parametrize("moment", ["noise", "transaction"])
def test_noise_of_a_round_that_was_not_committed_is_nowhere(warm_server: Any, tmp_path: Path, moment: str) -> None:
    killed = Killed(warm_server, tmp_path, moment)
    nothing_drawn_is_left(killed)
    released_once(killed)
    drawn = [what for kind, round, what in killed.heard() if kind == "noise" and round == ROUND]
    assert len(set(drawn)) == 2, "it was drawn again, and the first draw said nothing to anybody"


def test_noise_of_a_round_that_was_committed_is_not_drawn_again(warm_server: Any, tmp_path: Path) -> None:
    killed = Killed(warm_server, tmp_path, "commit")
    released_once(killed)
    assert len([None for kind, round, _ in killed.heard() if kind == "noise" and round == ROUND]) == 1


@pytest.mark.parametrize(
    ("plant", "detector", "said"),
    [
        ("noise written", nothing_drawn_is_left, "on disk"),
        ("released before", nothing_drawn_is_left, "before it was durable"),
        ("released before", released_once, "2 draws"),
    ],
)
def test_noise_that_is_drawn_twice_and_seen_twice_is_found(
    warm_server: Any, tmp_path: Path, plant: str, detector: Any, said: str
) -> None:
    with pytest.raises(Wrong, match=said):
        detector(Killed(warm_server, tmp_path, "noise", plant))
