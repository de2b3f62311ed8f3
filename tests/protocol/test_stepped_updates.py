"""Updates that are made of the replies of several rounds: how they are written, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.errors import Refused
from fedzero.model.updates import Group, Seeded, Stepped, decode_update, encode_update, pack, parts_of
from fedzero.protocol.messages import Work, decode_instruction, encode, encode_work

ROOT = Path(__file__).resolve().parents[2]
ONE, TWO = pack(np.array([1.0], np.float32)), pack(np.array([1.0, -2.0], np.float32))
NAN, INFINITE = pack(np.array([1.0, np.nan], np.float32)), pack(np.array([np.inf], np.float32))

floats = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9)
packed = floats.map(lambda values: pack(np.array(values, np.float32)))
sets = st.lists(st.integers(0, 2**30), max_size=4, unique=True).map(lambda found: tuple(sorted(found)))


@st.composite
def steps(draw: Any) -> Stepped:
    asked = sorted(draw(st.sets(st.integers(0, 2**40), min_size=1, max_size=4)))
    groups = []
    for round in asked:
        clients = draw(sets)
        weights = pack(np.ones(len(clients), np.float32)) if draw(st.booleans()) else b""
        groups.append(Group(round, draw(packed), clients, weights, draw(sets)))
    return Stepped(asked[-1] + draw(st.integers(0, 20)), tuple(groups))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps())
def test_round_trips(update: Stepped) -> None:
    data = encode_update(update)
    assert decode_update(data) == update
    assert decode_update(encode(update)) == update  # with all that is empty, as in a patch
    assert decode_instruction(encode_work(update.round, 0, [data])) == Work(update.round, 0, (update,))
    assert parts_of(update) == [(group.asked, group.scalars) for group in update.groups]
    assert len(data) <= len(encode(update))


def test_a_group_costs_its_scalars_and_four_bytes() -> None:
    assert len(encode_update(Stepped(9, (Group(8, TWO), Group(9, TWO))))) == 4 + 2 * (4 + len(TWO))
    assert len(encode_update(Seeded(9, TWO))) == 5 + len(TWO)


REFUSED = {
    "no groups": ([3, 5, []], "has no groups"),
    "groups that are no list": ([3, 5, 7], "Expected `array`"),
    "no round": ([3], "length"),
    "a field too many in a group": ([3, 5, [[5, ONE, [], b"", [], 1, 2]]], None),
    "a group of a round that comes later": ([3, 5, [[5, ONE], [6, ONE]]], "a group of round 6, which comes later"),
    "a negative round": ([3, 5, [[-1, ONE]]], ">= 0"),
    "two groups of one round": ([3, 5, [[4, ONE], [4, ONE]]], "two groups of one round"),
    "groups out of order": ([3, 5, [[4, ONE], [3, ONE]]], "not in order"),
    "a group without scalars": ([3, 5, [[4, b""]]], "has no scalars"),
    "half a number": ([3, 5, [[4, ONE[:3]]]], "not finite float32"),
    "NaN": ([3, 5, [[4, NAN]]], "not finite float32"),
    "infinity": ([3, 5, [[4, INFINITE]]], "not finite float32"),
    "a weight that is infinite": ([3, 5, [[4, ONE, [2], INFINITE]]], "weights of the group of round 4 are not finite"),
    "weights of nobody": ([3, 5, [[4, ONE, [], ONE]]], "1 weights for 0 clients"),
    "fewer weights than clients": ([3, 5, [[4, TWO, [1, 2], ONE]]], "1 weights for 2 clients"),
    "a client twice": ([3, 5, [[4, TWO, [1, 1]]]], "names clients twice"),
    "clients out of order": ([3, 5, [[4, TWO, [2, 1]]]], "names clients twice, or not in order"),
    "others twice": ([3, 5, [[4, ONE, [], b"", [3, 3]]]], "names clients twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_step_is_refused_in_a_sentence(case: str) -> None:
    value, why = REFUSED[case]
    data = msgspec.msgpack.encode(value)
    if why is None:  # fields of later releases are passed over, as everywhere
        decode_update(data)
        return
    for decode, body in ((decode_update, data), (decode_instruction, encode_work(6, 0, [data]))):
        with pytest.raises(Refused, match=re.escape(why)):
            decode(body)


def test_the_bytes_in_the_page_are_those_that_are_written() -> None:
    text = (ROOT / "docs" / "ledger.md").read_text()
    block = text.split("In bytes, a step of two groups:")[1].split("```")[1]
    lines = [re.split(r"  +(?=a step|asked|of clients)", line)[0] for line in block.splitlines()[1:]]
    kept = json.loads((ROOT / "tests" / "ledger" / "heads.json").read_text())["written"]["update 3"]
    assert ["".join("".join(lines).split())] == kept
