"""Budgets so small, or so large, that what is computed of them went beyond what a ledger or a recipe holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of

from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.records import spent_of
from fedzero.ledger.store import ledger_in
from fedzero.methods import DeComFL
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.privacy import LEAST_SIGMA, Privacy
from fedzero.runs import session, statement
from fedzero.runs.growing import Growth
from fedzero.runs.progress import Silent


def recipe(rounds: int, clients: int, cohort: int, **privacy: Any) -> recipes.Recipe:
    table = msgspec.to_builtins(recipe_of(DeComFL(rate=1e-3, directions=2), clients=clients, cohort=cohort))
    return recipes.decode(table | {"rounds": rounds, "evaluate_every": rounds, "privacy": privacy})


def test_the_last_round_of_a_small_budget_does_not_take_back_what_was_spent(tmp_path: Path) -> None:
    """ε of steps on the way is of a coarser grid. Here it was larger than that of the last step, which no reader of a
    ledger believes."""
    session.start(recipe(20, 50, 49, sigma=600.0), tmp_path, Environment(), Silent())
    session.resume(tmp_path, Environment(), Silent(), growth=Growth(rounds=24))
    with ledger_in(tmp_path) as ledger:
        spent = [(spent_of(record) or (0.0, None))[0] for record in replay.read(ledger).rounds]
    assert spent == sorted(spent) and len(spent) == 24
    found = statement.statement_in(tmp_path)
    assert statement.checked(tmp_path, found) == found


def test_figures_of_steps_never_fall() -> None:
    """Where the coarse grid alone would put the figure of a step above that of the last."""
    federation = recipe(50, 100, 99, sigma=1000.0).federation
    privacy = Privacy(sigma=1000.0)
    readers = [privacy.spent(federation, 2, step, 50)[0] for step in (1, 48, 49, 50)]
    assert readers == sorted(readers) and readers[1] > 0


def test_a_budget_of_which_nothing_is_spent_is_confirmed(tmp_path: Path) -> None:
    session.start(recipe(2, 8, 4, sigma=9999.0), tmp_path, Environment(), Silent())
    found = statement.statement_in(tmp_path)
    assert found.figures[0].epsilon == 0.0
    assert statement.checked(tmp_path, found) == found


@pytest.mark.parametrize("cohort", [1, 10])
def test_a_large_budget_of_few_rounds_has_the_least_noise_of_a_recipe(cohort: int) -> None:
    """Less noise than a recipe may have was found, and the recipe refused; or it was looked for without end."""
    solved = recipes.with_noise(recipe(1, 100_000, cohort, epsilon=32.0))
    assert solved.privacy and solved.privacy.sigma == LEAST_SIGMA
    assert recipes.from_canonical(recipes.canonical(solved)) == recipes.as_recorded(solved)


@pytest.mark.parametrize("options", [{}, {"noise": "distributed", "sum": "secure"}])
def test_a_budget_that_needs_more_noise_than_there_is_names_itself(options: dict[str, str]) -> None:
    with pytest.raises(FedzeroError, match=r"privacy\.epsilon = 0\.01 over 1,000,000 rounds needs privacy\.sigma = "):
        recipes.with_noise(recipe(1_000_000, 10, 10, epsilon=0.01, **options))
