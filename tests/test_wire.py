"""Messages: sizes, strict decoding, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.errors import Refused
from fedzero.model.updates import Dense, Seeded, decode_update, encode_update, pack, unpack
from fedzero.protocol.messages import (
    Close,
    Reply,
    Snapshot,
    Work,
    decode_instruction,
    decode_reply,
    encode,
    encode_close,
    encode_work,
)

naturals = st.integers(0, 2**40)
floats = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20)
seeded = st.builds(
    Seeded, naturals, floats.map(lambda v: pack(np.array(v, np.float32))), st.lists(naturals, max_size=4).map(tuple)
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seeded, naturals)
def test_round_trips(update: Seeded, round: int) -> None:
    assert decode_update(encode_update(update)) == update
    for message in (Work(round, 0, (update, update)), Close(round, update), Snapshot(round, 0, 3, b"abc")):
        assert decode_instruction(encode(message)) == message
    assert decode_instruction(encode_work(round, 0, [encode_update(update)] * 2)) == Work(round, 0, (update, update))
    assert decode_instruction(encode_work(round, 0, [encode_update(update)], 7)) == Work(round, 0, (update,), 7)
    assert decode_instruction(encode_close(round, encode_update(update))) == Close(round, update)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=80))
def test_noise_is_refused_and_never_crashes(noise: bytes) -> None:
    for decode in (decode_instruction, lambda data: decode_reply(data, 100)):
        try:
            decode(noise)
        except Refused:
            continue


def reply(**changes: object) -> Reply:
    values = pack(np.ones(10, np.float32))
    fields = {"round": 3, "exchange": 0, "digest": b"8" * 8, "values": values, "loss": values[:4], "queries": 11}
    return Reply(**(fields | changes))


def test_a_reply_is_small() -> None:
    assert len(encode(reply(round=100_000))) <= 72


def test_trailing_and_missing_bytes_are_refused() -> None:
    data = encode(reply())
    assert decode_reply(data, 100) == reply()
    for bad in (data + b"\0", data[:-1], b"", data[1:]):
        with pytest.raises(Refused):
            decode_reply(bad, 100)
    with pytest.raises(Refused, match="at most 50"):
        decode_reply(data, 50)
    with pytest.raises(Refused):
        decode_reply(encode(reply(round=-1)), 100)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_unpack_refuses_what_is_not_finite(poison: float) -> None:
    values = np.zeros(10, np.float32)
    values[7] = poison
    with pytest.raises(Refused, match="NaN or infinite"):
        unpack(pack(values))
    with pytest.raises(Refused, match="whole number"):
        unpack(b"12345")


def test_infinities_of_both_signs_do_not_hide_each_other() -> None:
    with pytest.raises(Refused):
        unpack(pack(np.array([np.inf, -np.inf], np.float32)))
    assert unpack(pack(np.full(4, 3e38, np.float32))).size == 4, "large but finite numbers are fine"


def test_dense_costs_four_bytes_a_number() -> None:
    assert len(encode_update(Dense(1, pack(np.zeros(1000, np.float32))))) <= 4000 + 8
