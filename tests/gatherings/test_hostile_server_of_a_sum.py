"""What a server tries that wants more than the sum, and what a member tries that wants another one: every attempt is
refused by name, and what it would have given is looked at where that is less than plain."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from parties import RUN, Federation

from fedzero.engines.gathering import Own
from fedzero.errors import Refused
from fedzero.gatherings import field
from fedzero.gatherings.committee import SecureSum
from fedzero.gatherings.messages import (
    Header,
    Input,
    Opening,
    Set,
    Shares,
    answer_of,
    encode,
    entries_of,
    nonces_of,
    opening_of,
    set_of,
)
from fedzero.gatherings.roster import Entry, commitment_of
from fedzero.gatherings.sealing import public_of
from fedzero.protocol.messages import Phase


@pytest.fixture
def five(tmp_path: Path) -> Federation:
    """Five hosts that have a roster and gave a sum in round 0."""
    federation = Federation(tmp_path, 5)
    federation.play(0)
    return federation


def changed(federation: Federation, phase: int, how: Callable[[str, bytes], bytes | None], round: int = 1) -> str:
    """Play a round in which the server sends others bodies in a phase; the reason why it is abandoned."""

    def change(number: int, bodies: dict[str, bytes]) -> dict[str, bytes]:
        if number != phase:
            return bodies
        sent = {name: how(name, body) for name, body in bodies.items()}
        return {name: body for name, body in sent.items() if body is not None}

    with pytest.raises(Refused) as refused:
        federation.play(round, change=change)
    return str(refused.value)


def in_set(edit: Callable[[Set], Set]) -> Callable[[str, bytes], bytes]:
    return lambda name, body: encode(edit(set_of(body)))


def at_input(at: int, edit: Callable[[Header], Header]) -> Callable[[str, bytes], bytes]:
    def change(found: Set) -> Set:
        inputs = list(found.inputs)
        inputs[at] = replace(inputs[at], header=edit(inputs[at].header))
        return replace(found, inputs=tuple(inputs))

    return in_set(change)


# ---- sets


def test_a_second_set_is_refused_also_by_another_process(five: Federation) -> None:
    """The difference of two sets would be one host's input. Every question here is put to a new process."""
    five.play(1)
    whole = five.bodies[1]
    for name, party in five.parties.items():
        less = replace(set_of(whole[name]), inputs=set_of(whole[name]).inputs[1:])
        found = party.ask(Phase(1, 0, 1, encode(less)))
        assert isinstance(found, Refused) and "before, with another body" in str(found)
        assert party.ask(Phase(1, 0, 1, whole[name])) == five.answers[1][name]


def test_split_sets_complete_no_sum(five: Federation) -> None:
    """Some members are sent one set and the others another: neither has T = 4 answers."""
    why = changed(
        five,
        1,
        lambda name, body: (
            body if name in "ab" else in_set(lambda found: replace(found, inputs=found.inputs[:4]))(name, body)
        ),
    )
    assert why == "the answers of members do not lie on one polynomial"
    sums = {name: field.from_bytes(a, 3) for name, a in five.answers[1].items() if isinstance(a, bytes)}
    assert len(sums) == 5, "all members answered, each once"


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_set_too_small_is_refused(five: Federation, left: int) -> None:
    changed(five, 1, in_set(lambda found: replace(found, inputs=found.inputs[:left])))
    assert set(five.why(1).values()) == {
        f"a set of {left} hosts with clients is too small: 2 besides 2 that may collude"
    }


def test_hosts_without_clients_do_not_make_a_set_larger(five: Federation) -> None:
    """The server tells all hosts but one that they have no client in this round: the one's numbers would be the sum."""
    why = changed(five, 0, lambda name, body: encode(Opening(name, opening_of(body).clients if name == "c" else ())))
    assert "a set of 1 hosts with clients is too small" in why
    forged = {name: answer_of(answer) for name, answer in five.answers[0].items()}
    inputs = [replace(each.header, count=1) for each in forged.values()]
    for seat, (name, party) in enumerate(five.parties.items()):
        pieces = zip(inputs, (each.sealed[seat] for each in forged.values()), strict=True)
        own = tuple(Input(forged[name].header if i == seat else h, s) for i, (h, s) in enumerate(pieces))
        found = party.ask(Phase(1, 0, 1, encode(Set(forged[name].roster, own))))
        assert isinstance(found, Refused) and ("does not open" in str(found) or "too small" in str(found))


def test_an_input_twice_or_of_nobody_or_out_of_order(five: Federation) -> None:
    edits = [lambda i: (*i, i[-1]), lambda i: i[::-1], lambda i: (*i, Input(replace(i[-1].header, index=9), b""))]
    for round, edit in enumerate(edits, 1):
        changed(five, 1, in_set(lambda found, edit=edit: replace(found, inputs=edit(found.inputs))), round)
        assert set(five.why(1).values()) == {"was sent a set with an input twice, out of order or of nobody"}


def test_a_set_with_another_input_of_the_member_itself(five: Federation) -> None:
    changed(five, 1, at_input(0, lambda header: replace(header, salt=bytes(16))))
    why = five.why(1)
    assert why.pop("a") == "was sent a set with another input of this host than it gave"
    assert set(why.values()) == {"the input of a does not open: other keys, or made for something else"}


@pytest.mark.parametrize("field_", ["count", "last"])
def test_nothing_in_the_clear_of_an_input_can_be_changed(five: Federation, field_: str) -> None:
    changed(five, 1, at_input(2, lambda header: replace(header, **{field_: getattr(header, field_) + 7})))
    others = {why for name, why in five.why(1).items() if name != "c"}
    assert others == {"the input of c does not open: other keys, or made for something else"}


def test_inputs_of_an_earlier_round_or_exchange_do_not_open(five: Federation) -> None:
    five.play(1)
    earlier = five.bodies[1]
    changed(five, 1, lambda name, body: earlier[name], round=2)
    own = "was sent a set with another input of this host than it gave"
    other = "the input of a does not open: other keys, or made for something else"
    assert five.why(1) == {"a": own, **dict.fromkeys("bcde", other)}

    def but_its_own(name: str, body: bytes) -> bytes:
        mine, before = set_of(body), set_of(earlier[name])
        me = list(five.parties).index(name)
        inputs = [new if i == me else old for i, (new, old) in enumerate(zip(mine.inputs, before.inputs, strict=True))]
        return encode(replace(mine, inputs=tuple(inputs)))

    changed(five, 1, but_its_own, round=3)
    assert len(five.why(1)) == 5 and all("does not open" in why for why in five.why(1).values())


def test_shares_of_another_member_do_not_open(five: Federation) -> None:
    given: dict[str, bytes] = {}

    def swap(name: str, body: bytes) -> bytes:
        given[name] = body
        return encode(replace(set_of(body), inputs=(set_of(body).inputs[0], *set_of(given["a"]).inputs[1:])))

    changed(five, 1, swap)
    assert "does not open" in five.why(1)["d"]


def test_a_host_outside_the_committee_answers_for_no_set(tmp_path: Path) -> None:
    many = Federation(tmp_path, 17)
    many.play(0)
    (outside,) = many.parties.keys() - many.bodies[3].keys()
    found = many.parties[outside].ask(Phase(0, 0, 3, next(iter(many.bodies[3].values()))))
    assert isinstance(found, Refused) and "is not in the committee" in str(found)


def test_a_set_of_another_roster(five: Federation) -> None:
    changed(five, 1, in_set(lambda found: replace(found, roster=bytes(32))))
    assert set(five.why(1).values()) == {"was sent a set of inputs of another roster"}


# ---- openings


def test_an_earlier_round_is_over_and_another_opening_is_refused(five: Federation) -> None:
    five.play(3)
    found = five.parties["a"].ask(Phase(2, 0, 0, encode(Opening("a", (0,)))))
    assert isinstance(found, Refused) and "over" in str(found)
    found = five.parties["a"].ask(Phase(3, 0, 0, encode(Opening("a", ()))))
    assert isinstance(found, Refused) and "with another body" in str(found)


@pytest.mark.parametrize(
    ("opening", "why"),
    [
        (Opening("b", (0,)), "is called 'b', and was 'a' when the roster was made"),
        (Opening("a", (0, 0)), "gave nothing here, or twice for one"),
        (Opening("a", (1,)), "gave nothing here, or twice for one"),
    ],
)
def test_an_opening_for_somebody_else(five: Federation, opening: Opening, why: str) -> None:
    found = five.parties["a"].ask(Phase(1, 0, 0, encode(opening)))
    assert isinstance(found, Refused) and why in str(found)


def test_values_that_would_leave_the_field_or_are_no_multiple(tmp_path: Path) -> None:
    exact = Federation(tmp_path / "exact", 4, SecureSum(scale=4.0, rounding="refuse"))
    with pytest.raises(Refused):
        exact.play(0)
    assert set(exact.why(2).values()) == {"a value is no multiple of 1/4"}
    fine = Federation(tmp_path / "fine", 4, SecureSum(scale=2.0**36))
    with pytest.raises(Refused):
        fine.play(0)
    assert "is larger than 16, the largest of a sum of this scale" in str(fine.why(2))


# ---- rosters


@pytest.fixture
def new(tmp_path: Path) -> Federation:
    return Federation(tmp_path, 5)


def entry_of(entries: tuple[Entry, ...], at: int, **edit: object) -> tuple[Entry, ...]:
    return (*entries[:at], replace(entries[at], **edit), *entries[at + 1 :])


@pytest.mark.parametrize(
    ("edit", "whom", "why"),
    [
        (lambda e: entry_of(e, 1, ephemeral=bytes(31) + b"\1"), "b", "without this host, or with other keys for it"),
        (lambda e: entry_of(e, 1, identity=bytes(31) + b"\1"), "b", "without this host, or with other keys for it"),
        (lambda e: entry_of(e, 1, ephemeral=e[2].ephemeral), "a", "two hosts have the same key"),
        (lambda e: entry_of(e, 1, identity=e[2].identity), "a", "two hosts have the same key"),
        (lambda e: entry_of(e, 1, name="c"), "a", "a name occurs twice"),
        (lambda e: e[::-1], "a", "out of order"),
        (lambda e: e[:3], "a", "a roster of 3 hosts, where at least 4 are needed"),
        (lambda e: e[1:], "a", "without this host"),
        (lambda e: entry_of(e, 4, name="x" * 300), "a", "malformed at"),
        (lambda e: entry_of(e, 4, commitment=b""), "a", "malformed at"),
    ],
)
def test_rosters_that_a_host_refuses(new: Federation, edit, whom: str, why: str) -> None:
    changed(new, 1, lambda name, body: encode(edit(entries_of(body))), round=0)
    assert why in new.why(1)[whom]


def test_a_key_swapped_towards_one_host_alone_is_not_what_was_committed(new: Federation) -> None:
    """The server puts its own key in the place of b's, towards a alone."""

    def swap(phase: int, bodies: dict[str, bytes]) -> dict[str, bytes]:
        if phase == 1:
            entries = entries_of(bodies["a"])
            own = entry_of(entries, 1, ephemeral=b"\x09" + bytes(31))
            bodies["a"] = encode(own)
        return bodies

    total, _ = new.play(0, change=swap)
    assert total.clients == (1, 2, 3, 4)
    assert "another nonce of b than it committed to" in new.why(2)["a"]


def test_swapped_with_its_commitment_it_is_another_roster(new: Federation) -> None:
    """The whole entry of b, with a nonce that the server made: a has a roster of its own, and is alone in it."""
    nonce, key = b"n" * 32, public_of(b"\x42" * 32)
    false = Entry("b", key, public_of(b"\x43" * 32), b"")
    false = replace(false, commitment=commitment_of("b", false.identity, false.ephemeral, nonce))

    def swap(phase: int, bodies: dict[str, bytes]) -> dict[str, bytes]:
        if phase == 1:
            entries = entries_of(bodies["a"])
            bodies["a"] = encode((entries[0], false, *entries[2:]))
        if phase == 2:
            nonces = nonces_of(bodies["a"])
            bodies["a"] = encode((nonces[0], nonce, *nonces[2:]))
        return bodies

    total, _ = new.play(0, change=swap)
    assert total.clients == (1, 2, 3, 4), "a is in no sum"
    found = answer_of(new.answers[2]["a"])
    assert isinstance(found, Shares) and found.roster != answer_of(new.answers[2]["b"]).roster

    def put_in(phase: int, bodies: dict[str, bytes]) -> dict[str, bytes]:
        if phase != 1:
            return bodies
        mine = answer_of(new.answers[0]["a"])
        assert isinstance(mine, Shares)
        for seat, name in enumerate("bcde", 2):
            body = set_of(bodies[name])
            bodies[name] = encode(replace(body, inputs=(Input(mine.header, mine.sealed[seat - 1]), *body.inputs)))
        return bodies

    with pytest.raises(Refused):
        new.play(1, change=put_in)
    assert {why for name, why in new.why(1).items() if name in "bcde"} == {
        "the input of a does not open: other keys, or made for something else"
    }


def test_a_public_key_of_small_order_is_refused(new: Federation) -> None:
    """With the key 0 everybody agrees on 0, also the server."""

    def weak(phase: int, bodies: dict[str, bytes]) -> dict[str, bytes]:
        if phase == 1:
            entries = entries_of(bodies["a"])
            b = replace(entries[1], ephemeral=bytes(32))
            b = replace(b, commitment=commitment_of("b", b.identity, b.ephemeral, b"n" * 32))
            bodies |= {name: encode((entries[0], b, *entries[2:])) for name in "acde"}
        if phase == 2:
            nonces = nonces_of(bodies["a"])
            bodies |= {name: encode((nonces[0], b"n" * 32, *nonces[2:])) for name in "acde"}
        return bodies

    with pytest.raises(Refused):
        new.play(0, change=weak)
    assert {why for name, why in new.why(2).items() if name != "b"} == {"a public key is not one"}


def test_another_roster_for_the_same_round_is_refused(new: Federation) -> None:
    """The server cannot try rosters until it likes the committee: what was committed is shown once."""
    new.play(0)
    entries = entries_of(new.bodies[1]["a"])
    found = new.parties["a"].ask(Phase(0, 0, 1, encode(entries[:4])))
    assert isinstance(found, Refused) and "with another body" in str(found)
    nonces = nonces_of(new.bodies[2]["a"])
    found = new.parties["a"].ask(Phase(0, 0, 2, encode((*nonces[:4], bytes(32)))))
    assert isinstance(found, Refused) and "with another body" in str(found)


def test_who_does_not_reveal_stops_the_set_up_and_draws_are_counted(tmp_path: Path) -> None:
    """A host that colludes sees all other nonces and may leave: that would be another draw of the committee."""
    many = Federation(tmp_path, 17)
    many.lost = {(1, "q")}
    for round in range(4):
        with pytest.raises(Refused, match=r"(q|a) did not reveal"):
            many.play(round)
        if round == 2:
            many.parties["b"].finish()  # nor is it forgotten by being told that the run has ended
    reasons = {why for name, why in many.why(1).items() if name != "q"}
    assert reasons == {"took part in 3 set-ups before, and every one draws another committee"}
    few = Federation(tmp_path / "few", 5)
    few.lost = {(1, "e")}
    for round in range(5):
        with pytest.raises(Refused, match="e did not reveal"):
            few.play(round)
    few.lost = set()
    assert few.play(5)[0].weight == 5.0


def test_the_nonce_of_a_set_up_is_never_used_again(new: Federation) -> None:
    new.lost = {(1, "e")}
    with pytest.raises(Refused):
        new.play(0)
    first = entries_of(new.bodies[1]["a"])
    new.lost = set()
    new.play(1)
    second = entries_of(new.bodies[1]["a"])
    for one, other in zip(first, second, strict=True):
        assert {one.identity, one.ephemeral, one.commitment}.isdisjoint(
            {other.identity, other.ephemeral, other.commitment}
        )


def test_a_run_of_another_name_has_other_keys(tmp_path: Path) -> None:
    """An order of one run in another: the hash of the roster, and so every share, is of the run."""
    one = Federation(tmp_path, 5)
    one.parties["e"].own = Own("another run")
    total, _ = one.play(0)
    assert total.clients == (0, 1, 2, 3) and RUN != "another run"


# ---- hosts


def test_a_host_that_was_put_back_is_named(five: Federation, tmp_path: Path) -> None:
    five.parties["b"].copy(tmp_path / "copy")
    five.play(1)
    five.parties["b"].put_back(tmp_path / "copy")
    with pytest.raises(Refused):
        five.play(2)
    why = five.why(1)
    assert set(why) == {"a", "c", "d", "e"}
    assert set(why.values()) == {"b was put back to an earlier state: it knows nothing of round 1"}


def test_a_host_that_was_put_back_draws_another_input_that_no_member_adds_up(five: Federation, tmp_path: Path) -> None:
    """Put back behind its input of round 1 it draws another one, under another salt; the members have answered."""
    five.parties["b"].copy(tmp_path / "copy")
    five.play(1)
    first, bodies = five.answers[0]["b"], five.bodies
    five.parties["b"].put_back(tmp_path / "copy")
    second = five.parties["b"].ask(Phase(1, 0, 0, bodies[0]["b"]))
    one, other = answer_of(first), answer_of(second)
    assert isinstance(one, Shares) and isinstance(other, Shares) and one.header.salt != other.header.salt
    assert not {s for s in one.sealed if s} & {s for s in other.sealed if s}
    for seat, name in ((1, "a"), (3, "c")):
        body = set_of(bodies[1][name])
        again = tuple(Input(other.header, other.sealed[seat - 1]) if i == 1 else e for i, e in enumerate(body.inputs))
        found = five.parties[name].ask(Phase(1, 0, 1, encode(replace(body, inputs=again))))
        assert isinstance(found, Refused)


def test_a_host_that_lost_its_disk_is_outside_for_the_rest_of_the_run(five: Federation) -> None:
    shutil.rmtree(five.parties["b"].folder)
    five.parties["b"].folder.mkdir()
    total, _ = five.play(1)
    assert total.clients == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (bytes(24), "do not lie on one polynomial"),
        (b"", "b sent 0 bytes where 24 were expected"),
        (b"\xff" * 24, "b sent a number that is not in the field"),
    ],
)
def test_a_member_that_answers_something_else_abandons_the_round(five: Federation, answer: bytes, why: str) -> None:
    honest = five.answer
    five.answer = lambda name, order: answer if (name, order.phase) == ("b", 1) else honest(name, order)
    with pytest.raises(Refused, match=why):
        five.play(1)


def test_two_hosts_with_one_seat_or_place(five: Federation) -> None:
    honest = five.answer

    def lying(edit: Callable[[Shares], Shares]) -> None:
        def answer(name: str, order: Phase) -> bytes | Exception:
            found = honest(name, order)
            return encode(edit(answer_of(found))) if (name, order.phase) == ("b", 0) else found

        five.answer = answer

    lying(lambda shares: replace(shares, seat=1))
    with pytest.raises(Refused, match="the same seat"):
        five.play(1)
    lying(lambda shares: replace(shares, header=replace(shares.header, index=0)))
    with pytest.raises(Refused, match="the same place"):
        five.play(2)
    lying(lambda shares: replace(shares, seat=77))
    with pytest.raises(Refused, match="the same seat"):
        five.play(3)


def test_a_host_that_says_something_unreadable_is_left_out_alone(five: Federation) -> None:
    honest = five.answer
    five.answer = lambda name, order: b"\xc1" if (name, order.phase) == ("b", 0) else honest(name, order)
    total, _ = five.play(1)
    assert total.clients == (0, 2, 3, 4)


def test_what_two_colluding_members_and_the_server_see_has_no_trace_of_an_input(tmp_path: Path) -> None:
    """All but their own shares, over many runs with the same value: uniform (a χ² of 16 cells with 15 degrees of
    freedom exceeds 50 with probability 10⁻⁵)."""
    cells = np.zeros(16)
    federation = Federation(tmp_path, 5, numbers=64)
    federation.play(0)
    for round in range(1, 9):
        federation.play(round)
        sums = [field.from_bytes(a, 64) for n, a in federation.answers[1].items() if n in "ab" and isinstance(a, bytes)]
        cells += np.bincount((np.concatenate(sums) >> np.uint64(57)).astype(int), minlength=16)
    expected = cells.sum() / 16
    assert ((cells - expected) ** 2 / expected).sum() < 50
