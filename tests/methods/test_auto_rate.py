"""rate = "auto": what it finds, and that it finds it from the scalars alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedzero.errors import FedzeroError
from fedzero.links.median import Median
from fedzero.methods import DeComFL
from fedzero.methods.contract import Federation
from fedzero.methods.rules.auto_rate import CLIP, SHARE, WARM_UP, AutoRateState, measures
from fedzero.model.params import Params
from fedzero.protocol.messages import decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks.quadratic import Quadratic
from fedzero.testing.engines import Changing
from fedzero.testing.methods import altered
from fedzero.testing.trial import recipe_of as trial_recipe
from fedzero.testing.trial import trial


def recipe_of(rate: Any, **algorithm: Any) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "paced",
            "rounds": 120,
            "algorithm": {"kind": "decomfl", "rate": rate} | algorithm,
            "task": {"kind": "quadratic", "dimension": 50, "condition": 10.0},
            "federation": {"clients": 4, "cohort": 4},
            "evaluate_every": 1000,
        }
    )


def gap(folder: Path, rate: Any, **algorithm: Any) -> float:
    found = session.start(recipe_of(rate, **algorithm), folder, Environment(), Silent()).final_loss
    return math.inf if found is None else found


def scalars(*numbers: float) -> Any:
    return np.array([numbers], np.float32)


def test_as_good_as_the_best_constant_rate_from_any_radius(tmp_path: Path) -> None:
    """f is quadratic, so the radius changes nothing but where the search for the rate begins."""
    constant = {rate: gap(tmp_path / f"{rate}", rate) for rate in (2e-4, 2e-3, 1e-2, 2e-2, 2e-1)}
    best = min(constant.values())
    for radius in (1e-4, 1e-2):
        assert gap(tmp_path / f"auto-{radius}", "auto", radius=radius, difference="central") < 5 * best
    assert constant[2e-4] > 50 * best
    assert constant[2e-1] > 50 * best


def test_the_first_step_moves_a_coordinate_as_far_as_a_probe() -> None:
    g = scalars(3.0, -4.0, 0.0, 5.0)
    _, rate = AutoRateState().after(0, g, reach=1e-3)
    assert rate * math.sqrt(np.square(g).mean() / g.size) == pytest.approx(1e-3)


def test_a_step_too_short_grows_and_one_too_long_shrinks() -> None:
    before, _ = AutoRateState().after(0, scalars(1.0, 2.0), reach=1e-2)
    again, _ = before.after(1, scalars(1.0, 2.0), reach=1e-2)
    across, _ = before.after(1, scalars(2.0, -1.0), reach=1e-2)
    turned, _ = before.after(1, scalars(-1.0, -2.0), reach=1e-2)
    assert again.measured == 2 * before.measured
    assert across.measured == before.measured
    assert turned.measured == before.measured / 2


def test_without_the_round_before_nothing_is_measured() -> None:
    before, _ = AutoRateState().after(2, scalars(1.0, 2.0), reach=1e-2)
    later, _ = before.after(5, scalars(1.0, 2.0), reach=1e-2)
    more, _ = before.after(3, scalars(1.0, 2.0, 3.0), reach=1e-2)
    assert later.measured == more.measured == before.measured


def test_an_unusual_slope_does_not_make_an_unusual_step() -> None:
    pace, _ = AutoRateState().after(WARM_UP, scalars(1.0, -1.0), reach=1e-2)
    after, rate = pace.after(WARM_UP + 1, scalars(1e4, -1e4), reach=1e-2)
    assert rate * 1e4 == pytest.approx(SHARE * pace.measured * CLIP * math.sqrt(after.square))
    assert not measures(WARM_UP + 2)


def test_slopes_of_zero_leave_the_model_where_it_is() -> None:
    pace, rate = AutoRateState().after(0, scalars(0.0, 0.0), reach=1e-2)
    assert rate == 0
    assert pace.after(1, scalars(0.0, 1.0), reach=1e-2)[1] > 0


def test_directions_are_measured_again_in_the_rounds_that_say_so() -> None:
    from fedzero.directions import Keys

    method, keys = recipe_of("auto").algorithm, Keys.of_seed(1)
    state = method.init(Params.of_vector(torch.zeros(5)), 1)
    of = [method.directions_of(state, keys, round, 0, 3) for round in range(3)]  # type: ignore[attr-defined]
    assert of[1] == of[0]
    assert of[2] != of[1]


def test_optimizers_with_a_memory_are_refused() -> None:
    with pytest.raises(FedzeroError, match="plain steps"):
        recipe_of("auto", optimizer={"kind": "momentum"})


# ---- somebody who knows the others' numbers, and when a round measures


def against(way: str) -> Any:
    """Client 0 sends, in rounds that measure, the direction of the round before or its opposite; very long."""
    before: dict[str, Any] = {}

    def change(replies: Any, round: int, exchange: int) -> Any:
        rows = [np.frombuffer(decode_reply(data, 1 << 20).values, "<f4") for _, data in replies]
        others = np.mean(rows[1:], axis=0)
        wanted = before.get("others", others) * (-1 if way == "shorter" else 1) if measures(round) else others
        before["others"] = others
        (first, data), *rest = replies
        values = (wanted * (1e20 / np.linalg.norm(wanted))).astype("<f4").tobytes()
        return [(first, altered(decode_reply(data, 1 << 20), values=values)), *rest]

    return change


@pytest.mark.parametrize("way", ["shorter", "longer"])
def test_one_client_does_not_make_the_rate_vanish_or_explode_where_the_median_counts(tmp_path: Path, way) -> None:
    """With `federation.bound` alone the rate falls to nothing ("shorter"), see docs/methods.md."""
    found = {}
    for name, change in (("honest", None), ("attacked", against(way))):
        federation = Federation(clients=10, cohort=10, bound=1.5)
        method = DeComFL(rate="auto", directions=10)
        run = trial(tmp_path / name, trial_recipe(method, federation, Quadratic(dimension=50, noise=0.1), [Median()]))
        run.engine = Changing(run.engine, change)
        run.play(200)
        found[name] = run.replica.state.carry.of(AutoRateState).measured
    assert found["honest"] / 20 < found["attacked"] < 20 * found["honest"]
