"""Connections that break, errors, Wait and Finish."""

from __future__ import annotations

import time

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.codes import Code
from fedzero.testing.devices.judging import judge_answer
from fedzero.testing.devices.scenarios.contract import Scenario
from fedzero.testing.devices.settings import Setting
from fedzero.testing.devices.trial import Bench, Trial, trial
from fedzero.testing.devices.wrong import Wrong

SMALL = Setting()
PAUSE = 2
LEAST = 0.45
"""Seconds after which a device may come back at the earliest, with a margin for clocks."""
LEAVING = 10.0


def _joined(t: Trial) -> None:
    t.start()
    t.join()
    t.give_model()
    t.play()


def _model_if_lost(t: Trial, ready: int | None) -> None:
    if ready is None:
        t.give_model()


def broken_connection(bench: Bench) -> None:
    """It breaks while the order is on its way; the order is sent again."""
    with trial(bench, SMALL) as t:
        _joined(t)
        t.run.advance()
        asked = t.asked(t.run.updates)
        at = time.monotonic()
        t.desk.post(t.desk.open_only, t.place, asked)
        hello = t.again()
        if (after := time.monotonic() - at) < LEAST:
            raise Wrong(
                f"it came back after {after:.2f} s: a device waits 0.5 s after a connection that broke", "errors"
            )
        _model_if_lost(t, hello.ready)
        t.desk.post(t.desk.resend, t.place)
        judge_answer(t, asked, t.next(m.Answer, "durability", but=(m.Ready,)))


def killed(bench: Bench) -> None:
    """It is killed while an order is open."""
    with trial(bench, SMALL) as t:
        _joined(t)
        t.run.advance()
        t.restart()
        hello = t.again()
        _model_if_lost(t, hello.ready)
        t.play(t.run.updates)


def lasting_errors(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        for code in (Code.STALE, Code.CONFLICT, Code.RATE):
            t.desk.post(t.desk.fail, t.place, code, "said by the test: the session goes on")
        t.run.advance()
        t.play(t.run.updates)


def busy(bench: Bench) -> None:
    """Errors after which a device comes back later."""
    with trial(bench, SMALL) as t:
        _joined(t)
        for code in (Code.BUSY, Code.UNEXPECTED):
            t.desk.post(t.desk.fail, t.place, code, "said by the test: come back")
            hello = t.again()
            _model_if_lost(t, hello.ready)
        t.run.advance()
        t.play(t.run.updates)


def withdrawn(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        t.desk.registry.revoke_place(t.place)
        t.desk.post(t.desk.fail, t.place, Code.REVOKED, "said by the test: this place was withdrawn")
        t.silent(3.0, [m.Enrol], "its place was withdrawn, and it enrols again by itself", "errors")


def wait(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        t.desk.post(t.desk.pause, PAUSE, "said by the test: come back later")
        at = time.monotonic()
        hello = t.again()
        if (after := time.monotonic() - at) < PAUSE - 0.1:
            raise Wrong(f"Wait said {PAUSE} s, and it came back after {after:.1f} s", "a-session")
        _model_if_lost(t, hello.ready)
        t.run.advance()
        t.play(t.run.updates)


def finish(bench: Bench) -> list[str]:
    with trial(bench, SMALL) as t:
        _joined(t)
        t.desk.post(t.desk.finish, 1, "said by the test: the run is over")
        status = bench.subject.wait(LEAVING)
        t.silent(0.5, [m.Enrol, m.Hello], "the run is over: Finish was signed", "a-session")
        if status is None:
            return [f"the command still ran {LEAVING:g} s after Finish"]
        return [] if status == 0 else [f"the command ended with status {status} after Finish"]


def forged_finish(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        frame = m.Finish(1, "", bytes(64))
        t.desk.post(t.desk.put, t.place, m.encode(frame))
        time.sleep(0.5)
        if bench.subject.ended() is not None:
            raise Wrong("Finish with a wrong signature ends the client", "signatures")
        t.cut()
        hello = t.again()
        _model_if_lost(t, hello.ready)
        t.run.advance()
        t.play(t.run.updates)


SCENARIOS = (
    Scenario(
        "broken-connection", "comes back after a connection that broke, and answers the open order", broken_connection
    ),
    Scenario("killed", "comes back after it was killed, and answers", killed),
    Scenario("lasting-errors", "goes on after the errors 9, 10 and 12", lasting_errors),
    Scenario("busy", "comes back after the errors 15 and 8", busy),
    Scenario("withdrawn", "takes no other place when its place is withdrawn", withdrawn),
    Scenario("wait", "comes back after Wait, not before", wait),
    Scenario("finish", "ends after Finish", finish),
    Scenario("forged-finish", "does not end after Finish with a wrong signature", forged_finish),
)
