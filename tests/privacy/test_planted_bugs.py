"""Six mistakes that make privacy worthless: each is planted, and found by the test that was made for it. Without it the
same test finds nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import detectors
import numpy as np
import pytest
from detectors import Wrong
from slopes import Slopes

from entropy import given_entropy
from fedzero import plugins
from fedzero.directions import Keys
from fedzero.gatherings.private import central, units
from fedzero.oracles import rows as by_row
from fedzero.privacy.integers import Grid
from fedzero.recipe.plan import Plan
from fedzero.recipe.privacy import Privacy
from fedzero.recipe.sampling import PrivateBatches, PrivateCohorts


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered["tasks"], "test-slopes", plugins.Plugin(Slopes, "", ""))


def planted(kind: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: patch.object(kind, name, value)


# ---- noise halved

REPLAYS = 100_000
HALVED = {
    "deviation": planted(Grid, "noise", lambda grid, sigma, parties=1, real=Grid.noise: real(grid, sigma, parties) / 2),
    "numbers": planted(central, "rounded_gaussian", lambda *given, real=central.rounded_gaussian: real(*given) // 2),
}


def test_the_noise_is_what_the_ledger_claims(tmp_path: Path) -> None:
    detectors.audit(tmp_path, REPLAYS)


@pytest.mark.parametrize("plant", HALVED.values(), ids=HALVED)
def test_noise_halved_is_found(tmp_path: Path, plant: Callable[[], Any]) -> None:
    with plant(), pytest.raises(Wrong, match="ε is at least"):
        detectors.audit(tmp_path, REPLAYS)


# ---- clip forgotten

CLIP = planted(units, "clipped", lambda vectors, clip: np.array(vectors, np.float64, ndmin=2))


@contextmanager
def unchecked() -> Iterator[None]:
    """The clip, and everything behind it that looks at a norm again."""
    with ExitStack() as stack:
        for plant in (
            CLIP,
            planted(
                units, "quantised", lambda rows, grid, draws: np.rint(np.ldexp(rows, grid.exponent)).astype(np.int64)
            ),
            planted(units, "floats", lambda total, grid: np.ldexp(total.astype(np.float32), -grid.exponent)),
            planted(units, "EXACT", 1 << 40),
            planted(units.PrivateUnits, "admits", lambda link, given: given),
            planted(
                central.PlainSum,
                "_admitted",
                lambda link, answer, grid, clients: np.frombuffer(answer, "<i4").astype(np.int64),
            ),
        ):
            stack.enter_context(plant())
        yield


@pytest.mark.parametrize("unit", ["client", "example"])
def test_a_unit_a_hundred_times_too_long_counts_as_one_of_the_bound(tmp_path: Path, unit: str) -> None:
    detectors.canary(tmp_path, unit)


@pytest.mark.parametrize("unit", ["client", "example"])
def test_a_clip_forgotten_is_found(tmp_path: Path, unit: str) -> None:
    """Without the clip alone, the checks of norms behind it make the unit zero; without these too, the sum moves."""
    with CLIP(), pytest.raises(Wrong, match="counts 0"):
        detectors.canary(tmp_path / "clip", unit)
    with unchecked(), pytest.raises(Wrong, match="a unit moved the sum by"):
        detectors.canary(tmp_path / "all", unit)


# ---- keys as noise


def test_nothing_private_follows_from_the_recipe(tmp_path: Path) -> None:
    detectors.two_runs(tmp_path)
    detectors.observer(tmp_path)


@pytest.mark.parametrize(
    ("what", "said"), [("noise", "noise"), ("rounding", "rounding"), ("coins", "cohort"), ("coins of rows", "rows")]
)
def test_keys_as_noise_are_found(tmp_path: Path, what: str, said: str) -> None:
    public, batches = hashlib.sha256(b"the recipe").digest(), PrivateBatches.__init__
    with given_entropy(**{what.split()[0]: public}), ExitStack() as stack:
        if said == "cohort":  # coins of rows as they should be
            stack.enter_context(patch.object(PrivateBatches, "__init__", batches))
        with pytest.raises(Wrong, match=f"the same .*{said}"):
            detectors.two_runs(tmp_path)


def test_an_observer_subtracts_noise_of_keys(tmp_path: Path) -> None:
    with given_entropy(noise=b"public"), pytest.raises(Wrong, match="after a public replay"):
        detectors.observer(tmp_path)


# ---- cohort not Poisson, or predictable


def test_clients_and_rows_are_drawn_by_coins_of_their_own(tmp_path: Path) -> None:
    detectors.cohorts(tmp_path)
    detectors.rows(tmp_path)


def _in_pairs(privacy: Any, generator: Any, federation: Any) -> Any:
    """Half of them, and neighbours together."""
    pairs = np.flatnonzero(generator.random(federation.clients // 2) < privacy.q(federation))
    return tuple(sorted([*(2 * pairs).tolist(), *(2 * pairs + 1).tolist()]))


def _of_a_size(privacy: Any, generator: Any, federation: Any) -> Any:
    return tuple(sorted(generator.choice(federation.clients, federation.cohort, replace=False).tolist()))


def _refilled(privacy: Any, generator: Any, federation: Any) -> Any:
    return tuple(np.flatnonzero(generator.random(federation.clients) < privacy.q(federation) + 0.1).tolist())


def _keyed(self: Any, round: int) -> Any:
    plan: Plan = self._plan
    return plan.drawn(plan.keys.generator("cohort", round))


COHORTS = {
    "a fixed size": (planted(Privacy, "drawn", _of_a_size), "sizes deviate"),
    "pairs": (planted(Privacy, "drawn", _in_pairs), "sizes deviate|two units"),
    "more": (planted(Privacy, "drawn", _refilled), "units"),
    "public": (planted(PrivateCohorts, "__call__", _keyed), "a second run"),
}


@pytest.mark.parametrize(("plant", "said"), COHORTS.values(), ids=COHORTS)
def test_cohorts_of_another_distribution_are_found(tmp_path: Path, plant: Callable[[], Any], said: str) -> None:
    with plant(), pytest.raises(Wrong, match=said):
        detectors.cohorts(tmp_path)


def _rows_of_a_size(root: bytes, units: int, rate: float) -> Any:
    generator = np.random.default_rng(int.from_bytes(root, "little"))
    return np.sort(generator.choice(units, round(units * rate), replace=False))


def _keyed_rows(self: Any, round: int, client: int) -> Keys:
    root = hashlib.sha256(repr((round, client)).encode()).digest()
    return Keys(root, root)


ROWS = {
    "a fixed size": (planted(by_row, "drawn_units", _rows_of_a_size), "units|deviate"),
    "public": (planted(PrivateBatches, "__call__", _keyed_rows), "a second run"),
}


@pytest.mark.parametrize(("plant", "said"), ROWS.values(), ids=ROWS)
def test_rows_of_another_distribution_are_found(tmp_path: Path, plant: Callable[[], Any], said: str) -> None:
    with plant(), pytest.raises(Wrong, match=said):
        detectors.rows(tmp_path)
