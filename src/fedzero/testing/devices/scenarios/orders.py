"""Orders that are not as usual: said twice, forged, another one under the same number, too early."""

from __future__ import annotations

import struct
from dataclasses import replace

from fedzero.engines.devices import messages as m
from fedzero.engines.devices import statements
from fedzero.protocol.messages import decode_reply, encode_work
from fedzero.testing.devices.judging import judge_answer
from fedzero.testing.devices.scenarios.contract import Scenario
from fedzero.testing.devices.settings import Setting
from fedzero.testing.devices.trial import Bench, Trial, trial
from fedzero.testing.devices.wrong import Wrong

SMALL = Setting()
LATER = struct.pack("<Qd", 1 << 40, 0.5)
"""A rate of a round that never comes: the order is another one, and asks for the same."""


def _joined(t: Trial) -> None:
    t.start()
    t.join()
    t.give_model()


def same_order(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        first = t.play()
        _expect_same(t, first, "it was sent again in the same session")


def _expect_same(t: Trial, first: m.Answer, why: str) -> None:
    t.order(t.asked())
    second = t.next(m.Answer, "durability", f"the order of round 0: {why}", but=(m.Ready,))
    if second != first:
        raise Wrong(f"the same order gets another answer: {why}", "durability")


def same_order_after_kill(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        first = t.play()
        t.restart()
        t.again()
        _expect_same(t, first, "the device was killed and started in between")


def _expect_refusal(t: Trial, code: int, why: str, section: str) -> None:
    refusal = t.next(m.Refusal, section, why, but=(m.Ready,))
    if refusal.code != code:
        raise Wrong(f"Refusal {refusal.code} ({refusal.text}) came where {code} was expected: {why}", section)
    if (refusal.round, refusal.exchange) != (t.run.round, 0):
        raise Wrong(f"the Refusal is of round {refusal.round}, and the order of {t.run.round}", "frames")


ANOTHER = "another order under the number of one that was answered: it is refused by code 1"


def another_order(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        t.play()
        t.order(t.asked(tail=LATER))
        _expect_refusal(t, 1, ANOTHER, "durability")
        t.run.advance()
        t.play(t.run.updates)


def another_order_after_kill(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        t.play()
        t.restart()
        t.again()
        t.order(t.asked(tail=LATER))
        _expect_refusal(t, 1, f"{ANOTHER}, also after a restart: its answers are on disk", "durability")


def another_attempt(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        t.play()
        asked = t.asked(attempt=1, tail=LATER)
        t.order(asked)
        judge_answer(t, asked, t.answer())


def forged_order(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        _joined(t)
        asked = t.asked()
        frame = m.Order(0, 0, 0, asked.body, bytes(64))
        t.desk.post(t.desk.put, t.place, m.encode(frame))
        _expect_refusal(t, 2, "the signature of the order is 64 zeros", "frames")
        other = statements.order(t.desk.run, t.place + 1, 0, 0, 0, asked.body)
        signature = t.desk.signer.sign(t.algorithm, other)
        t.desk.post(t.desk.put, t.place, m.encode(m.Order(0, 0, 0, asked.body, signature)))
        _expect_refusal(t, 2, "the order is signed for another place", "frames")
        t.play()


def no_model(bench: Bench) -> None:
    with trial(bench, SMALL) as t:
        t.start()
        t.join()
        t.order(t.asked())
        _expect_refusal(t, 5, "the device has no model yet", "frames")
        t.give_model()
        t.play()


def known_updates(bench: Bench) -> None:
    """An order names updates that the device has folded already, as after a reply that was lost."""
    with trial(bench, SMALL) as t:
        _joined(t)
        t.play()
        t.run.advance(3)
        t.play(t.run.updates)
        t.run.advance()
        t.play(t.run.updates)


def rounds_without_update(bench: Bench) -> None:
    """Rounds whose update is none: the order is of a later round than the updates lead to."""
    with trial(bench, SMALL) as t:
        _joined(t)
        t.play()
        asked = replace(t.asked(), round=5, body=_body_of(t, 5))
        t.order(asked)
        answer = t.answer()
        if answer.round != 5:
            raise Wrong(f"the answer is of round {answer.round}, and the order of 5", "a-turn")
        if decode_reply(answer.body, asked.limit).digest != t.run.replica.digest():
            raise Wrong("rounds without an update change the model: it stays as it is", "a-turn")


def _body_of(t: Trial, round: int) -> bytes:
    return m.encode(m.OrderBody(encode_work(round, 0, []), t.run.pairs([round])))


SCENARIOS = (
    Scenario("same-order", "answers the same order with the same bytes", same_order),
    Scenario("same-order-killed", "does so after it was killed", same_order_after_kill),
    Scenario("another-order", "refuses another order under the same number", another_order),
    Scenario("another-order-killed", "does so after it was killed", another_order_after_kill),
    Scenario("attempt", "answers the order of another attempt", another_attempt),
    Scenario("forged-order", "refuses orders with a wrong signature, and goes on", forged_order),
    Scenario("no-model", "refuses an order that comes before a model, by code 5", no_model),
    Scenario("known-updates", "skips updates that it has folded", known_updates),
    Scenario("no-update", "is ready for a round although those before it had no update", rounds_without_update),
)
