"""docs/wire.md: its examples are read by a decoder of their own and by fedzero, its tables are those of the code."""

from __future__ import annotations

import ast
import re
import runpy
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields

from fedzero.deploy.site import admission, reasons
from fedzero.engines.remote import engine, measuring, messages, replicas, sites
from fedzero.errors import Refused
from fedzero.lines import LONGEST_SAID
from fedzero.model import distributions
from fedzero.model.updates import decode_update
from fedzero.oracles import Metrics
from fedzero.protocol.messages import decode_instruction, decode_reply

HERE = Path(__file__).parent
SCRIPT = runpy.run_path(str(HERE / "wire_examples.py"))
PAGE = (HERE.parents[1] / "docs" / "wire.md").read_text(encoding="utf-8")
HEX = re.compile(r"[0-9a-f]{2}( [0-9a-f]{2})*")
READ = {
    ("Seeded", "Dense"): decode_update,
    ("Work", "Snapshot", "Close", "Continue"): decode_instruction,
    ("Reply",): lambda data: decode_reply(data, 1000),
    tuple(kind.__name__ for kind in messages.Order.__args__): messages.decode_order,
    tuple(kind.__name__ for kind in messages.Answer.__args__): messages.decode_answer,
}


def examples() -> list[tuple[str, str, str, bytes]]:
    """(section, name, fields, bytes), from the page alone."""
    found = []
    for section in PAGE.split("\n### ")[1:]:
        title, _, rest = section.partition("\n")
        for example in re.split(r"\n(?=\S)", re.search(r"```text\n(.*?)\n```", rest, re.DOTALL)[1]):
            name, *lines = (line.strip() for line in example.splitlines())
            data = "".join(line for line in lines if HEX.fullmatch(line))
            found.append((title, name, " ".join(x for x in lines if not HEX.fullmatch(x)), bytes.fromhex(data)))
    return found


EXAMPLES = examples()
NAMES = [f"{title}: {name}" for title, name, *_ in EXAMPLES]


def value_of(text: str) -> Any:
    """Fields as the page writes them."""
    plain = re.sub(r"h'([0-9a-f]*)'", lambda found: repr(bytes.fromhex(found[1])), text)
    return ast.literal_eval(re.sub(r"\bnull\b", "None", re.sub(r"\btrue\b", "True", plain.replace("false", "False"))))


def unpacked(data: bytes) -> tuple[Any, bytes]:
    """A value of msgpack and the bytes behind it: as much of the format as messages have."""
    kind, rest = data[0], data[1:]
    if kind < 0x80:
        return kind, rest
    if kind < 0x90:
        return _mapped(kind & 15, rest)
    if kind < 0xA0:
        return _listed(kind & 15, rest)
    if kind < 0xC0:
        return rest[: kind & 31].decode(), rest[kind & 31 :]
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], rest
    if kind == 0xC4:
        return rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
    size = {0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4}[kind]
    number = struct.unpack(">d", rest[:8])[0] if kind == 0xCB else int.from_bytes(rest[:size], "big")
    return number, rest[size:]


def _listed(count: int, rest: bytes) -> tuple[list[Any], bytes]:
    found = []
    for _ in range(count):
        value, rest = unpacked(rest)
        found.append(value)
    return found, rest


def _mapped(count: int, rest: bytes) -> tuple[dict[Any, Any], bytes]:
    pairs, rest = _listed(2 * count, rest)
    return dict(zip(pairs[::2], pairs[1::2], strict=True)), rest


def test_the_page_has_what_the_script_makes():
    assert SCRIPT["replaced"](PAGE) == PAGE


@pytest.mark.parametrize(("title", "name", "text", "data"), EXAMPLES, ids=NAMES)
def test_bytes_are_the_fields_beside_them(title, name, text, data):
    if title == SCRIPT["ENVELOPE"]:
        number, _, rest = text.partition(", then ")
        assert (data == b"ping") == (name == "ping") == (number == "no number")
        if rest:
            assert data[:8] == struct.pack(">Q", int(number))
            assert unpacked(data[8:]) == (value_of(rest), b"")
        return
    assert unpacked(data) == (value_of(text), b"")


def same(said: Any, read: Any) -> bool:
    """Whether fields are those of a message, which has the defaults of those that were left out."""
    if isinstance(said, list):
        return len(said) <= len(read) and all(map(same, said, read)) and not any(read[len(said) :])
    return said == read


@pytest.mark.parametrize(("title", "name", "text", "data"), EXAMPLES, ids=NAMES)
def test_bytes_are_read_as_the_message_they_are(title, name, text, data):
    if title == SCRIPT["ENVELOPE"]:
        data, name, text = data[8:] if text != "no number" else b"", name.partition(",")[0], text.partition("then ")[2]
        if not data:
            return
    kind = name.partition(",")[0]
    message = next(decode for names, decode in READ.items() if kind in names)(data)
    assert type(message).__name__ == kind
    assert same(value_of(text), msgspec.msgpack.decode(msgspec.msgpack.encode(message), strict=False))


def test_there_is_an_example_of_every_message():
    assert {name.partition(",")[0] for _, name, *_ in EXAMPLES} == {name for names in READ for name in names} | {"ping"}


@pytest.mark.parametrize("kind", [*messages.Order.__args__, *messages.Answer.__args__], ids=lambda kind: kind.__name__)
def test_tables_have_tags_and_fields_in_their_order(kind):
    title = "## Orders" if kind in messages.Order.__args__ else "## Answers"
    section = PAGE.split(f"\n{title}\n")[1].split("\n## ")[0]
    (row,) = (line for line in section.splitlines() if line.startswith(f"| {kind.__struct_config__.tag} |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == kind.__name__
    named = re.findall(r"`(\w+)`", cells[2])
    metrics = [each.name for each in fields(Metrics)]
    assert [name for name in named if name not in metrics] == [each.name for each in fields(kind)]
    assert ("metrics" in named) == (set(metrics) <= set(named))


def test_how_messages_are_read():
    """The rules under "Encoding"."""
    encode, failed = msgspec.msgpack.encode, messages.Failed("no")
    assert messages.decode_answer(encode([5, "no", "more"])) == failed, "behind the last field"
    assert messages.decode_order(encode([5, []])) == messages.Measure(()), "a default"
    whole = messages.decode_answer(encode([4, b"12345678", {"loss": 1}, False, b""]))
    assert whole.metrics == Metrics(1.0), "an integer is a float"
    for bad in ([9], [], [6], [6, -1], [6, "3"], {"rounds": 3}, [3, 0, 0, {"0": b""}]):
        with pytest.raises(Refused):
            messages.decode_order(encode(bad))
    for data in (encode([6, 3]) + b"\0", encode([6, 3])[:-1], b""):
        with pytest.raises(Refused):
            messages.decode_order(data)
    with pytest.raises(Refused, match="SHA-256"):
        messages.decode_answer(encode([1, b"12345678", 3, {}, None, 0, b"short"]))


def test_limits_are_those_of_the_code():
    table = PAGE.split("\n## Limits\n")[1].split("\n## ")[0]
    assert admission.SMALL == 64 << 20
    assert table.count("64 MiB") == 2
    assert f"{replicas.OVERHEAD:,} bytes" in table
    assert f"| updates in a Recover | {replicas.BURST} |" in table
    assert f"| {distributions.MOST}, names and versions of at most {distributions.LONGEST} characters |" in table
    assert f"| {measuring.MOST_METRICS}, names of 1 to {measuring.LONGEST_NAME} printable characters |" in table
    assert f"{reasons.LONGEST:,} characters are sent; {LONGEST_SAID} are kept" in table
    assert f"{sites.PREPARING:,.0f} s" in table
    assert f"| {engine.FINISHING:.0f} s |" in table
    assert f"{sites.Service.deadline:.0f} s unless said" in table
