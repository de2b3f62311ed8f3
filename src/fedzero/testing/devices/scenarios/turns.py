"""What a turn computes, for each item of the profile: to the bit where each operation is exact, within a bound of
float32 elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from fedzero.testing.devices.scenarios.contract import Scenario
from fedzero.testing.devices.settings import Setting
from fedzero.testing.devices.trial import Bench, trial
from fedzero.testing.devices.wrong import Wrong

ROUNDS = 4
CHANGING = {"kind": "inverse-sqrt", "start": 0.06}
MOMENTUM = {"kind": "momentum", "beta": 0.9}


def _exact(clip: float = 0.0, **algorithm: object) -> Setting:
    return Setting(widths=(8, 3), exact=True, batch=1, clip=clip, algorithm=algorithm)


def playing(setting: Setting, rounds: int = ROUNDS) -> Callable[[Bench], None]:
    """Rounds 0 …, each with the update of the one before."""

    def play(bench: Bench) -> None:
        with trial(bench, setting) as t:
            t.start()
            t.join()
            t.give_model()
            t.play()
            for _ in range(1, rounds):
                t.run.advance()
                t.play(t.run.updates[-1:])

    return play


def gaussian(bench: Bench) -> list[str]:
    """A client need not have them. The first model is the same as with others."""
    with trial(bench, Setting(algorithm={"distribution": "gaussian", "local_steps": 2})) as t:
        t.start()
        t.join()
        try:
            t.give_model()
        except Wrong as wrong:
            if wrong.section == "the-plan":
                raise
            return ["it has no gaussian directions, which are optional, and does not take part"]
        t.play()
        for _ in range(ROUNDS):
            t.run.advance()
            t.play(t.run.updates[-1:])
    return []


BY_COLUMN = Setting((6, 5, 4, 3), mean=(0.5, -0.25, 0.1, 0.0, 1.0, 2.0), deviation=(1.5, 0.3, 1.0, 2.0, 0.7, 4.0))
EVERYTHING = {
    "distribution": "rank1",
    "difference": "central",
    "optimizer": MOMENTUM,
    "local_steps": 3,
    "rate": CHANGING,
}
IN_TRANSCRIPTS = {"rank-one": _exact(distribution="rank1"), "everything": _exact(3.0, **EVERYTHING)}
"""Directions of rank one with one right value. A device that evaluates y = Wx + μ a (b·x) rounds elsewhere, and has
other last bits, so the scenarios below judge such directions within a bound."""
SETTINGS = (
    ("forward", "Rademacher, SGD, forward differences, one step", _exact()),
    ("central", "central differences", _exact(difference="central")),
    ("rank-one", "directions of rank one", Setting(algorithm={"distribution": "rank1"})),
    ("local-steps", "K = 3", _exact(local_steps=3)),
    ("clip", "K = 3, all numbers clipped as one vector", _exact(clip=3.0, local_steps=3)),
    ("momentum", "MOMENTUM and rates that change", _exact(optimizer=MOMENTUM, rate=CHANGING)),
    ("everything", "rank one, central, MOMENTUM, K = 3, rates that change", Setting(algorithm=EVERYTHING)),
    ("hidden-layers", "two hidden layers, columns with their own mean and deviation", BY_COLUMN),
    ("linear", "a linear model with batches, K = 3", Setting((6, 3), {"local_steps": 3, "directions": 5}, batch=8)),
    (
        "hidden-momentum",
        "a hidden layer, MOMENTUM, rates that change, K = 2",
        Setting(algorithm={"optimizer": MOMENTUM, "local_steps": 2, "rate": CHANGING, "directions": 3}),
    ),
    ("wide", "tensors of more than 4,096 numbers", Setting((130, 40, 3), {"directions": 2, "rate": 0.02})),
    (
        "wide-rank-one",
        "rank one with more than 128 rows and columns",
        Setting((130, 150, 3), {"distribution": "rank1", "directions": 2, "rate": 0.02}),
    ),
    ("all-rows", "evaluations on all rows", Setting(all_rows=True)),
    ("few-rows", "fewer rows than a batch has", Setting(batch=64)),
)
SCENARIOS = (
    *(Scenario(name, about, playing(setting)) for name, about, setting in SETTINGS),
    Scenario("gaussian", "gaussian directions, or does not take part in a run with them", gaussian),
)
