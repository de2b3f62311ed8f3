"""E9 against a plain loop, a closed form, and the rows measured independently."""

from __future__ import annotations

import numpy as np
import pytest

from fedzero.directions import Keys
from fedzero_papers.experiments import e9
from fedzero_papers.experiments.contract import Options
from fedzero_papers.experiments.e9 import E9, NOISES, PAPER, SIMULATIONS, Simulation, shares

# Rows of shared/ALGORITHMS.md, measured by somebody else's program; ten runs each.
MEASURED = {
    "as printed": ((0.997, 0.997, 0.997, 0.997, 0.991, 0.596, 0.483, 0.482), 5e-4),
    "reproducing": ((0.9993, 0.9423, 0.8271, 0.7101, 0.5931, 0.4996, 0.4925, 0.4926), 5e-5),
}


def test_against_a_loop_as_one_would_write_it():
    simulation, noises, runs = Simulation("small", 2500, (50.0, 3.0)), (0.5, 40.0), 2
    keys = Keys.of_seed(7)
    draws = np.concatenate(
        [
            keys.generator("e9", first).standard_normal((n, 2, 2, 2))
            for first, n in ((0, 1000), (1000, 1000), (2000, 500))
        ]
    )
    expected = np.zeros((2, 2))
    for i, noise in enumerate(noises):
        for run in range(runs):
            x1, x2, count = 1e3, 1e3, 0
            for t in range(2500):
                g1 = 50.0 * x1 + noise * draws[t, i, run, 0]
                g2 = 3.0 * x2 + noise * draws[t, i, run, 1]
                count += abs(g2) > abs(g1)
                x1, x2 = x1 - 1e-4 * g1, x2 - 1e-4 * g2
            expected[i, run] = count / 2500
    assert np.array_equal(shares(simulation, noises, runs, seed=7), expected)
    assert 0 < expected.min() < expected.max() < 1


def test_without_noise_it_is_arithmetic():
    """|g₂| > |g₁| from the first t with a₂ (1 − 10⁻⁴ a₂)ᵗ > a₁ (1 − 10⁻⁴ a₁)ᵗ on."""
    a1, a2 = 2e3, 2.0
    first = int(np.ceil(np.log(a1 / a2) / (np.log1p(-1e-4 * a2) - np.log1p(-1e-4 * a1))))
    assert shares(Simulation("still", 1000, (a1, a2)), (0.0,), 1)[0, 0] == (1000 - first) / 1000


@pytest.fixture(scope="module")
def found():
    return {simulation.name: shares(simulation, NOISES, runs=4, seed=11) for simulation in SIMULATIONS}


@pytest.mark.parametrize("name", MEASURED)
def test_the_measured_rows_come_out(found, name):
    """Both are means of few runs: the bound is four standard errors of their difference and the last printed digit."""
    (row, rounding), gamma = MEASURED[name], found[name]
    spread = np.maximum(gamma.std(axis=1, ddof=1), 2e-5)
    bound = 4 * spread * np.sqrt(1 / 4 + 1 / 10) + rounding
    assert (np.abs(gamma.mean(axis=1) - np.array(row)) <= bound).all()
    assert bound.max() < 0.02, "a bound that could fail"


def test_only_the_reproducing_setting_gives_the_printed_row(found):
    gaps = {name: np.abs(gamma.mean(axis=1) - np.array(PAPER)).max() for name, gamma in found.items()}
    assert gaps["reproducing"] < 0.006 < 0.3 < gaps["as printed"]


def test_equal_runs_have_no_error():
    assert e9.errors(np.array([[0.1, 0.1, 0.1]])).tolist() == [0.0]
    assert np.isnan(e9.errors(np.array([[0.1]]))).all()


def test_table_and_figure(monkeypatch):
    monkeypatch.setattr(e9, "SIMULATIONS", tuple(Simulation(s.name, 50, s.slopes) for s in SIMULATIONS))
    plan = E9.plan(Options(quick=True, repetitions=2))
    with pytest.raises(StopIteration) as done:
        next(plan)
    outcome = done.value.value
    (table,), (figure,) = outcome.tables, outcome.figures
    assert [row[:2] for row in table.rows] == list(zip(NOISES, PAPER, strict=True))
    expected = shares(e9.SIMULATIONS[1], NOISES, 2).mean(axis=1)
    column = table.columns.index("reproducing")
    assert [row[column] for row in table.rows] == expected.tolist()
    assert [line.label.split(":")[0] for line in figure.panels[0].lines] == [
        "paper, table I",
        "as printed",
        "reproducing",
    ]
