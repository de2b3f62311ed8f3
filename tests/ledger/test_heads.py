"""What 0.2 writes stays: ledgers of small runs of all kinds, and every message, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import heads
import pytest

from fedzero import plugins
from fedzero.engines.remote import messages as remote
from fedzero.ledger import records
from fedzero.model import updates
from fedzero.protocol import messages

KEPT = heads.kept()


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered["tasks"], "exact-quadratic", plugins.Plugin(heads.Exact, "", ""))


def test_these_are_all() -> None:
    assert KEPT["runs"].keys() == heads.RUNS.keys()


@pytest.mark.parametrize("name", heads.RUNS)
def test_a_run_leaves_the_same_ledger(tmp_path: Path, name: str) -> None:
    found = heads.made(name, tmp_path)
    assert heads.settled(name, found) == heads.settled(name, KEPT["runs"][name])


def test_messages_and_records_are_written_as_before() -> None:
    assert heads.written() == KEPT["written"]


def test_chains_memories_and_draws_are_as_before() -> None:
    assert heads.digests() == KEPT["digests"]


@pytest.mark.parametrize(
    ("union", "values"),
    [
        (updates.Update, heads.UPDATES),
        (records.Record, heads.RECORDS),
        (messages.Instruction, heads.INSTRUCTIONS),
        (remote.Order, heads.ORDERS),
        (remote.Answer, heads.ANSWERS),
    ],
)
def test_there_is_an_example_of_every_type(union: Any, values: tuple[Any, ...]) -> None:
    assert {type(value) for value in values} == {*get_args(union)}


def test_what_is_written_is_read() -> None:
    read = [
        *((updates.encode_update, updates.decode_update, value) for value in heads.UPDATES),
        *((records.encode_record, records.decode_record, value) for value in heads.RECORDS),
        *((messages.encode, messages.decode_instruction, value) for value in heads.INSTRUCTIONS),
        *((messages.encode_reply, lambda data: messages.decode_reply(data, 100), value) for value in heads.REPLIES),
        *((remote.encode, remote.decode_order, value) for value in heads.ORDERS),
        *((remote.encode, remote.decode_answer, value) for value in heads.ANSWERS),
    ]
    for encode, decode, value in read:
        assert decode(encode(value)) == value
