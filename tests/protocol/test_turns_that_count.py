"""A client keeps what it noted in a turn if the server says that this turn counted, and in no other case."""

from __future__ import annotations

import msgspec
import pytest

from fedzero.oracles.counted import Oracle
from fedzero.protocol.client import NOTHING_KEPT, Client
from fedzero.protocol.messages import encode_work
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.testing.trial import recipe_of

ALGORITHM = {"kind": "decomfl", "rate": 0.01, "directions": 4}
FEEDBACK = {"kind": "top-k", "fraction": 0.5, "feedback": True}


@pytest.fixture
def client() -> Client:
    table = msgspec.to_builtins(recipe_of(recipes.method(ALGORITHM)))
    setup = prepare(recipes.decode(table | {"filters": [FEEDBACK]}), Environment())
    oracle = Oracle(setup.problem.objective, setup.problem.shards, setup.keys, 0)
    return Client(0, setup.replica(), oracle, setup.chain)


def turn(client: Client, round: int, counted: int | None) -> None:
    """A whole turn; counted: the client's last one that did, as the server says."""
    client.begin(round, encode_work(round, 0, [], counted), own_replica=True)
    asked = client.step(None)
    while not isinstance(asked, bytes):
        asked = client.step(client.oracle.answer(round, asked))


def test_a_turn_that_did_not_count_leaves_no_note(client: Client) -> None:
    turn(client, 0, None)
    turn(client, 1, None)
    assert client.kept == NOTHING_KEPT


def test_a_turn_that_counted_is_kept_until_another_does(client: Client) -> None:
    turn(client, 0, None)
    turn(client, 1, 0)
    noted = client.kept
    assert noted.residuals[0].any()
    turn(client, 2, 0)  # what was noted in round 1 is of no use
    assert client.kept == noted
