"""What a server makes hosts compute by naming a round: keys move forward once for each round in between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from parties import Federation

from fedzero.errors import Refused
from fedzero.gatherings import field, shamir
from fedzero.gatherings.committee import SecureSum
from fedzero.gatherings.messages import Opening, answer_of, encode, set_of
from fedzero.protocol.messages import Phase


def test_a_round_far_ahead_is_refused_at_once_and_the_next_one_is_answered(tmp_path: Path) -> None:
    """A hundred million rounds ahead would be hours, and no later round would ever be answered."""
    federation = Federation(tmp_path, 5)
    federation.play(0)
    for name, party in federation.parties.items():
        found = party.ask(Phase(99_999_999, 0, 0, encode(Opening(name, (party.client,)))))
        assert isinstance(found, Refused) and "too far behind that of round 0" in str(found)
    total, _ = federation.play(1)
    assert total.clients == (0, 1, 2, 3, 4)


def test_a_host_that_was_away_for_thousands_of_rounds_comes_back(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4)
    federation.play(0)
    total, _ = federation.play(2000)
    assert total.clients == (0, 1, 2, 3)


@pytest.mark.parametrize("least", [2, 5])
def test_of_many_hosts_as_many_fill_a_set_as_collude(tmp_path: Path, least: int) -> None:
    """Said in docs/secure-sum.md: k counts hosts, also those outside the committee. Where seven of 20 collude, a set of
    one other and them is large enough, and the sum less what they gave is what the one gave; unless `least` counts
    them."""
    federation = Federation(tmp_path, 20, SecureSum(scale=8.0, least=least))
    federation.play(0)
    chosen = {0, *range(13, 20)} - {19 if least == 2 else 20}

    def small(phase: int, bodies: dict[str, bytes]) -> dict[str, bytes]:
        return {name: smaller(body) for name, body in bodies.items()} if phase else bodies

    def smaller(body: bytes) -> bytes:
        found = set_of(body)
        return encode(replace(found, inputs=tuple(each for each in found.inputs if each.header.index in chosen)))

    why = ""
    try:
        federation.play(1, change=small)
    except Refused as refused:
        why = str(refused)
    answers = federation.answers[1]
    if least == 5:
        said = {str(answer) for answer in answers.values()}
        assert why and said == {"a set of 8 hosts with clients is too small: 5 besides 5 that may collude"}
        return
    seats = {answer_of(a).seat: name for name, a in federation.answers[0].items() if isinstance(a, bytes)}
    sums = {seat: field.from_bytes(answers[name], 3) for seat, name in seats.items() if seat and name in answers}
    found = field.integers_of(shamir.opened(sums, shamir.threshold(16))) / 8.0
    names = list(federation.parties)
    theirs = federation.right(1, [names[i] for i in sorted(chosen - {0})])
    np.testing.assert_array_equal(found - theirs, federation.right(1, ["a"]))
