"""Bytes of others: every decoder refuses in one sentence what is nested, mistyped, too long or out of range."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from fedzero.deploy.flare.bridge import Answered, receive
from fedzero.deploy.server.queue import SUPERVISOR, supervisor
from fedzero.deploy.site.settings import Settings
from fedzero.directions import VERSION, Keys
from fedzero.engines.memories import Remembered
from fedzero.engines.remote import messages as site_messages
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import patch
from fedzero.ledger.records import decode_record
from fedzero.lines import LONGEST_SAID
from fedzero.links import Chain
from fedzero.links.quantise import Quantise
from fedzero.methods.contract import MOST_CLIENTS
from fedzero.model.params import Params
from fedzero.model.updates import Dense, Seeded, Update, decode_update, pack
from fedzero.protocol.client import Chunk, ClientMemory
from fedzero.protocol.messages import Reply, decode_instruction, decode_reply, encode_reply
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.runs.patches import apply_patch

NESTED = b"\x91" * 1500
DECODERS: dict[str, Callable[[bytes], object]] = {
    "reply": lambda data: decode_reply(data, 4096),
    "instruction": decode_instruction,
    "update": decode_update,
    "order": site_messages.decode_order,
    "answer": site_messages.decode_answer,
    "codes": lambda data: Chain((Quantise(),)).decode(data, 9),
    "entry": decode_record,
    "patch": lambda data: patch.decode(hashlib.sha256(data).digest() + data, "a.patch"),
    "memory": Remembered.of,
    "chunk": lambda data: ClientMemory.of_chunks([data]),
}


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_nested_arrays(decode) -> None:
    """Also where a field may hold anything: 0.1 ended with RecursionError."""
    for data in (NESTED, b"\x92\x01" * 1500, b"\x99\x01" + NESTED):
        with pytest.raises(FedzeroError, match="not ") as refused:
            decode(data)
        assert len(str(refused.value)) < 400 and str(refused.value).isprintable()


def longer(*fields: object) -> bytes:
    """An array-like message with one element more than it has fields, and that one is nested."""
    whole = msgspec.msgpack.encode(fields)
    return bytes([whole[0] + 1]) + whole[1:] + NESTED + b"\0"


PASSED_OVER = {
    "reply": longer(0, 0, b"8" * 8, b"", b"1234", 1, b""),
    "instruction": longer(4, 0, 0, b"", ()),
    "update": longer(1, 0, b"", (), ()),
    "order": longer(6, 3),
    "answer": longer(2),
    "codes": longer(b"", b"", b""),
    "entry": b"\x82" + b"".join(map(msgspec.msgpack.encode, ("type", "end", "more"))) + NESTED + b"\0",
    "patch": b"\x82" + b"".join(map(msgspec.msgpack.encode, ("type", patch.MAGIC, "more"))) + NESTED + b"\0",
}
"""What no field is for: a decoder reads it, to know where it ends, and has no type to refuse it by."""


@pytest.mark.parametrize("name", PASSED_OVER)
def test_nested_arrays_where_nothing_is_expected(name: str) -> None:
    with pytest.raises(RecursionError):
        msgspec.msgpack.decode(PASSED_OVER[name])
    with pytest.raises(FedzeroError, match=r"not .*: it is nested too deeply"):
        DECODERS[name](PASSED_OVER[name])


def test_a_digest_has_eight_bytes() -> None:
    reply = Reply(0, 0, b"8" * 8, b"", b"1234", 1)
    assert decode_reply(encode_reply(reply), 100) == reply
    for digest in (b"", b"8" * 7, b"8" * 60):
        with pytest.raises(Refused, match=r"digest|length"):
            decode_reply(encode_reply(msgspec.structs.replace(reply, digest=digest)), 100)


def test_what_sites_say_is_one_short_visible_line() -> None:
    said = "see [/etc/config]\x1b[2J\n\u202e" + "x" * 10_000
    failed = site_messages.decode_answer(site_messages.encode(site_messages.Failed(said)))
    replies = site_messages.decode_answer(site_messages.encode(site_messages.Replies({}, {3: said})))
    for text in (failed.reason, replies.failed[3]):
        assert text.startswith("see [/etc/config]") and text.isprintable() and len(text) == LONGEST_SAID


def test_a_decoder_quotes_little_of_what_it_was_sent() -> None:
    name = b'{"' + b"x" * 100_000 + b'\x1b": 1}'
    with pytest.raises(FedzeroError) as refused:
        recipes.from_canonical(name)
    assert len(str(refused.value)) < 400


def replica(**table: object) -> Replica:
    return Replica(recipes.method({"rate": 0.01, **table}), Params({"w": torch.zeros(6)}), Keys.of_seed(1), 4)


SIX = pack(np.ones(6, np.float32))
UNFIT: dict[str, tuple[dict[str, object], Update]] = {
    "dense where seeded": ({"kind": "decomfl", "directions": 2}, Dense(0, SIX)),
    "seeded where dense": ({"kind": "fedavg"}, Seeded(0, SIX)),
    "half a dense one": ({"kind": "scaffold-zo", "form": "dense"}, Dense(0, SIX, (0, 1))),
    "no weights": ({"kind": "fzoos"}, Dense(0, SIX)),
    "nobody": ({"kind": "dzopa"}, Dense(0, SIX)),
    "a stranger": ({"kind": "dzopa"}, Dense(0, SIX, (4,))),
    "a stranger in an earlier exchange": ({"kind": "scaffold-zo"}, Seeded(0, SIX, (0,), (10**9,))),
    "no such round": ({"kind": "decomfl", "directions": 6}, Seeded(2**63, SIX)),
}


@pytest.mark.parametrize(("table", "update"), UNFIT.values(), ids=UNFIT)
def test_updates_that_do_not_fit(table, update) -> None:
    with pytest.raises(FedzeroError):
        replica(**table).follow([update])


def test_rounds_without_an_answer_are_not_counted_one_by_one() -> None:
    at = replica(kind="zofedht", tau=2, directions=6, form="dense")
    began = time.process_time()
    at.follow([Dense(10**15 + 2 * (10**15 % 2), SIX)])
    assert time.process_time() - began < 2


@pytest.mark.parametrize("kind", ["|O", "V8", "<U4", "i8,f4", "datetime64", "<f16", "\x1b"])
def test_memories_hold_plain_numbers(kind: str) -> None:
    whole = [chunk.body for chunk in ClientMemory((np.arange(3),)).chunks()]
    assert ClientMemory.of_chunks(whole).memory is not None
    with pytest.raises(FedzeroError, match="not an array of a memory"):
        ClientMemory.of_chunks([whole[0], msgspec.msgpack.encode((kind, (1,), bytes(8)))])


@pytest.mark.parametrize("chunks", [[], [b""], [b"\x92\xc3\x93\0\1\2"], [b"\x92\xc2\x90", Chunk.of(np.ones(2)).body]])
def test_memories_in_parts(chunks: list[bytes]) -> None:
    with pytest.raises(FedzeroError, match="not the memory"):
        ClientMemory.of_chunks(chunks)


def test_an_array_of_no_size(tmp_path: Path) -> None:
    header = ClientMemory((np.arange(3),)).chunks()[0].body
    with pytest.raises(FedzeroError, match="not an array"):
        ClientMemory.of_chunks([header, msgspec.msgpack.encode(("<f4", (2**40, 0, 2**40), b""))])


def test_messages_of_a_job() -> None:
    class Connection:
        def recv_bytes(self, limit: int) -> bytes:
            return b"\x94\x01\xa1x\xc3" + NESTED

    with pytest.raises(OSError, match="not a message"):
        receive(Connection(), Answered)


def test_settings_of_a_kit(tmp_path: Path) -> None:
    path = tmp_path / "fedzero.toml"
    for text in ("threads = " + "[" * 2000, "threads = " + "9" * 5000, "data = 1", "\x00"):
        path.write_text(text)
        with pytest.raises(FedzeroError, match=r"fedzero\.toml"):
            Settings.read(path)


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 2**63])
def test_a_supervisor_of_any_number(tmp_path: Path, pid: int) -> None:
    """Found by the fuzzer: ValueError of psutil."""
    (tmp_path / SUPERVISOR).write_text(f'{{"pid": {pid}, "began": 0.5}}')
    assert supervisor(tmp_path) is None


def patch_of(clients: int, **table: object) -> bytes:
    method = msgspec.json.encode({"kind": "dzopa", "rate": 0.1, **table})
    made = patch.Patch(VERSION, b"8" * 8, b"8" * 8, ("w",), method, 4, b"r" * 32, b"r" * 32, ())
    body = msgspec.msgpack.encode(msgspec.structs.replace(made, clients=clients))
    return hashlib.sha256(body).digest() + body


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (0, r"not a fedzero patch: .*clients"),
        (20_000_000, r"not a fedzero patch: .*clients"),
        (2**63, r"not a fedzero patch: .*clients"),
        (5000, "at most 1,024 clients"),
    ],
)
def test_a_patch_of_many_clients(clients: int, words: str, tmp_path: Path) -> None:
    """411 bytes that kept 0.1 busy for more than a minute."""
    from safetensors.torch import save_file

    base = {"w": torch.zeros(6)}
    save_file(base, tmp_path / "base.safetensors")
    content = patch_of(clients)
    where = content.index(b"8" * 8)
    content = content[:where] + Params(base).digest() + content[where + 8 :]
    (tmp_path / "x.patch").write_bytes(hashlib.sha256(content[32:]).digest() + content[32:])
    began = time.process_time()
    with pytest.raises(FedzeroError, match=words):
        apply_patch(tmp_path / "x.patch", str(tmp_path / "base.safetensors"), tmp_path / "out.safetensors")
    assert time.process_time() - began < 2 and not (tmp_path / "out.safetensors").exists()
    assert MOST_CLIENTS < 20_000_000
