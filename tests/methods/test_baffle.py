"""BAFFLE: DeComFL with one local step, whose model may travel instead of its scalars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from byhand import D, How, assert_near, federation, model, slope, start

from fedzero.methods import Baffle, DeComFL
from fedzero.model.updates import decode_update


@pytest.mark.parametrize("how", [How(central=True, P=4), How(P=4), How(kind="sphere", P=3)], ids=str)
@pytest.mark.parametrize("form", ["dense", "seeded"])
def test_eight_rounds_equal_the_paper_by_hand(tmp_path: Path, form, how) -> None:
    eta, rounds = 2e-2, 8
    run, world = federation(tmp_path, Baffle(rate=eta, form=form, **how.fields), replicas=True)
    run.play(rounds)
    x = start()
    for r in range(rounds):
        g = np.zeros(how.P)
        z = [world.z(r, 0, p, kind=how.kind) for p in range(how.P)]
        for i in world.cohort(r):
            f = world.f(r, i, 0)
            g += [slope(f, x, z[p], how.mu, how.central) / 3 for p in range(how.P)]
        x = x - eta / how.P * g @ z
    assert np.abs(x - start()).max() > 0.2, "the run must have moved"
    assert_near(model(run), x, how.bound)
    assert not any(r.refused for r in run.records)


@pytest.mark.parametrize("how", [How(central=True), How(), How(kind="rademacher"), How(kind="unit-sphere")], ids=str)
@pytest.mark.parametrize("form", ["dense", "seeded"])
def test_its_scalars_are_those_of_decomfl_with_one_step(tmp_path: Path, form, how) -> None:
    fields = how.fields | {"rate": 1e-2}
    baffle, _ = federation(tmp_path / "a", Baffle(form=form, **fields), replicas=True)
    del fields["samples"]
    decomfl, _ = federation(tmp_path / "b", DeComFL(local_steps=1, **fields), replicas=True)
    baffle.play(10)
    decomfl.play(10)
    assert [r.update for r in baffle.records] == [r.update for r in decomfl.records]
    assert baffle.replica.digest() == decomfl.replica.digest()
    assert [r.bytes_up for r in baffle.records] == [r.bytes_up for r in decomfl.records]
    if form == "seeded":
        assert baffle.records == decomfl.records, "what goes down is the same as well"
    for record in baffle.records if form == "dense" else ():
        assert 3 * 4 * D < record.bytes_down < 3 * (4 * D + 32), "the model goes down"
        assert len(decode_update(record.update).scalars) == 4 * how.P, "but scalars are kept"


def test_auto_sends_what_is_less(tmp_path: Path) -> None:
    """A client of ten with P = 4 misses ten rounds on average: 40 numbers or the model's 50; with P = 6 it is 60."""
    for P, small_form in ((4, "seeded"), (6, "dense")):
        auto, _ = federation(tmp_path / f"auto{P}", Baffle(rate=1e-2, directions=P, form="auto"))
        told, _ = federation(tmp_path / f"told{P}", Baffle(rate=1e-2, directions=P, form=small_form))
        auto.play(8)
        told.play(8)
        assert auto.records == told.records
