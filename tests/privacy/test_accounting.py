"""Figures against dp-accounting: its kept values everywhere, itself where it is installed."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special, stats

from fedzero.errors import FedzeroError, Invalid
from fedzero.privacy import accounting, gaussian, renyi
from fedzero.privacy.integers import choose_grid
from fedzero.privacy.journal import Filter, Spent, basic

sys.path.insert(0, str(Path(__file__).parent))
import table as by_hand

TABLE = json.loads(by_hand.FILE.read_text())
Q = 512 / 65_800


def found(sigmas: list[list[float]], steps: int, delta: float, q: float = Q) -> dict[float, float]:
    return {row[0]: row[4] for row in sigmas if row[1:4] == [q, steps, delta]}


def test_the_kept_values_are_those_of_the_settings() -> None:
    assert [tuple(row[:4]) for row in TABLE["epsilons"]] == by_hand.settings()
    assert {name: tuple(row[:4]) for name, row in TABLE["named"].items()} == by_hand.NAMED
    assert [tuple(row[:4]) for row in TABLE["sigmas"]] == list(by_hand.WANTED)


def test_the_figures_that_the_documents_name() -> None:
    """σ of SST-2's rows, of clients, and what a visible cohort, another q and abandoned rounds do to them."""
    assert {e: round(s, 3) for e, s in found(TABLE["sigmas"], 300, 1e-5).items()} == {
        0.5: 1.263,
        1.0: 0.931,
        2.0: 0.753,
        8.0: 0.488,
    }
    assert round(found(TABLE["sigmas"], 200, 1e-5)[2.0], 3) == 0.731
    assert round(found(TABLE["sigmas"], 200, 1e-6)[2.0], 3) == 0.792
    assert math.ceil(found(TABLE["sigmas"], 300, 1e-5, 0.05)[2.0] * 1e3) / 1e3 == 1.947
    named = {name: row[4] for name, row in TABLE["named"].items()}
    assert round(named["clients, as calibrated"], 2) == 2.00
    assert round(named["50 of the 500 who are there"], 1) == 4.3
    assert round(named["30 of 300 rounds abandoned and made again"], 2) == 2.10
    assert round(named["a visible cohort, 15 turns"], 1) == 9.9
    assert stats.binom.ppf(0.999, 300, 0.05) == 28
    assert round(named["a visible cohort, 28 turns"], 1) == 14.7


def test_the_closed_form_is_what_dp_accounting_finds_without_subsampling() -> None:
    """It has a closed form, too; ours is rounded up."""
    plain = [row for row in TABLE["epsilons"] if row[1] == 1] + [TABLE["named"]["a visible cohort, 28 turns"]]
    assert len(plain) == 26  # of them one by name
    for sigma, _, steps, delta, epsilon in plain:
        assert gaussian.epsilon_of(sigma, steps, delta) == pytest.approx(epsilon, rel=4e-9, abs=2e-8)
    for sigma, _, steps, delta, epsilon in TABLE["replaced"]:
        assert gaussian.epsilon_of(sigma, steps, delta, replaced=True) == pytest.approx(epsilon, rel=4e-9, abs=2e-8)


def test_renyi_bounds_are_above_the_sharp_values_and_for_usual_ones_near() -> None:
    near = 0
    for sigma, q, steps, delta, epsilon in TABLE["epsilons"][::6]:
        bound = renyi.epsilon_of(renyi.subsampled(renyi.gaussian(sigma), q, steps), delta, renyi.WHOLE)
        assert epsilon <= bound * (1 + 1e-6)
        near += 1 < epsilon < 10 and bound < 1.2 * epsilon
    assert near >= 4


def test_delta_of_the_closed_form_is_the_integral() -> None:
    """δ = ∫ max(0, p − exp(ε) p′), and ε, σ and δ are inverse to each other over all sizes."""
    for mu, epsilon in ((0.3, 0.5), (1.0, 2.0), (3.0, 4.0), (3.0, 12.0)):
        loss = epsilon / mu + mu / 2
        value, _ = integrate.quad(
            lambda y, mu=mu, epsilon=epsilon: stats.norm.pdf(y - mu) - math.exp(epsilon) * stats.norm.pdf(y),
            loss,
            loss + 12,
            epsabs=1e-14,
        )
        assert gaussian.delta_of(epsilon, mu) == pytest.approx(value, rel=1e-6, abs=1e-13)
    for sigma in (1e-2, 0.5, 3.0, 400.0):
        for delta in (1e-12, 1e-5, 1e-2):
            epsilon = gaussian.epsilon_of(sigma, 7, delta)
            if epsilon:
                assert gaussian.delta_of(epsilon, math.sqrt(7) / sigma) == pytest.approx(delta, rel=1e-3)
                assert gaussian.sigma_of(epsilon, 7, delta) == pytest.approx(sigma, rel=1e-6)
    ratio = [gaussian.mills(x) / math.exp(stats.norm.logsf(x) - stats.norm.logpdf(x)) for x in np.linspace(0, 40, 81)]
    assert max(map(abs, np.array(ratio) - 1)) < 1e-12


def test_small_delta_is_demanded() -> None:
    assert gaussian.small_enough(1e-6, 65_800) == 1e-6 and gaussian.small_enough(1e-5, 10_000) == 1e-5
    for delta in (1e-5, 0.0, 1.0, math.nan):
        with pytest.raises(Invalid, match="delta"):
            gaussian.small_enough(delta, 65_800)


def test_an_adaptive_clip_shares_the_noise() -> None:
    z = gaussian.joint_sigma(1.947, 5.0)
    assert z > 1.947 and z**-2 + (2 * 5.0) ** -2 == pytest.approx(1.947**-2)
    with pytest.raises(Invalid, match="leaves nothing"):
        gaussian.joint_sigma(1.947, 0.97)


def logs_of_sum(variance: float, parties: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """The logarithms of a sum of discrete Gaussians, and of the same one moved, by convolution."""
    at = np.arange(-60, 61)
    one = np.exp(-(at**2) / (2 * variance))
    total = one / one.sum()
    for _ in range(parties - 1):
        total = np.convolve(total, one / one.sum())
    logs = np.log(total[total > 1e-250])
    return logs[: len(logs) - shift], logs[shift:]


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return float(special.logsumexp(order * p + (1 - order) * q) / (order - 1))


@pytest.mark.parametrize(("variance", "parties"), [(0.3, 3), (0.5, 2), (0.5, 8), (1.0, 4), (4.0, 5)])
def test_the_bound_of_distributed_noise_holds_for_the_exact_distribution(variance: float, parties: int) -> None:
    for shift in (1, 2, 3):
        curve = renyi.sum_of_discrete_gaussians(variance, parties, 1, shift**2)
        for order in (1.5, 2, 4, 8):
            exact = divergence(*logs_of_sum(variance, parties, shift)[::-1], order)
            assert exact <= curve(order) + 1e-9
            if variance >= 4:
                assert curve(order) < exact * 1.0001 + 1e-9


def test_distributed_noise_is_as_good_as_central_noise_on_a_fine_grid() -> None:
    """σ²L shared by seven: τ vanishes, and what is left is the zCDP of one Gaussian; on a coarse grid it is not."""
    alone = renyi.epsilon_of(lambda order: 40 * order / (2 * 5.0**2), 1e-6)
    fine = renyi.sum_of_discrete_gaussians(5.0**2 * 2**20 / 7, 7, 32, 2**20, steps=40)
    assert renyi.epsilon_of(fine, 1e-6) == pytest.approx(alone, rel=1e-9)
    coarse = renyi.sum_of_discrete_gaussians(0.4, 7, 32, 7 * 0.4 / 5.0**2, steps=40)
    assert renyi.epsilon_of(coarse, 1e-6) > 2 * alone
    assert alone < 1.25 * gaussian.epsilon_of(5.0, 40, 1e-6)
    for variance, parties in ((0.2, 7), (1.0, 0)):
        with pytest.raises(Invalid, match="honest party"):
            renyi.sum_of_discrete_gaussians(variance, parties, 32, 1.0)


@pytest.mark.parametrize(("variance", "parties", "q"), [(0.5, 2, 0.3), (0.5, 8, 0.05), (2.0, 3, 0.01), (4.0, 4, 0.6)])
def test_subsampling_is_bounded_both_ways_for_the_exact_distribution(variance: float, parties: int, q: float) -> None:
    for shift in (1, 3):
        curve = renyi.subsampled(renyi.sum_of_discrete_gaussians(variance, parties, 1, shift**2), q, 1)
        away, there = logs_of_sum(variance, parties, shift)
        mixed = np.logaddexp(math.log1p(-q) + away, math.log(q) + there)
        for order in (2, 3, 8):
            removed, added = divergence(mixed, away, order), divergence(away, mixed, order)
            assert added <= removed + 1e-12 and removed <= curve(order) + 1e-9
            if variance >= 4:
                assert curve(order) < removed * 1.0001 + 1e-9
    with pytest.raises(Invalid, match="whole"):
        curve(2.5)


def test_noise_of_several_parties_for_a_wanted_epsilon() -> None:
    """On a fine grid as much as a Rényi bound asks of one party: 2.196 for σ = 1.947, whose sharp figure is 2.0."""
    grid = choose_grid(1.0, 32, units=1_000)
    plain = gaussian.sigma_of(8.0, 15, 1e-6)
    assert plain < accounting.distributed_sigma(grid, 8.0, 8, 1.0, 15, 1e-6) < 1.15 * plain
    sigma = accounting.distributed_sigma(grid, 2.2, 8, 0.05, 300, 1e-5)
    assert sigma == pytest.approx(1.947, rel=3e-3)
    variance = float(grid.noise(sigma, 8)) ** 2
    assert accounting.distributed_epsilon(grid, variance, 8, 0.05, 300, 1e-5) <= 2.2
    assert accounting.distributed_epsilon(grid, variance, 6, 0.05, 300, 1e-5) > 2.2  # two dropped out or collude
    assert accounting.distributed_epsilon(grid, variance, 9, 0.05, 300, 1e-5) < 2.2


def test_a_journal_admits_what_fits_and_nothing_more() -> None:
    first, second = renyi.subsampled(renyi.gaussian(1.947), 0.05, 300), renyi.subsampled(renyi.gaussian(4.0), 1.0, 10)
    alone = [renyi.epsilon_of(curve, 1e-5, renyi.WHOLE) for curve in (first, second)]
    order = renyi.best_order(lambda order: first(order) + second(order), 1e-5, renyi.WHOLE)
    both = renyi.epsilon_of(lambda order: first(order) + second(order), 1e-5, renyi.WHOLE)
    assert both < 0.85 * sum(alone) == 0.85 * basic([Spent(alone[0], 1e-5), Spent(alone[1], 1e-5)]).epsilon
    limit = Filter(both, 1e-5, order)
    assert limit.admits([first], second) and not limit.admits(
        [first, second], renyi.subsampled(renyi.gaussian(50.0), 0.05, 1)
    )
    assert limit.epsilon_of([first, second]) == pytest.approx(both) and limit.epsilon_of([]) == 0
    assert basic([Spent(1.0, 1e-6)] * 3) == Spent(3.0, pytest.approx(3e-6))
    with pytest.raises(Invalid, match="no budget"):
        Filter(0.5, 1e-5, 3)


def test_without_the_extra_the_plain_figure_is_there_and_the_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert accounting.epsilon_of(1.947, 1, 15, 1e-5) == gaussian.epsilon_of(1.947, 15, 1e-5)
    assert accounting.sigma_of(2.0, 1, 15, 1e-5) == pytest.approx(gaussian.sigma_of(2.0, 15, 1e-5), abs=1.1e-4)
    with pytest.raises(FedzeroError, match=r"pip install 'fedzero\[privacy\]'"):
        accounting.epsilon_of(1.3, 0.01, 7, 1e-5)
    with pytest.raises(FedzeroError, match=r"fedzero\[privacy\]"):
        accounting.accountant()


@pytest.mark.parametrize("some", [slice(None, 6), pytest.param(slice(6, None), marks=pytest.mark.slow)])
def test_the_accountant_is_dp_accounting_called_by_hand(some: slice) -> None:
    pytest.importorskip("dp_accounting")
    for row in TABLE["epsilons"][some]:
        *setting, epsilon = row
        assert accounting.epsilon_of(*setting) == pytest.approx(epsilon, rel=1e-8, abs=2e-8)
        if setting[1] < 1:
            assert accounting.epsilon_of(*setting) == by_hand.epsilon_of(*setting)


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.slow) if i else row for i, row in enumerate(TABLE["sigmas"][:4])]
)
def test_the_noise_for_a_wanted_epsilon(row: list[float]) -> None:
    pytest.importorskip("dp_accounting")
    assert accounting.sigma_of(*row[:4]) == row[4]
    assert accounting.epsilon_of(row[4], *row[1:4]) <= row[0] < accounting.epsilon_of(row[4] - 1e-4, *row[1:4])
    assert "dp-accounting" in accounting.accountant()


@pytest.mark.parametrize("setting", [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.5)])
def test_what_is_no_setting_is_refused(setting: tuple[float, float]) -> None:
    with pytest.raises(Invalid):
        renyi.subsampled(renyi.gaussian(setting[0]), setting[1], 10)
