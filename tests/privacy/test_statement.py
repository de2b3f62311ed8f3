"""Statements: canonical bytes, signatures, and what they refuse."""

from __future__ import annotations

import json
import math
import sys

import msgspec
import pytest

from fedzero.errors import FedzeroError, Invalid, Refused
from fedzero.privacy.statement import Figure, Signed, Statement, decode, public_key, signed

KEY = bytes(range(32))
FIGURES = (
    Figure(adversary="readers of model and ledger", epsilon=1.9988347, amplified=True, why="cohorts are secret"),
    Figure(adversary="server", epsilon=None, amplified=False, why="central noise"),
)
STATEMENT = Statement(
    run="0123abcd",
    unit="client",
    adjacency="add or remove one",
    units=1_000,
    delta=1e-5,
    q=0.05,
    steps=300,
    sigma=1.947,
    clip=0.1,
    noise="central",
    figures=FIGURES,
    trust=("the server adds the noise",),
    simulated=False,
    sampler="Poisson, operating system; rounded Gaussian",
    accountant="dp-accounting 0.6.0",
    public=("test set",),
    tuning="none on these data",
)


def changed(**fields: object) -> Statement:
    return msgspec.structs.replace(STATEMENT, **fields)


def test_bytes_are_canonical() -> None:
    data = STATEMENT.encode()
    assert decode(data) == STATEMENT and list(json.loads(data)) == sorted(json.loads(data))
    assert json.loads(data)["figures"][1]["epsilon"] is None
    whole = changed(sigma=2)
    assert b'"sigma":2.0' in whole.encode() and decode(whole.encode()) == whole
    for other in (b" " + data, data.replace(b"1.947", b"1.9470"), data[:-1] + b',"more":1}', data[1:], b"[]"):
        with pytest.raises(Refused):
            decode(other)


def test_a_statement_that_promises_nothing_is_refused() -> None:
    strange = ({"delta": 1e-3}, {"figures": ()}, {"sigma": math.inf}, {"clip": math.nan})
    for fields in strange:
        with pytest.raises(Invalid):
            Statement(**{name: getattr(STATEMENT, name) for name in STATEMENT.__struct_fields__} | fields)
    data = json.loads(STATEMENT.encode()) | {"delta": 1e-3}
    with pytest.raises(Refused, match="too large for 1,000 units"):
        decode(msgspec.json.encode(data, order="sorted"))


def test_signatures() -> None:
    pytest.importorskip("cryptography")
    key = public_key(KEY)
    letter = msgspec.json.decode(msgspec.json.encode(signed(STATEMENT, KEY)), type=Signed)
    assert letter.checked(key) == STATEMENT
    forged = msgspec.structs.replace(letter, statement=letter.statement.replace("1.9988347", "0.9988347"))
    stranger = signed(STATEMENT, bytes(32))
    for bad in (forged, stranger, msgspec.structs.replace(stranger, key=key)):
        with pytest.raises(Refused, match="signature"):
            bad.checked(key)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'["{}", "00", "11"]', type=Signed)


def test_a_signature_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(FedzeroError, match=r"fedzero\[privacy\]"):
        signed(STATEMENT, KEY)
