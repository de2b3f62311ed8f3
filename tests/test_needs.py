"""What a ledger, a patch or an order says that it needs is shown as words to type after `pip install`."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from fedzero import FedzeroError, plugins
from fedzero.engines.remote import messages
from fedzero.engines.remote.messages import Prepare
from fedzero.errors import Refused
from fedzero.ledger import patch
from fedzero.ledger.patch import Patch
from fedzero.ledger.records import Start, decode_record, encode_record
from fedzero.model import distributions
from fedzero.plugins import Plugin
from fedzero.recipe import recipe as recipes

BAD = {
    "an option": {"--index-url=http://evil": "1"},
    "a short option": {"-r": "1"},
    "a blank": {"a b": "1"},
    "a command": {"a; rm -rf ~": "1"},
    "a substitution": {"$(id)": "1"},
    "an address": {"a@http://evil/a.whl": "1"},
    "a path": {"../evil": "1"},
    "a line": {"a\n": "1"},
    "a letter beyond ASCII": {"evıl": "1"},
    "a sign that is folded": {"\u212aelvin": "1"},
    "nothing": {"": "1"},
    "a long name": {"a" * 101: "1"},
    "an option as version": {"a": "1 --index-url=http://evil"},
    "a command as version": {"a": "1;id"},
    "a line as version": {"a": "1\n"},
    "an address as version": {"a": "1 @ http://evil"},
    "a star as version": {"a": "1.*"},
    "digits beyond ASCII": {"a": "١"},
    "no version": {"a": ""},
    "a long version": {"a": "1" * 101},
    "many": {f"a{i}": "1" for i in range(65)},
}
GOOD = {
    "fedzero-papers": "0.2.0", "a": "1", "A.b_c-9": "1!2.0rc1.post3.dev4+local.1", "b": "v2024.1a0", "c": "1.0-1",
    "d": "0.0.0.dev0+gdeadbeef.d20240101",
}  # fmt: skip


@pytest.fixture
def unchecked(monkeypatch):
    """Makes what an attacker writes, which nobody checks."""

    def made(make):
        with monkeypatch.context() as patched:
            patched.setattr(distributions, "check", lambda needs: None)
            return make()

    return made


def start_of(needs) -> Start:
    return Start(b"{}", b"", 1, 1, None, {}, needs)


def patch_of(needs) -> bytes:
    body = msgspec.msgpack.encode(Patch(1, b"", b"", (), b"{}", 1, b"", b"", (), b"", needs))
    return hashlib.sha256(body).digest() + body


@pytest.mark.parametrize("needs", BAD.values(), ids=BAD)
def test_what_is_no_name_or_version_is_refused_where_it_is_decoded(needs, unchecked) -> None:
    """0.2 printed it: is not installed: pip install --index-url=http://evil==1"""
    record, file, order = unchecked(
        lambda: (encode_record(start_of(needs)), patch_of(needs), messages.encode(Prepare("run", b"{}", (0,), needs)))
    )
    for decode, data in (
        (decode_record, record),
        (lambda data: patch.decode(data, "x.patch"), file),
        (messages.decode_order, order),
    ):
        with pytest.raises((Refused, FedzeroError), match="distribution") as caught:
            decode(data)
        assert len(str(caught.value)) < 400 and "pip install" not in str(caught.value)


def test_names_and_versions_as_they_are() -> None:
    assert decode_record(encode_record(start_of(GOOD))).needs == GOOD
    with pytest.raises(plugins.NotInstalled, match=r"pip install .*A\.b_c-9==1!2\.0rc1") as caught:
        plugins.find("methods", "unheard-of", GOOD)
    assert "if you trust" in str(caught.value)


def test_a_ledger_that_nobody_could_read_is_not_begun(monkeypatch) -> None:
    monkeypatch.setattr(plugins, "find", lambda group, tag: Plugin(int, "theirs", "unknown"))
    with pytest.raises(FedzeroError, match="'unknown', which is no version"):
        plugins.needed(("methods", "x"))


def test_a_name_that_nobody_has_is_not_repeated_in_whole() -> None:
    for needs in (None, {"nothing-such": "1"}):
        with pytest.raises(FedzeroError) as caught:
            recipes.method({"kind": "x" * 3_000_000}, needs)
        assert len(str(caught.value)) < 500
