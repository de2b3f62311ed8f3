"""Messages as the core reads and writes them, beside fedzero's decoder: what is written is read, what the core takes
fedzero takes as well, with the same content."""

from __future__ import annotations

from typing import Any

import msgspec
import native
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.errors import Refused
from fedzero.model.updates import Dense, Group, Seeded, Stepped, Update, encode_update, pack, parts_of, unpack
from fedzero.protocol.messages import (
    Close,
    Continue,
    Instruction,
    Reply,
    Snapshot,
    Work,
    decode_instruction,
    decode_reply,
    encode,
    encode_close,
    encode_reply,
    encode_work,
)

natural = st.one_of(st.integers(0, 200), st.integers(0, 2**63 - 1), st.sampled_from((127, 128, 2**16, 2**32 - 1)))
packed = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=70).map(
    lambda values: pack(np.array(values, np.float32))
)
some = packed.filter(bool)
clients = st.lists(natural, max_size=20).map(tuple)
rising = st.lists(natural, max_size=5, unique=True).map(sorted).map(tuple)


@st.composite
def stepped(draw: st.DrawFn) -> Stepped:
    asked = sorted(draw(st.lists(natural, min_size=1, max_size=4, unique=True)))
    groups = []
    for each in asked:
        own = draw(rising)
        weights = pack(np.ones(len(own), np.float32)) if draw(st.booleans()) else b""
        groups.append(Group(each, draw(some), own, weights, draw(rising)))
    return Stepped(draw(st.integers(asked[-1], 2**63 - 1)), tuple(groups))


updates = st.one_of(
    st.builds(Seeded, natural, packed, clients, clients), st.builds(Dense, natural, packed, clients), stepped()
)
instructions = st.one_of(
    st.tuples(natural, natural, st.lists(updates, max_size=20), st.one_of(st.none(), natural)),
    st.builds(Snapshot, natural, natural, natural | st.binary(max_size=300), packed, st.none() | natural),
    st.builds(Close, natural, updates),
    st.builds(Continue, natural, natural, packed, clients),
)  # fmt: skip


def written(given_: Any) -> bytes:
    if isinstance(given_, tuple):
        round, exchange, own, counted = given_
        return encode_work(round, exchange, [encode_update(each) for each in own], counted)
    if isinstance(given_, Close):
        return encode_close(given_.round, encode_update(given_.update))
    return encode(given_)


def same_update(found: native.Update, groups: list[tuple[int, bytes]], expected: Update) -> bool:
    if isinstance(expected, Stepped):
        return found.kind == 3 and found.round == expected.round and groups == parts_of(expected)
    values = expected.scalars if isinstance(expected, Seeded) else expected.values
    return (found.kind, found.round, found.values.raw()) == (1 + isinstance(expected, Dense), expected.round, values)


def same(read: Any, expected: Instruction) -> bool:
    """Whether the core found what fedzero found."""
    found, own = read
    if found.round != expected.round or found.kind != type(expected).__struct_config__.tag:
        return False
    if isinstance(expected, Close):
        return len(own) == 1 and same_update(*own[0], expected.update)
    if found.exchange != expected.exchange:
        return False
    if isinstance(expected, Continue):
        return bool(found.values.raw() == expected.values)
    if found.counted != (-1 if expected.counted is None else expected.counted):
        return False
    if isinstance(expected, Work):
        pairs = zip(own, expected.updates, strict=True)
        return all(same_update(*mine, theirs) for mine, theirs in pairs)
    plain = isinstance(expected.numbers, int)
    numbers = found.steps if plain else found.numbers.raw()
    return numbers == expected.numbers and (found.steps >= 0) == plain and bool(found.state.raw() == expected.state)


@settings(max_examples=40)
@given(instructions)
def test_what_fedzero_writes_is_read(core: native.Core, instruction: Any) -> None:
    data = written(instruction)
    read = native.Messages(core).instruction(data)
    assert read is not None and same(read, decode_instruction(data))
    for cut in {0, 1, len(data) // 2, len(data) - 1}:
        assert native.Messages(core).instruction(data[:cut]) is None
    assert native.Messages(core).instruction(data + b"\xc0") is None


@settings(max_examples=80)
@given(
    instructions, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3), st.booleans()
)
def test_what_the_core_takes_fedzero_takes(core: native.Core, instruction: Any, changes: Any, longer: bool) -> None:
    data = bytearray(written(instruction))
    for place, byte in changes:
        if longer and place % 3 == 0:
            data.insert(place % len(data), byte)
        else:
            data[place % len(data)] = byte
    read = native.Messages(core).instruction(bytes(data))
    if read is not None:
        assert same(read, decode_instruction(bytes(data)))


@given(st.binary(max_size=60))
def test_any_bytes(core: native.Core, data: bytes) -> None:
    messages = native.Messages(core)
    if (read := messages.instruction(data)) is not None:
        assert same(read, decode_instruction(data))
    if messages.reply(data) is not None:
        decode_reply(data, 1000)


def test_elements_behind_the_last_field_are_passed_over(core: native.Core) -> None:
    more = [
        None,
        True,
        -5,
        2**63,
        1.5,
        "text",
        b"x" * 300,
        [1, [2, {}]],
        {"a": [1], 2: {3: 4}},
        msgspec.msgpack.Ext(5, b"y" * 16),
    ]
    seeded = [1, 3, pack(np.ones(2, np.float32)), [], [], *more]
    data = msgspec.msgpack.encode([1, 4, 0, [seeded, [2, 3, b"", [], *more]], 2, *more])
    read = native.Messages(core).instruction(data)
    assert read is not None and read[0].counted == 2 and [each.kind for each, _ in read[1]] == [1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        [1, 0, 0, [[1, 0, b"\0\0\xc0\x7f"]]],
        [1, 0, 0, [[1, 0, b"abc"]]],
        [1, 0, 0, [[3, 0, []]]],
        [1, 0, 0, [[3, 0, [[1, b"\0\0\0\0"]]]]],
        [1, 0, 0, [[3, 5, [[2, b"\0\0\0\0"], [2, b"\0\0\0\0"]]]]],
        [1, 0, 0, [[3, 5, [[2, b""]]]]],
        [1, 0, 0, [[3, 5, [[2, b"\0\0\0\0", [1], b"\0\0\0\0\0\0\0\0"]]]]],
        [1, 0, 0, [[4, 0, b""]]],
        [5, 0, 0, []],
        [1, -1, 0, []],
        [1, 2**63, 0, []],
        [1, 0, 0],
        [1, 0, 0, {}],
    ],
)
def test_what_is_refused(core: native.Core, fields: list[Any]) -> None:
    assert native.Messages(core).instruction(msgspec.msgpack.encode(fields)) is None


def test_forms_that_are_not_the_shortest_are_refused(core: native.Core) -> None:
    fine = bytes([0x94, 1, 0, 0, 0x90])
    assert native.Messages(core).instruction(fine) is not None
    for data in ("94cc01000090", "940100cd000090", "94010000dc0000", "dc00040100009 0"):
        assert native.Messages(core).instruction(bytes.fromhex(data.replace(" ", ""))) is None


replies = st.builds(
    Reply, natural, natural, st.binary(min_size=8, max_size=8), packed, st.sampled_from((b"", b"\0\0\x80?")), natural
)


@given(replies)
def test_replies(core: native.Core, reply: Reply) -> None:
    data, messages = encode_reply(reply), native.Messages(core)
    read = messages.reply(data)
    assert read is not None and messages.written(read) == data
    own = (read.round, read.exchange, bytes(read.digest), read.values.raw(), read.loss.raw(), read.queries)
    assert own == (reply.round, reply.exchange, reply.digest, reply.values, reply.loss, reply.queries)
    assert messages.reply(encode_reply(msgspec.structs.replace(reply, memory=b"m" * 16))) is not None
    assert messages.reply(data[:-1]) is None and messages.reply(data + b"\0") is None


@given(st.binary(max_size=40))
def test_packed_numbers(core: native.Core, data: bytes) -> None:
    kept = (native.C.c_uint8 * len(data))(*data)
    out = np.zeros(len(data) // 4 + 1, np.float32)
    status = core.lib.fz_unpack(native.Span(kept, len(data)), native.pointer(out, native.C.c_float))
    try:
        expected = unpack(data)
    except Refused:
        assert status
    else:
        assert not status and out[: len(data) // 4].tobytes() == expected.tobytes()
