"""The harness that runs a recipe twice finds what leaves a client, by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from fedzero.protocol.messages import Reply, encode_reply
from fedzero.testing.non_interference import Side, compared, of_messages, played
from fedzero.testing.overheard import Message, messages_in

PROGRAM = [str(Path(__file__).with_name("offset_task.py"))]
RECIPE = """
name = "small"
rounds = 2

[algorithm]
kind = "decomfl"
rate = 0.001
directions = 2

[task]
kind = "offset-quadratic"
dimension = 10

[federation]
clients = 3
cohort = 2
"""


@pytest.mark.slow
def test_the_loss_of_a_plain_run_is_named_and_nothing_else(tmp_path: Path) -> None:
    """Equal slopes, other losses: they are in replies, in the ledger and in the log. Equal data differ in nothing."""
    recipe = tmp_path / "small.toml"
    recipe.write_text(RECIPE)
    first, again, shifted = (
        played(recipe, Side(environment={"SHIFT": shift}), tmp_path / name, PROGRAM)
        for name, shift in (("first", "0"), ("again", "0"), ("shifted", "64"))
    )
    assert compared(first, again) == []
    found = compared(first, shifted)
    assert (found[0].field, found[0].where.split(",")[0]) == ("loss", "reply of round 0")
    assert {each.field for each in found if each.where.startswith("reply")} == {"loss"}
    assert {each.field for each in found if "Round" in each.where} == {"loss"}
    assert {each.field for each in found} == {"loss", "log"}


@pytest.mark.parametrize(
    ("kind", "change", "names"),
    [
        ("reply", {"values": b"\0\0\x80?"}, ["values"]),
        ("reply", {"memory": bytes(16)}, ["digest of the memory", "size"]),
        ("reply", {"queries": 9}, ["queries"]),
    ],
)
def test_fields_of_a_reply_are_named_as_in_the_table(tmp_path: Path, kind, change, names) -> None:
    reply = Reply(0, 0, bytes(8), bytes(4), bytes(4), 3)
    for name, one in (("first", reply), ("second", structs.replace(reply, **change))):
        with (tmp_path / name).open("wb") as file:
            body = msgspec.msgpack.encode(Message(0, 0, kind, "1", encode_reply(one)))
            file.write(len(body).to_bytes(8, "little") + body)
    found = of_messages(*(messages_in(tmp_path / name) for name in ("first", "second")))
    assert [each.field for each in found] == names
