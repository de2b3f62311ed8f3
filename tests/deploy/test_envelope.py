"""What is around an order on its way to a site (docs/wire.md, "The envelope")."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

from fedzero.deploy.flare.executor import SiteExecutor
from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote import messages

SERVER = "server.job"
FINISH = messages.encode(messages.Finish(3))


@pytest.fixture
def executor(tmp_path: Path) -> SiteExecutor:
    found = SiteExecutor()
    found._site = Site(Settings(device="cpu"), tmp_path)
    return found


def sent(executor: SiteExecutor, payload: bytes, origin: str = SERVER) -> tuple[str, bytes]:
    """FLARE's return code, and the answer."""
    reply = executor._on(Message({MessageHeaderKey.ORIGIN: origin}, payload), SERVER)
    return reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK), reply.payload


def numbered(number: int, order: bytes = FINISH) -> bytes:
    return number.to_bytes(8, "big") + order


def test_an_order_follows_its_number_and_the_answer_has_none(executor: SiteExecutor):
    code, answer = sent(executor, numbered(1))
    assert code == ReturnCode.OK
    assert messages.decode_answer(answer) == messages.Failed("was given work before it was prepared for a run")


def test_a_number_below_the_largest_is_stale_and_an_equal_one_is_not(executor: SiteExecutor):
    assert [sent(executor, numbered(number))[0] for number in (2, 2, 256, 255, 2**64 - 1, 257)] == [
        *(ReturnCode.OK, ReturnCode.OK, ReturnCode.OK, "stale", ReturnCode.OK, "stale")
    ]


def test_others_than_the_server_are_not_answered(executor: SiteExecutor):
    assert sent(executor, numbered(1), "another.job") == ("unauthorized", b"-")
    assert sent(executor, b"ping", "another.job") == ("unauthorized", b"-")


def test_a_ping_is_answered_while_an_order_is_worked_on(executor: SiteExecutor):
    began, go_on = Event(), Event()

    def slow(order: bytes) -> bytes:
        began.set()
        assert go_on.wait(30)
        return order

    executor._site.answer = slow
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(sent, executor, numbered(1))
        assert began.wait(30)
        try:
            assert sent(executor, b"ping") == (ReturnCode.OK, b"ping")
        finally:
            go_on.set()
        assert working.result() == (ReturnCode.OK, FINISH)


@pytest.mark.parametrize("payload", [b"", b"pin", b"ping!", bytes(7), bytes(8)])
def test_what_is_no_order_is_answered_in_words(executor: SiteExecutor, payload: bytes):
    code, answer = sent(executor, payload)
    assert code == ReturnCode.OK
    assert isinstance(messages.decode_answer(answer), messages.Failed)
