"""A server that wants a site's budget gone, and files beside the journal that somebody wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_budget_by_data_set import CHARGE, opened, spend

from fedzero.errors import Sendable
from fedzero.privacy import renyi
from fedzero.privacy.journal import Filter
from fedzero.runs.spending.budget import FILE, HEAD, Tampered
from fedzero.runs.spending.charges import Policy, check_room

POLICY = Policy(epsilon=4.0, delta=1e-6)
CHEAP = {
    "much noise": msgspec.structs.replace(CHARGE, sigma=10_000.0),
    "hardly anybody": msgspec.structs.replace(CHARGE, q=(1e-9, 1.0)),
    "everybody, much noise": msgspec.structs.replace(CHARGE, sigma=10_000.0, q=(1.0, 1.0)),
}


def rounds_left(spent: list, order: int) -> int:
    low, high = 0, 10**6
    while high - low > 1:
        middle = (low + high) // 2
        try:
            check_room(spent, CHARGE, middle, POLICY, order)
            low = middle
        except Sendable:
            high = middle
    return low


@pytest.mark.parametrize("kind", CHEAP)
def test_a_first_round_that_costs_nothing_takes_nothing_away(kind: str) -> None:
    """The first recipe fixes an order. With one that is best for very little, hardly anything else fitted for ever: of
    3,000 rounds 2 were left."""
    honest = rounds_left([], POLICY.order(CHARGE))
    left = rounds_left([(CHEAP[kind], 1)], POLICY.order(CHEAP[kind]))
    assert honest > 2500 and left > 0.7 * honest


def test_orders_share_delta() -> None:
    """Each order with its part is a bound of its own, and the smallest figure is shown."""
    several, first = Filter(4.0, 1e-6, 7, (3, 7, 20)), [renyi.subsampled(renyi.gaussian(1.0), 0.01, 900)]
    parts = {7: 5e-7, 3: 2.5e-7, 20: 2.5e-7}
    each = [first[0](order) + renyi.converted(order, delta) for order, delta in parts.items()]
    assert sum(parts.values()) == pytest.approx(1e-6)
    assert several.epsilon_of(first) == pytest.approx(min(each))
    assert several.admits([], first[0]) == (min(each) <= 4.0)
    assert Filter(4.0, 1e-6, 7, (7,)).epsilon_of(first) == Filter(4.0, 1e-6, 7).epsilon_of(first)


HEADS = (
    b'{"number":-2}',
    b'{"number":-9223372036854775808,"chain":""}',
    b'{"number":99999999999999999999999999}',
    b'{"number":1e400}',
    b'{"number":-1,"number":7}',
    b'{"number":3,"chain":"\xff"}',
    b'{"number":3,"chain":"\\ud800"}',
    b'{"number":true}',
    b"[" * 100_000,
    b"",
)


@pytest.mark.parametrize("head", range(len(HEADS)))
@pytest.mark.parametrize("rounds", [0, 4])
def test_whatever_is_in_the_file_beside_the_journal_it_is_one_sentence(tmp_path: Path, head: int, rounds: int) -> None:
    journal = opened(tmp_path)
    spend(journal, rounds)
    journal.close()
    (tmp_path / HEAD).write_bytes(HEADS[head])
    with pytest.raises(Tampered, match=FILE):
        opened(tmp_path)


def test_a_recipe_of_another_unit_is_refused_and_so_is_every_one_after_a_first(tmp_path: Path) -> None:
    """Not prevented where the site's settings name no unit, and said in docs/privacy.md: the first recipe decides."""
    client = msgspec.structs.replace(CHARGE, unit="client")
    first = opened(tmp_path, policy=Policy(epsilon=8.0))
    first.reserve(client, 0, b"q")
    with pytest.raises(Sendable, match="both do not add up"):
        first.reserve(CHARGE, 1, b"q")
