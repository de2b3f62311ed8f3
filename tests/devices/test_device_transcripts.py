"""The transcripts of docs/transcripts, against the client in Python, the gateway's decoders, and the schemas."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import device_schemas as schemas
import msgspec
import numpy as np
import pytest
from fedzero_client.session import Session as Device
from fedzero_client.session import Ticket
from fedzero_client.store import Store
from fedzero_client.turn import Rows

from devices import transcripts
from fedzero.engines.devices import messages as m
from fedzero.engines.devices import statements
from fedzero.engines.devices.signing import ED25519, Signer, Verifier
from fedzero.protocol.messages import decode_reply

NAMES = sorted(transcripts.RUNS)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((transcripts.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def frames_of(transcript: dict[str, Any], side: str) -> list[bytes]:
    return [bytes.fromhex(data) for who, _, data in transcript["frames"] if who == side]


def test_files_are_those_that_the_golden_digests_are_of() -> None:
    texts = {name: (transcripts.FOLDER / f"{name}.json").read_text(encoding="utf-8") for name in NAMES}
    assert transcripts.golden(texts) == (transcripts.FOLDER / transcripts.GOLDEN).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_gateway_and_the_client_make_them_again(tmp_path: Path, name: str) -> None:
    """To the bit where the run is exact; elsewhere but for numbers that a device computes, and signatures over them."""
    right, found = read(name), transcripts.made(name, tmp_path)
    assert [each[:2] for each in found["frames"]] == [each[:2] for each in right["frames"]]
    if right["exact"]:
        assert found == json.loads(json.dumps(right))
        return
    assert found["x"] == right["x"] and frames_of(found, "gateway") == frames_of(right, "gateway")
    for mine, theirs in zip(frames_of(found, "device"), frames_of(right, "device"), strict=True):
        assert_alike(mine, theirs)


def assert_alike(mine: bytes, theirs: bytes) -> None:
    one, two = m.decode_device(mine, 1 << 16), m.decode_device(theirs, 1 << 16)
    if not isinstance(one, m.Answer) or not isinstance(two, m.Answer):
        assert mine == theirs
        return
    a, b = decode_reply(one.body, 4096), decode_reply(two.body, 4096)
    assert (one.round, one.exchange, one.attempt) == (two.round, two.exchange, two.attempt)
    assert (a.round, a.exchange, a.digest, a.queries) == (b.round, b.exchange, b.digest, b.queries)
    assert np.allclose(np.frombuffer(a.values, "<f4"), np.frombuffer(b.values, "<f4"), rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_client_says_the_same_to_what_the_gateway_said(tmp_path: Path, name: str) -> None:
    right = read(name)
    nonces = [frame.nonce for frame in map(m.decode_device, _small(right)) if isinstance(frame, m.Hello)]
    store = Store(tmp_path)
    store.put(seed=bytes.fromhex(right["device"]))
    rows = Rows(np.array(right["x"], np.float32), np.array(right["y"]))
    device = Device(Ticket.of(right["ticket"]), store, rows)
    said: list[bytes] = []
    with patch.object(os, "urandom", lambda count: nonces.pop(0)):
        for who, kind, data in right["frames"]:
            if kind == "" and said == []:
                said = device.begin()
            elif who == "device":
                mine, theirs = said.pop(0), bytes.fromhex(data)
                assert mine == theirs if right["exact"] else assert_alike(mine, theirs) is None
            elif who == "gateway":
                said += device.receive(bytes.fromhex(data))
    store.close()
    assert device.finished and not said and not nonces


def _small(transcript: dict[str, Any]) -> Iterator[bytes]:
    return (data for data in frames_of(transcript, "device") if len(data) <= m.SMALL)


@pytest.mark.parametrize("name", NAMES)
def test_decoders_read_each_frame_and_write_the_same_bytes(name: str) -> None:
    right = read(name)
    for data in frames_of(right, "device"):
        assert m.encode(m.decode_device(data, 1 << 16)) == data
    for data in frames_of(right, "gateway"):
        assert m.encode(m.decode_gateway(data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_signed_for_the_order_before_them(name: str) -> None:
    right = read(name)
    ticket = Ticket.of(right["ticket"])
    assert ticket.fingerprint == Signer(transcripts.KEYS).fingerprint
    enrol = m.decode_device(frames_of(right, "device")[0])
    assert isinstance(enrol, m.Enrol)
    verify, order, answers = Verifier(ED25519, enrol.key), None, 0
    for who, kind, data in right["frames"]:
        if who == "gateway" and kind == "Order":
            order = m.decode_gateway(bytes.fromhex(data))
        elif kind == "Answer":
            answer = m.decode_device(bytes.fromhex(data), 1 << 16)
            assert isinstance(order, m.Order) and isinstance(answer, m.Answer)
            numbers = answer.round, answer.exchange, answer.attempt
            statement = statements.answer(ticket.run, 0, *numbers, order.body, answer.body)
            assert verify(statement, answer.signature)
            answers += 1
    assert answers >= 4


# ---- schemas


def test_schemas_are_those_of_the_types() -> None:
    for name, text in schemas.files().items():
        assert (schemas.FOLDER / name).read_text(encoding="utf-8") == text, "run python tools/device_schemas.py"


def plain(value: Any) -> Any:
    """A msgpack value in JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_valid(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    components = {"components": {"schemas": schemas.schemas()}}

    def check(kind: str, value: Any) -> None:
        jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{kind}"} | components).validate(plain(value))

    for _, kind, data in read(name)["frames"]:
        if not kind:
            continue
        frame = msgspec.msgpack.decode(bytes.fromhex(data))
        check(kind, frame)
        if kind == "Welcome" and frame[1]:
            check("DevicePlan", msgspec.msgpack.decode(frame[1]))
        if kind in ("Order", "Updates", "Checkpoint"):
            body = msgspec.msgpack.decode(frame[4 if kind == "Order" else 1])
            check(f"{kind}Body", body)
            if kind == "Order":
                check("Work", msgspec.msgpack.decode(body[0]))
        if kind == "Answer":
            check("Reply", msgspec.msgpack.decode(frame[4]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [("Ready", [6, -1, bytes(8)]), ("Ready", [6, 1, bytes(5)]), ("Ready", [6, 1]), ("Proof", [4, bytes(64)])],
)
def test_what_is_no_frame_is_not_valid(kind: str, value: list[Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = {"$ref": f"#/components/schemas/{kind}", "components": {"schemas": schemas.schemas()}}
    assert not jsonschema.Draft202012Validator(document).is_valid(plain(value))


def test_documents_are_valid_openapi() -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="pip install openapi-spec-validator")
    validator.validate(schemas.openapi())


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_those_of_the_cddl(name: str) -> None:
    """Its data model is that of CBOR, into which the values are written."""
    pycddl = pytest.importorskip("pycddl", reason="pip install pycddl cbor2")
    cbor2 = pytest.importorskip("cbor2", reason="pip install pycddl cbor2")
    rules = {kind: pycddl.Schema(f"root = {kind}\n{schemas.cddl()}") for kind in (*schemas.schemas(), "frame")}
    for _, kind, data in read(name)["frames"]:
        if kind:
            frame = msgspec.msgpack.decode(bytes.fromhex(data))
            for rule in (kind, "frame"):
                rules[rule].validate_cbor(cbor2.dumps(frame))
            if kind == "Welcome" and frame[1]:
                rules["DevicePlan"].validate_cbor(cbor2.dumps(msgspec.msgpack.decode(frame[1])))
    with pytest.raises(pycddl.ValidationError):
        rules["frame"].validate_cbor(cbor2.dumps([6, -1, bytes(8)]))


def test_references_of_documents_exist() -> None:
    for document in (schemas.asyncapi(), schemas.openapi()):
        for target in references(document):
            found: Any = document
            for part in target.removeprefix("#/").split("/"):
                found = found[part]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)
