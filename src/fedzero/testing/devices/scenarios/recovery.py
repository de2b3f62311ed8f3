"""Devices that lack rounds: updates, checkpoints, and transfers that break."""

from __future__ import annotations

from hashlib import sha256

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.session import PIECE
from fedzero.testing.devices.scenarios.contract import Scenario
from fedzero.testing.devices.scenarios.turns import CHANGING, MOMENTUM
from fedzero.testing.devices.settings import Setting
from fedzero.testing.devices.trial import Bench, Trial, trial
from fedzero.testing.devices.wrong import Wrong

SMALL = Setting()
MOVING = Setting(algorithm={"optimizer": MOMENTUM, "rate": CHANGING, "directions": 2})
LARGE = Setting((300, 60, 10), {"optimizer": MOMENTUM, "directions": 2}, rows=12)
"""149,360 bytes with the momentum: three pieces."""
SECTION = "updates-and-recovery"


def fresh(bench: Bench) -> None:
    """40 rounds in two frames; then it is told to begin again."""
    with trial(bench, MOVING) as t:
        t.start()
        t.join()
        t.run.advance(40)
        t.send_updates(True, 0, 25)
        frame = t.next(m.Ready, SECTION)
        if frame.round != 25:
            raise Wrong(f"Ready says round {frame.round}, and 25 updates from the first model lead to 25", SECTION)
        t.send_updates(False, 25, 40)
        t.ready()
        t.play()
        t.send_updates(True, 0, 40)
        t.ready()


def behind(bench: Bench) -> None:
    with trial(bench, MOVING) as t:
        t.start()
        t.join()
        t.give_model()
        t.run.advance(20)
        t.send_updates(False, 0, 20)
        t.ready()
        t.play()


def _expect_fetch(t: Trial, hashed: bytes, offset: int) -> None:
    fetch = t.next(m.Fetch, SECTION, "a Checkpoint was offered")
    if fetch.sha256 != hashed:
        raise Wrong("Fetch names another checkpoint than the one that was offered", "frames")
    if fetch.offset != offset:
        raise Wrong(f"Fetch asks for offset {fetch.offset}, and the device has {offset} bytes", SECTION)


def checkpoint(bench: Bench) -> None:
    """Three pieces; the momentum is part of the state, and the next update shows it."""
    with trial(bench, LARGE) as t:
        t.start()
        t.join()
        t.run.advance(2)
        content = t.offer()
        hashed = sha256(content).digest()
        for offset in range(0, len(content), PIECE):
            _expect_fetch(t, hashed, offset)
        t.ready()
        t.run.advance()
        t.play(t.run.updates[-1:])


def broken_transfer(bench: Bench) -> list[str]:
    """The connection breaks after the first piece; the same checkpoint is offered again."""
    with trial(bench, LARGE) as t:
        t.start()
        t.join()
        t.run.advance(2)
        t.desk.deviations.breaking = True
        content = t.offer()
        hashed = sha256(content).digest()
        _expect_fetch(t, hashed, 0)
        t.next(m.Fetch, SECTION)
        t.again()
        t.offer()
        fetch = t.next(m.Fetch, SECTION, "a Checkpoint was offered again")
        if fetch.sha256 != hashed or fetch.offset > len(content):
            raise Wrong(f"Fetch asks for offset {fetch.offset} of {fetch.sha256.hex()}", SECTION)
        t.ready()
        t.play()
    return [] if fetch.offset else ["a transfer that broke off begins again: it may go on at its offset"]


def spoilt_checkpoint(bench: Bench) -> None:
    """A piece with a wrong byte: it does not have the SHA-256 that the gateway signed."""
    with trial(bench, LARGE) as t:
        t.start()
        t.join()
        t.run.advance(1)
        t.offer(spoilt=1000)
        t.silent(2.0, [m.Ready], "the pieces do not have the SHA-256 that was offered", SECTION)
        t.cut()
        t.again()
        t.offer()
        t.ready()


def forged_recovery(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        t.start()
        t.join()
        t.run.advance(2)
        t.desk.deviations.spoilt |= {"updates", "checkpoint"}
        t.send_updates(True, 0, 2)
        t.silent(1.0, [m.Ready], "the signature of Updates is wrong", "signatures")
        if t.bench.subject.ended() is not None:
            t.desk.deviations.spoilt.clear()
            t.restart()
        elif t.place in t.desk.here:
            t.offer()
            t.silent(1.0, [m.Fetch, m.Ready], "the signature of Checkpoint is wrong", "signatures")
        t.desk.deviations.spoilt.clear()
        t.cut()
        t.again()
        t.give_model()
        t.play()


SCENARIOS = (
    Scenario("updates", "folds updates in several frames, and begins again when told so", fresh),
    Scenario("behind", "folds updates that it missed", behind),
    Scenario("checkpoint", "fetches a checkpoint in pieces, momentum included", checkpoint),
    Scenario("broken-transfer", "fetches a checkpoint although the connection breaks", broken_transfer),
    Scenario("spoilt-checkpoint", "takes no checkpoint with another SHA-256", spoilt_checkpoint),
    Scenario("forged-recovery", "takes no updates and no checkpoint with a wrong signature", forged_recovery),
)
