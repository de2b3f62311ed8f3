"""Derives the examples of docs/device-protocol.md: frames and signed statements, in bytes.

PYTHONPATH=src:clients/python python tests/devices/examples.py     writes them into the page
"""

from __future__ import annotations

import textwrap
from hashlib import sha256
from pathlib import Path

import numpy as np
from fedzero_client import signing

from fedzero.engines.devices import messages as m
from fedzero.engines.devices import statements
from fedzero.engines.devices.plan import DevicePlan, PlannedMethod, PlannedPrivacy, PlannedTask, PlannedTensor, encode
from fedzero.model.updates import Seeded, encode_update, pack
from fedzero.protocol.messages import Reply, encode_reply, encode_work

PAGE = Path(__file__).parents[2] / "docs" / "device-protocol.md"
HEADING = "\n## Examples in bytes\n"
WIDTH = 100
SEED, RUN, TICKET = bytes(range(32)), bytes(16), bytes(range(16))
"""SEED is the secret key (RFC 8032) of both sides."""
NUMBERS = pack(np.array([0.5, -0.25], np.float32))
PLAN = encode(
    DevicePlan(
        *(1, 1, "tiny", bytes(32), 3, 9),
        (PlannedTensor(1, (2, 3), 0.25, b"w\0float32\0(2, 3)\0"), PlannedTensor(1, (2,), 0.25, b"b\0float32\0(2,)\0")),
        PlannedMethod(2, 0, 0.5, (), 0.125, 2, 1, 1, 0.0, 8, 1),
        PlannedTask(1, (3, 2), (0.0,), (1.0,), ("no", "yes"), (), 4),
    )
)
ORDER = m.encode(m.OrderBody(encode_work(1, 0, [encode_update(Seeded(0, NUMBERS))]), b""))
REPLY = encode_reply(Reply(1, 0, bytes(8), NUMBERS, NUMBERS[:4], 3))


def examples() -> dict[str, bytes]:
    key = signing.public_of(SEED)
    answer, order = statements.answer(RUN, 2, 1, 0, 0, ORDER, REPLY), statements.order(RUN, 2, 1, 0, 0, ORDER)
    proof = statements.proof(RUN, 2, bytes(32), bytes(16), None)
    return {
        "a public key, of the secret 00 01 … 1f": key,
        "Hello": m.encode([2, 1, RUN, 2, bytes(16), b"", None]),
        "what Proof signs": proof,
        "Proof": m.encode(m.Proof(signing.sign(SEED, proof))),
        "a plan": PLAN,
        "SHA-256 of the plan": sha256(PLAN).digest(),
        "the element privacy of a plan of version 2": encode(PlannedPrivacy(1, 1, 2, 1.0, 2.0**20, 2.0, 0.03125)),
        "the body of an Order": ORDER,
        "what Order signs": order,
        "Order": m.encode(m.Order(1, 0, 0, ORDER, signing.sign(SEED, order))),
        "the body of an Answer": REPLY,
        "what Answer signs": answer,
        "Answer": m.encode(m.Answer(1, 0, 0, REPLY, signing.sign(SEED, answer))),
        "Error": m.encode(m.Error(9, "no answer of round 5, exchange 0, is awaited")),
    }


def rendered() -> str:
    lines = []
    for name, data in examples().items():
        lines += [name, *(f"    {line}" for line in textwrap.wrap(data.hex(" "), WIDTH))]
    words = "The run is 16 zero bytes, the place 2; nonces and digests are zeros. Both sides have the same Ed25519 key."
    made = "`tests/devices/examples.py` makes them, and a test reads them again."
    return f"{HEADING}\n{words}\n{made}\n\n```text\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(HEADING)[0] + rendered(), encoding="utf-8")
