"""Enrolment, sessions, and gateways that are not to be believed."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.plan import encode
from fedzero.testing.devices.judging import judge_answer
from fedzero.testing.devices.scenarios.contract import Scenario
from fedzero.testing.devices.settings import Run, Setting
from fedzero.testing.devices.trial import Bench, Trial, trial
from fedzero.testing.devices.wrong import Wrong

SMALL = Setting()
BEAT = 2
MOMENT = 2.0
"""Seconds in which a device that goes on would have said so."""
WORK = (m.Ready, m.Answer, m.Fetch)


def enrolment(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        t.start()
        hello = t.join()
        if hello.run != t.desk.run or hello.place != 0:
            raise Wrong(f"Hello has the run {hello.run.hex()}, place {hello.place}", "frames")
        if hello.ready is not None:
            raise Wrong(f"Hello of a device without a model has ready = {hello.ready}, not nil", "frames")
        if hello.plan:
            raise Wrong("Hello of a device without a plan has the SHA-256 of one", "frames")
        t.give_model()
        t.play()


def second_session(bench: Bench) -> list[str]:
    with trial(bench, SMALL) as t:
        t.start()
        t.join()
        t.give_model()
        t.play()
        t.restart()
        hello = t.again()
        if hello.plan not in (b"", sha256(t.desk.plan).digest()):
            raise Wrong(f"Hello has {hello.plan.hex()} for the plan, which is not its SHA-256", "frames")
        if hello.ready not in (None, 0):
            raise Wrong(f"Hello says ready = {hello.ready}, and the run is in round 0", "frames")
        if hello.ready is None:
            t.give_model()
        t.run.advance()
        t.play(t.run.updates)
    if not hello.plan:
        t.remarks.append("it does not keep the plan: it is sent again in each session")
    if hello.ready is None:
        t.remarks.append("it keeps no model: it is sent updates or a checkpoint in each session")
    return t.remarks


def other_fingerprint(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        t.start(bytes(16))
        t.next(m.Enrol, "tickets-and-keys", seconds=bench.slow)
        t.silent(MOMENT, [m.Hello], "the keys of Enrolled do not have the fingerprint of the ticket", "signatures")


def forged_enrolled(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        t.desk.deviations.spoilt.add("enrolled")
        t.start()
        t.next(m.Enrol, "tickets-and-keys", seconds=bench.slow)
        t.silent(MOMENT, [m.Hello], "the signature of Enrolled is wrong", "signatures")


def forged_welcome(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        t.desk.deviations.spoilt.add("welcome")
        t.start()
        t.join()
        t.send_updates(True, 0, 0)
        t.order(t.asked())
        t.silent(MOMENT, WORK, "the signature of Welcome is wrong", "signatures")


def _refuses_plan(bench: Bench, setting: Setting, plan: object, why: str) -> None:
    """A device that cannot follow a plan says neither Ready nor Answer; it may end, or refuse orders by code 5."""
    with trial(bench, setting, plan=m.encode(plan)) as t:
        t.start()
        t.join()
        t.send_updates(True, 0, 0)
        t.order(t.asked())
        for frame in t.silent(MOMENT, WORK, why, "the-plan"):
            if isinstance(frame, m.Refusal) and frame.code != 5:
                raise Wrong(
                    f"it refuses the order by code {frame.code}, and 5 is that of a device that cannot", "frames"
                )


def _plan(bench: Bench, setting: Setting = SMALL) -> list[Any]:
    folder = bench.folder / "plan"
    folder.mkdir(exist_ok=True)
    found: list[Any] = msgspec.msgpack.decode(encode(Run(setting, folder).plan))
    return found


def plan_version(bench: Bench) -> None:
    plan = _plan(bench)
    plan[0] = 99
    _refuses_plan(bench, SMALL, plan, "the plan has the version 99")


def stream_version(bench: Bench) -> None:
    plan = _plan(bench)
    plan[1] = 99
    _refuses_plan(bench, SMALL, plan, "the plan has the version 99 of the direction stream")


def outside_profile(bench: Bench) -> None:
    plan = _plan(bench)
    plan[7][0] = 99
    _refuses_plan(bench, SMALL, plan, "the plan has directions of kind 99")


def too_few_rows(bench: Bench) -> None:
    setting = Setting(least_rows=1000)
    _refuses_plan(bench, setting, _plan(bench, setting), "the plan asks for 1,000 rows, and the device has 40")


def trailing_fields(bench: Bench) -> None:
    plan = _plan(bench)
    tensors, method, task = plan[6:9]
    more = [*plan[:6], [[*each, "later"] for each in tensors], [*method, "later"], [*task, "later"], "later"]
    with trial(bench, SMALL, plan=m.encode(more)) as t:
        t.desk.deviations.longer = True
        t.odd = "frames have an element behind their last field, which a device ignores"
        t.start()
        t.join()
        t.give_model()
        t.run.advance()
        _longer_order(t)


def _longer_order(t: Trial) -> None:
    asked = t.asked(t.run.updates)
    work, rates = msgspec.msgpack.decode(asked.body)
    work = m.encode([*msgspec.msgpack.decode(work), None, "later"])
    asked = replace(asked, body=m.encode([work, rates, "later"]))
    t.order(asked)
    judge_answer(t, asked, t.answer())


def heartbeat(bench: Bench) -> None:
    with trial(bench, SMALL, beat=BEAT) as t:
        t.start()
        t.join()
        t.give_model()
        t.silent(
            3.5 * BEAT,
            [m.Hello, m.Enrol],
            "a session was not kept: pings are answered, requests repeated",
            "transports",
        )
        t.play()


SCENARIOS = (
    Scenario("enrolment", "enrols, proves who it is, gets a model, answers an order", enrolment),
    Scenario("second-session", "comes back to its place after it was killed", second_session),
    Scenario("other-gateway", "refuses a gateway whose keys do not have the ticket's fingerprint", other_fingerprint),
    Scenario("forged-enrolled", "refuses Enrolled with a wrong signature", forged_enrolled),
    Scenario("forged-welcome", "refuses Welcome with a wrong signature", forged_welcome),
    Scenario("plan-version", "does not follow a plan of another version", plan_version),
    Scenario("stream-version", "does not follow a plan with another direction stream", stream_version),
    Scenario("outside-profile", "does not follow a plan outside of its profile", outside_profile),
    Scenario("too-few-rows", "does not take part with fewer rows than the plan asks for", too_few_rows),
    Scenario("trailing-fields", "ignores elements behind the last field of arrays", trailing_fields),
    Scenario("heartbeat", "keeps a session in which nothing happens", heartbeat),
)
