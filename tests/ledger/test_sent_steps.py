"""Ledgers of somebody else: steps of several rounds that no run writes, and chains of rules that nobody needs."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from test_hostile_files import rewritten

from fedzero.errors import FedzeroError
from fedzero.ledger.database import Tampered
from fedzero.ledger.records import Record, Round
from fedzero.model.updates import Group, Seeded, Stepped, decode_update, encode_update, is_stepped, pack
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs.recorded import replayed, verified
from late import play, recipe_of

TWO = pack(np.ones(2, np.float32))
METHOD = {"kind": "decomfl", "rate": 0.01, "directions": 2}
AT = 8
FORGED = Stepped(AT, (Group(0, TWO),))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late") / "run"
    play(recipe_of(METHOD), folder, {})
    return folder


@pytest.fixture
def run(late: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(late, tmp_path / "run"))


def at_round(**fields: Any) -> Callable[[Record], Record]:
    def change(record: Record) -> Record:
        return replace(record, **fields) if isinstance(record, Round) and record.round == AT else record

    return change


HEADS = {
    "as it is written": b"\x93\x03",
    "a tag of two bytes": b"\x93\xcc\x03",
    "a length of two bytes": b"\xdc\x00\x03\x03",
    "a length of four bytes": b"\xdd\x00\x00\x00\x03\x03",
    "a signed tag": b"\x93\xd0\x03",
}


@pytest.mark.parametrize("head", HEADS)
def test_groups_are_those_that_were_answered_however_they_are_written(run: Path, head: str) -> None:
    """msgpack has several ways to write the same: in all but one, groups were compared with nothing."""
    data = HEADS[head] + encode_update(FORGED)[2:]
    assert decode_update(data) == FORGED and is_stepped(data)
    rewritten(run, at_round(update=data))
    for read in (lambda: verified(run, Environment()), lambda: replayed(run, Environment(), None)):
        with pytest.raises(Tampered, match="round 8: its update is made of replies to other questions"):
            read()


def test_what_is_written_as_before_is_no_step_of_several_rounds() -> None:
    for update in (Seeded(3, TWO), Seeded(3, TWO, (1,)), Seeded(3, TWO, (1,), (2,))):
        assert not is_stepped(encode_update(update))
    for data in (b"", b"\xc1", b"\x93", b"\x90", b"\x93\xa1x", b"\x91" * 5000):
        assert not is_stepped(data)


@pytest.mark.parametrize("update", [FORGED, Seeded(AT, TWO)])
def test_a_dense_update_is_dense(run: Path, update: Any) -> None:
    """Of dense updates the record has a digest only, so nothing compares their groups."""
    body = encode_update(update)
    with sqlite3.connect(run / "ledger.db") as db:
        db.execute("INSERT INTO dense VALUES (?, ?)", (AT, body))
    rewritten(run, at_round(dense=True, update=hashlib.sha256(body).digest()))
    with pytest.raises(Tampered, match="round 8: its update is not of the kind that it says"):
        verified(run, Environment())


def test_very_many_groups_are_read_in_seconds(run: Path) -> None:
    count = 20_000
    body = encode_update(Stepped(count, tuple(Group(i, TWO) for i in range(count))))
    assert len(body) < 400_000
    rewritten(run, at_round(update=body))
    began = time.process_time()
    with pytest.raises(Tampered, match="other questions"):
        verified(run, Environment())
    assert time.process_time() - began < 3


# ---- chains of rules

LINKS = [{"kind": "weighting", "step": "rms"}]


def recipe_with(rules: Any) -> bytes:
    table = {
        "name": "chained",
        "rounds": 3,
        "algorithm": {**METHOD, "rules": rules},
        "task": {"kind": "quadratic", "dimension": 6},
        "federation": {"clients": 4, "cohort": 2},
    }
    return json.dumps(table).encode()


@pytest.mark.parametrize("count", [32, 20_000])
def test_a_chain_of_very_many_rules_is_refused_at_once(count: int) -> None:
    """Every two rules are compared: 3,000 took a site 18 s, with the square of their number."""
    began = time.process_time()
    with pytest.raises(FedzeroError, match=f"{count + 1:,} rules where a chain has at most 32"):
        recipes.received(recipe_with([*(LINKS * count), {"kind": "sgd"}]))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "rules",
    [None, 5, "sgd", [], [5], [None], [[[]]], [{}], [{"kind": {}}], [{"kind": "x" * 10**5}],
     [{"kind": "sgd", "rules": []}], [{"kind": "no-such"}], LINKS,
     [{"kind": "sgd"}, *LINKS], [{"kind": "momentum", "beta": 1e308}],
     [{"kind": "adam", "epsilon": -1}], [{"kind": "averaging", "rounds": 1 << 17}, {"kind": "sgd"}]],
)  # fmt: skip
def test_rules_that_are_none_are_refused_in_a_sentence(rules: Any) -> None:
    with pytest.raises(FedzeroError) as refused:
        recipes.received(recipe_with(rules))
    assert len(str(refused.value)) < 500


def test_a_site_that_approved_of_a_chain_approved_of_no_other() -> None:
    chains: list[Any] = [
        [{"kind": "sgd"}],
        [{"kind": "momentum"}],
        [{"kind": "momentum", "beta": 0.8}],
        [*LINKS, {"kind": "sgd"}],
        [*LINKS, *LINKS, {"kind": "sgd"}],
    ]
    plain = json.loads(recipe_with([]))
    del plain["algorithm"]["rules"]
    found = [recipes.hash_of(recipes.received(data)) for data in map(recipe_with, chains)]
    found.append(recipes.hash_of(recipes.received(msgspec.json.encode(plain))))
    assert len(set(found)) == len(found)
