"""Statements and ledgers that somebody else wrote: nothing but what a run writes is confirmed, and all else is one
sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from test_run_statement import table

from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import replay
from fedzero.ledger.folder import PRIVACY
from fedzero.ledger.records import PrivateRound, Round
from fedzero.ledger.store import Tampered, ledger_in
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session, statement
from fedzero.runs.progress import Silent

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Of the group of Ed25519."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("forged")
    session.start(recipes.decode(table(sigma=1.0)), place, Environment(), Silent())
    return place


FORGED: dict[str, Callable[[bytes], bytes]] = {
    "no number": lambda good: good.replace(b'"sigma":1.0', b'"sigma":NaN'),
    "infinite": lambda good: good.replace(b'"sigma":1.0', b'"sigma":1e999'),
    "a key twice": lambda good: good.replace(b'"sigma":1.0', b'"sigma":9.0,"sigma":1.0'),
    "400 digits": lambda good: good.replace(b'"steps":4', b'"steps":' + b"9" * 400),
    "half a letter": lambda good: good.replace(b'"run":"', b'"run":"\\ud800'),
    "no UTF-8": lambda good: good.replace(b'"run":"', b'"run":"\xff'),
    "other letters of the same text": lambda good: good.replace(b'"unit":"c', b'"unit":"\\u0063'),
    "another spelling of a number": lambda good: good.replace(b'"sigma":1.0', b'"sigma":1e0'),
    "a negative number of steps": lambda good: good.replace(b'"steps":4', b'"steps":-4'),
    "a mark before it": lambda good: b"\xef\xbb\xbf" + good,
    "nested": lambda good: b"[" * 100_000,
    "an object in an object": lambda good: b'{"figures":' * 5000,
    "nothing": lambda good: b"",
    "too much": lambda good: good + b" " * (1 << 27) + b"{}",
}


@pytest.mark.parametrize("kind", FORGED)
def test_other_bytes_are_one_sentence(folder: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "forged").write_bytes(FORGED[kind]((folder / PRIVACY).read_bytes().strip()))
    with pytest.raises(FedzeroError):
        statement.checked(folder, statement.read(tmp_path / "forged")[0])


def test_a_signature_has_one_form_and_belongs_to_one_key(folder: Path, tmp_path: Path) -> None:
    letter = statement.sign(statement.statement_in(folder), b"\1" * 32, tmp_path / "signed")
    whole = bytes.fromhex(letter.signature)
    larger = (int.from_bytes(whole[32:], "little") + ORDER).to_bytes(32, "little")
    other = msgspec.structs.replace(letter, signature=(whole[:32] + larger).hex())
    strange = msgspec.structs.replace(letter, key="00" * 32)
    longer = msgspec.structs.replace(letter, statement=letter.statement + " ")
    twice = (tmp_path / "signed").read_bytes().strip()[:-1] + b',"key":"' + b"11" * 32 + b'"}'
    for forged in (*map(msgspec.json.encode, (other, strange, longer)), twice):
        (tmp_path / "forged").write_bytes(forged)
        with pytest.raises(Refused, match="signature"):
            statement.read(tmp_path / "forged")


@pytest.mark.parametrize("key", ["01" + "00" * 31, "00" * 32, "ec" + "ff" * 30 + "7f"])
def test_a_key_of_small_order_signs_for_nobody(folder: Path, tmp_path: Path, key: str) -> None:
    """R = A = the neutral point and S = 0 are a signature of everything, by everybody."""
    letter = statement.sign(statement.statement_in(folder), b"\1" * 32, tmp_path / "signed")
    forged = msgspec.structs.replace(letter, key=key, signature=("01" + "00" * 63))
    (tmp_path / "forged").write_bytes(msgspec.json.encode(forged))
    for signer in (None, key):
        with pytest.raises(Refused, match="signature"):
            statement.read(tmp_path / "forged", signer)


def noted(folder: Path, change: Callable[[PrivateRound], Round], first: bool = False) -> None:
    """Read the ledger with another record in the place of its last round, or of its first."""
    with ledger_in(folder) as ledger:
        entries = list(replay.read(ledger).entries)
    outline, left = replay.LedgerSummary(), sum(isinstance(e.record, PrivateRound) for e in entries)
    for entry in entries:
        record, left = entry.record, left - isinstance(entry.record, PrivateRound)
        if isinstance(record, PrivateRound) and (record.round == 0 if first else not left):
            record = change(record)
        outline.note(record, entry.chain, entry.seconds)


def test_a_private_round_has_nothing_of_a_client(folder: Path) -> None:
    noted(folder, lambda record: record)
    for name, value in {
        "cohort": (1,),
        "refused": ((1, "why"),),
        "remembered": ((1, b"digest"),),
        "queried": ((1, b"digest"),),
        "bounded": (1,),
        "asked": (1,),
        "loss": 0.5,
    }.items():
        with pytest.raises(Tampered, match="it is private"):
            noted(folder, lambda record, change={name: value}: msgspec.structs.replace(record, **change))


def test_rounds_that_are_not_private_are_not_in_front_of_those_that_are(folder: Path) -> None:
    """A statement is of all rounds of its ledger."""

    def plain(record: PrivateRound) -> Round:
        return Round(record.round, (0, 1), record.update, record.dense, 1, 1, 1, 0.5)

    with pytest.raises(Tampered, match="earlier rounds are not"):
        noted(folder, plain, first=True)


@pytest.mark.parametrize("spent", [(float("nan"), None), (-1.0, None), (0.0, None)])
def test_an_epsilon_that_is_no_number_or_falls_is_not_read(folder: Path, spent: tuple[float, None]) -> None:
    with pytest.raises(Tampered, match="ε"):
        noted(folder, lambda record: msgspec.structs.replace(record, spent=spent))
