"""Derives the examples of docs/wire.md: every message between server and sites, as fields and in bytes.

PYTHONPATH=src python tests/docs/wire_examples.py            writes them into the page
PYTHONPATH=src python tests/docs/wire_examples.py --check    compares, and fails on any difference
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedzero.deploy.flare.bridge import NUMBER, PING
from fedzero.engines.remote import messages
from fedzero.model.updates import Dense, Seeded, encode_update, pack
from fedzero.oracles import Metrics
from fedzero.protocol.messages import Continue, Reply, Snapshot, encode, encode_close, encode_reply, encode_work

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"
HEADING = "\n## Examples in bytes\n"
ENVELOPE = "In the envelope"
WIDTH = 100


def numbers(*values: float) -> bytes:
    return pack(np.array(values, np.float32))


MODEL, SHA256 = bytes.fromhex("699b7c4b7e4f7ab9"), bytes(range(32))
UPDATE = Seeded(0, numbers(0.5, -0.25))
WORK = encode_work(1, 0, [encode_update(UPDATE)])
REPLY = Reply(1, 0, MODEL, numbers(1.5, -2.0), numbers(2.25), 3)
EXAMPLES: dict[str, dict[str, bytes]] = {
    "Updates": {
        "Seeded": encode_update(UPDATE),
        "Seeded, with clients": encode_update(Seeded(2, numbers(1.0, 2.0), (0, 2))),
        "Dense": encode_update(Dense(3, numbers(0.5))),
    },
    "Instructions and replies": {
        "Work": WORK,
        "Work, of clients with a memory": encode_work(5, 0, [encode_update(UPDATE)], 3),
        "Snapshot": encode(Snapshot(1, 0, 0, numbers(0.5, 1.0))),
        "Close": encode_close(1, encode_update(Seeded(1, numbers(0.5, 1.0)))),
        "Continue": encode(Continue(1, 1, numbers(0.5), (0, 2))),
        "Reply": encode_reply(REPLY),
        "Reply, of a client with a memory": encode_reply(msgspec.structs.replace(REPLY, memory=bytes(16))),
    },
    "Orders": {
        "Prepare": encode(messages.Prepare("3f7a0c1d2b4e5f60", b'{"name":"tiny"}', (0, 2))),
        "Recover": encode(messages.Recover(True, (encode_update(UPDATE),))),
        "Exchange": encode(messages.Exchange(1, 0, {0: WORK, 2: WORK})),
        "Deliver": encode(messages.Deliver({0: encode_close(1, encode_update(Seeded(1, numbers(0.5))))})),
        "Measure": encode(messages.Measure((encode_update(UPDATE),), 10)),
        "Finish": encode(messages.Finish(10)),
        "PrepareExtended": encode(
            messages.PrepareExtended("3f7a0c1d2b4e5f60", b'{"name":"tiny"}', (0, 2), {}, None, 100, 10, b"{}")
        ),
        "Phase": encode(messages.Phase(1, 0, 1, b"body")),
    },
    "Answers": {
        "Prepared": encode(messages.Prepared(MODEL, 159010, {}, None, 0, SHA256)),
        "Done": encode(messages.Done()),
        "Replies": encode(messages.Replies({0: encode_reply(REPLY)}, {2: "its turn failed"})),
        "Measured": encode(messages.Measured(MODEL, Metrics(2.5, 0.75), False, SHA256)),
        "Failed": encode(messages.Failed("its task could not be built")),
        "Phased": encode(messages.Phased(b"answer")),
    },
    ENVELOPE: {"Finish, order number 258": (258).to_bytes(NUMBER, "big") + encode(messages.Finish(10)), "ping": PING},
}


def shown(value: Any) -> str:
    """A value as the page writes it: JSON, with h'…' for bytes and numbers as keys."""
    if isinstance(value, bytes):
        return f"h'{value.hex()}'"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{shown(key)}: {shown(each)}' for key, each in value.items())}}}"
    return msgspec.json.encode(value).decode()


def fields(data: bytes) -> str:
    return shown(msgspec.msgpack.decode(data, strict=False))


def in_envelope(data: bytes) -> str:
    return "no number" if data == PING else f"{int.from_bytes(data[:NUMBER], 'big')}, then {fields(data[NUMBER:])}"


def rendered() -> str:
    parts = []
    for title, examples in EXAMPLES.items():
        lines = []
        for name, data in examples.items():
            text = in_envelope(data) if title == ENVELOPE else fields(data)
            lines += [name, *(f"    {line}" for half in (text, data.hex(" ")) for line in textwrap.wrap(half, WIDTH))]
        parts.append(f"\n### {title}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


def replaced(page: str) -> str:
    head, heading, _ = page.partition(HEADING)
    introduction = page[len(head + heading) :].partition("\n### ")[0]
    return f"{head}{heading}{introduction.rstrip()}\n{rendered()}"


def main(check: bool) -> int:
    page = PAGE.read_text(encoding="utf-8")
    if page == replaced(page):
        print("the examples hold")
        return 0
    if not check:
        PAGE.write_text(replaced(page), encoding="utf-8")
    print("the examples differ" if check else f"wrote {PAGE}")
    return int(check)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
