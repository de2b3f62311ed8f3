"""docs/device-protocol.md: its examples are those of the code, its tables name what is there."""

from __future__ import annotations

import re
from typing import get_args

from devices import examples
from fedzero.engines.devices import hub, messages, session
from fedzero.engines.devices.codes import Code

PAGE = examples.PAGE.read_text(encoding="utf-8")


def test_the_examples_are_those_of_the_code() -> None:
    assert PAGE.endswith(examples.rendered())


def test_every_frame_stands_in_the_tables_with_its_fields() -> None:
    for kind in (*get_args(messages.FromDevice), *get_args(messages.FromGateway)):
        row = re.search(rf"^\| {kind.__struct_config__.tag} \| {kind.__name__} \| (.*) \|$", PAGE, re.MULTILINE)
        assert row is not None, kind
        for field in kind.__struct_fields__:
            assert f"`{field}`" in row[1], (kind, field)


def test_every_code_and_limit_stands_on_the_page() -> None:
    codes = re.findall(r"^\| (\d+) \| .* \|$", PAGE.partition("## Errors")[2], re.MULTILINE)
    assert [int(code) for code in codes] == list(Code)
    limits = PAGE.partition("## Limits")[2]
    for number in (messages.SMALL, hub.MOST_WAITING, hub.MOST_OF_ADDRESS):
        assert f"{number:,}" in limits
    assert f"{session.FRAMES_A_SECOND:g} a second, {session.BURST} at once" in limits
    assert f"{session.PIECE:,} bytes" in PAGE
