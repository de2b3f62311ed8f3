"""Sums of hosts that keep what they need on their own disks, each question put to a new process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from parties import RUN, Federation, Party

from fedzero.engines.gathering import Own
from fedzero.errors import FedzeroError, Invalid, Refused
from fedzero.gatherings import sealing
from fedzero.gatherings.committee import SecureSum
from fedzero.gatherings.messages import answer_of, encode, entries_of
from fedzero.gatherings.roster import fingerprint
from fedzero.gatherings.state import Chain, SetUp
from fedzero.ledger.answers import Answers, files_of
from fedzero.links.gathering import ServerContext
from fedzero.protocol.messages import Phase


@pytest.fixture
def five(tmp_path: Path) -> Federation:
    return Federation(tmp_path, 5)


def test_the_sum_is_exact_and_a_later_round_needs_fewer_phases(five: Federation) -> None:
    total, phases = five.play(0)
    assert (total.values.tolist(), total.weight, phases) == (five.right(0, "abcde").tolist(), 5.0, 4)
    total, phases = five.play(3)
    assert (total.values.tolist(), total.clients, phases) == (five.right(3, "abcde").tolist(), (0, 1, 2, 3, 4), 2)
    assert five.play(3, exchange=1)[0].values.tolist() == five.right(3, "abcde").tolist()


def test_a_host_that_is_lost_before_its_input_is_not_in_the_sum_and_after_it_it_is(five: Federation) -> None:
    five.play(0)
    five.lost = {(0, "b")}
    total, _ = five.play(1)
    assert (total.clients, total.values.tolist()) == ((0, 2, 3, 4), five.right(1, "acde").tolist())
    five.lost = {(1, "b")}
    total, _ = five.play(2)
    assert (total.clients, total.values.tolist()) == ((0, 1, 2, 3, 4), five.right(2, "abcde").tolist())


def test_more_dropouts_than_the_committee_bears_abandon_the_round_alone(five: Federation) -> None:
    five.play(0)
    five.lost = {(1, "b"), (1, "c")}
    with pytest.raises(Refused, match="only 3 members answered of at least 4"):
        five.play(1)
    five.lost = {(0, "b"), (0, "c")}
    with pytest.raises(Refused, match=r"a set of 3 hosts with clients is too small: 2 besides 2"):
        five.play(2)
    five.lost = set()
    assert five.play(3)[0].values.tolist() == five.right(3, "abcde").tolist()


def test_hosts_without_clients_take_part_with_zeros(tmp_path: Path) -> None:
    seven = Federation(tmp_path, 7)
    total, _ = seven.play(0, idle="fg")
    assert (total.values.tolist(), total.clients) == (seven.right(0, "abcde").tolist(), (0, 1, 2, 3, 4))
    with pytest.raises(Refused, match="a set of 3 hosts with clients is too small: 2 besides 2"):
        seven.play(1, idle="defg")


class Noisy(SecureSum, tag="test-noisy"):
    """Each host adds integers of its own, the same however often it is asked."""

    def noise(self, numbers: int, entropy: Any) -> Any:
        return np.frombuffer(entropy(numbers), np.int8).astype(np.int64)


def test_every_host_adds_its_noise_once_idle_ones_too(tmp_path: Path) -> None:
    noisy = Federation(tmp_path, 7, Noisy(scale=8.0, noisy=5), numbers=12)
    total, _ = noisy.play(0, idle="g")
    again, _ = noisy.play(0, idle="g")
    added = (total.values - noisy.right(0, "abcdef")) * 8
    assert total.values.tolist() == again.values.tolist()
    assert added.any() and np.abs(added).max() <= 7 * 128 and (added == np.rint(added)).all()
    noisy.lost = {(0, "g")}
    with pytest.raises(Refused, match="a set of 6 hosts is too small: the noise of 5 is needed besides 2"):
        noisy.play(1)


def test_a_committee_of_sixteen_is_drawn_among_many(tmp_path: Path) -> None:
    many = Federation(tmp_path, 18)
    names = list(many.parties)
    total, _ = many.play(0)
    assert total.values.tolist() == many.right(0, names).tolist()
    given = {name: answer_of(a) for name, a in many.answers[2].items()}
    seats = {name: shares.seat for name, shares in given.items() if shares.seat}
    assert sorted(seats.values()) == list(range(1, 17)) and many.bodies[3].keys() == seats.keys()
    many.lost = {(1, name) for name in list(seats)[:5]} | {(0, next(n for n in names if n not in seats))}
    total, _ = many.play(1)
    assert len(total.clients) == 17


def test_a_retry_sends_the_same_bytes(five: Federation) -> None:
    for round in (0, 1):
        for _ in range(2):
            five.play(round)
    for party in five.parties.values():
        assert party.sent and all(len(set(sent)) == 1 and len(sent) == 2 for sent in party.sent.values())


def test_no_two_inputs_have_a_salt_or_a_sealed_share_in_common(five: Federation) -> None:
    five.play(0)
    inputs = [answer_of(a) for a in five.answers[2].values()]
    for round, exchange in ((1, 0), (1, 1), (2, 0)):
        five.play(round, exchange)
        inputs += [answer_of(a) for a in five.answers[0].values()]
    sealed = [piece for each in inputs for piece in each.sealed if piece]
    assert len({each.header.salt for each in inputs}) == len(inputs) == 20
    assert len(set(sealed)) == len(sealed) == 20 * 4


def keys_of(party: Party) -> set[bytes]:
    answers = Answers(party.folder)
    notes = answers.notes(-2)
    answers.close()
    found = set[bytes]()
    if "SetUp" in notes:
        own = msgspec.msgpack.decode(notes["SetUp"], type=SetUp)
        found |= {own.identity, own.ephemeral}
    if "Chain" in notes:
        found |= set(msgspec.msgpack.decode(notes["Chain"], type=Chain).keys.values())
    return found


def test_keys_are_overwritten_and_erased_at_the_end(five: Federation) -> None:
    a = five.parties["a"]
    seen: list[set[bytes]] = []

    def looking(phase, bodies):
        seen.append(keys_of(a))
        return bodies

    five.play(0, change=looking)
    five.play(1, change=looking)
    first, later = seen[1], seen[-1]
    assert len(first) == 2 and len(later) == 4 and not first & later and not seen[3] & later
    a.finish()
    left = b"".join(path.read_bytes() for path in files_of(a.folder) if path.exists())
    assert left and not any(key in left for keys in seen for key in keys)
    assert keys_of(a) == set()


def test_one_way_from_a_round_to_the_next() -> None:
    chain = Chain(0, (-1, 0), 0, {1: b"k" * 32}, {})
    third = chain.at((3, 0))
    assert third.keys == chain.at((1, 1)).at((2, 0)).at((3, 0)).keys != chain.keys
    assert third.at((3, 0)) == third and third.at((3, 1)).keys == third.keys
    assert (third.last, third.at((3, 1)).last, third.at((5, 0)).last, third.at((3, 1)).given) == (0, 0, 4, 2)
    with pytest.raises(Refused, match="of round 2, and gave one in round 3"):
        third.at((2, 5))


def test_the_fingerprint_is_of_identities_and_pinned(tmp_path: Path) -> None:
    first = Federation(tmp_path / "first", 4, own=Own(RUN, b"", ""))
    for i, party in enumerate(first.parties.values()):
        party.own = Own(RUN, bytes([i + 1] * 32), "")
    first.play(0)
    names = {e.name: e.identity for e in entries_of(first.bodies[1]["a"])}
    print_ = fingerprint(list(names.items()))
    assert names["b"] == sealing.public_of(b"\2" * 32) and len(print_.split()) == 8
    again = Federation(tmp_path / "again", 4)
    for i, party in enumerate(again.parties.values()):
        party.own = Own("another run", bytes([i + 1] * 32), print_.replace(" ", "").upper())
    assert again.play(0)[0].weight == 4.0
    other = Federation(tmp_path / "other", 4)
    for i, party in enumerate(other.parties.values()):
        party.own = Own(RUN, bytes([i + 1 + (i == 3)] * 32), print_)
    with pytest.raises(Refused, match="did not reveal"):
        other.play(0)
    assert {print_ + " is pinned" in why for why in other.why(1).values()} == {True}


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(FedzeroError, match=r"pip install 'fedzero\[secure\]'"):
        sealing.expect_library()


@pytest.mark.parametrize("scale", [3.0, 2.0**41, 0.3])
def test_a_scale_is_a_power_of_two(scale) -> None:
    with pytest.raises(Invalid, match="power of two"):
        SecureSum(scale=scale)


def test_clients_that_are_drawn_twice_end_the_run(five: Federation) -> None:
    phases = five.gathering.at_server({"a": (0,)}, ServerContext(0, 0, 3, {0: 2}))
    with pytest.raises(FedzeroError, match=r"set federation\.replacement = false"):
        next(phases)


@pytest.mark.parametrize(("count", "numbers", "most"), [(7, 10, 600), (16, 50, 4096)])
def test_bytes_up_of_a_round(tmp_path: Path, count: int, numbers: int, most: int) -> None:
    """What one host sends in all phases of a round, as the encoder writes it."""
    federation = Federation(tmp_path, count, numbers=numbers)
    federation.play(0)
    federation.play(100)
    up = {name: sum(len(answers[name]) for answers in federation.answers) for name in federation.parties}
    assert 8 * numbers < max(up.values()) <= most


def test_messages_are_read_whole(five: Federation) -> None:
    for garbage in (b"", b"\xc1", encode((1, 2)), encode(("a", (0,), 1))):
        found = five.parties["a"].ask(Phase(0, 0, 0, garbage))
        assert isinstance(found, Refused) and "not an opening of a secure sum" in str(found)
