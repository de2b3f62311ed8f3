"""What every filter must do, with methods of every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedzero.errors import FedzeroError, Refused
from fedzero.links import Chain, Coder, Combiner, Filter, Mixer, Shaper
from fedzero.methods.contract import Method
from fedzero.methods.decomfl import DeComFL
from fedzero.methods.fedavg import FedAvg
from fedzero.methods.scaffold import ScaffoldZO
from fedzero.testing import methods
from fedzero.testing.engines import Changing
from fedzero.testing.trial import Check, expect, federation_for, recipe_of, run_checks, trial

METHODS: tuple[Method, ...] = (
    DeComFL(rate=2e-3, local_steps=2, directions=5),
    FedAvg(rate=2e-3, local_steps=2),
    ScaffoldZO(rate=2e-3, local_steps=2, directions=5, type="II", form="dense"),
)
"""Scalars of shared directions; whole models; models and something that clients remember."""


def check_filter(link: Filter, checks: Sequence[Check] | None = None) -> None:
    """Send what methods send through a filter, and raise `CheckFailed` with what does not hold.

    Checks: numbers keep their count and stay finite; codes have the length they say, and damaged ones are refused; the
    order of clients does not matter; runs replay, resume and are the same on replicas of their own.
    """
    run_checks(type(link), link, CHECKS if checks is None else checks)


def _vectors() -> Iterator[np.ndarray]:
    generator = np.random.default_rng(0)
    for size in (1, 2, 7, 33, 1000):
        yield generator.standard_normal(size).astype(np.float32)
        yield np.zeros(size, np.float32)
        yield (generator.standard_normal(size) * 1e30).astype(np.float32)


def keeps_numbers_whole(link: Filter, folder: Path) -> None:
    chain = Chain((link,))
    for values in _vectors():
        before = values.copy()
        sent = chain.encode(values, None, lambda: np.random.default_rng(1))
        expect(np.array_equal(values, before), "it writes into the numbers it is given")
        expect(sent.values.shape == values.shape, f"{values.size} numbers became {sent.values.size}")
        expect(
            bool(np.isfinite(sent.values).all()), f"finite numbers became {sent.values[~np.isfinite(sent.values)][:3]}"
        )
        expect(
            len(sent.data) <= chain.limit(values.size), f"{len(sent.data)} bytes, at most {chain.limit(values.size)}"
        )
        read = chain.decode(sent.data, values.size)
        expect(np.array_equal(read, sent.values), "the server reads other numbers than the client believes it sent")
        again = chain.encode(values, None, lambda: np.random.default_rng(1))
        expect(again.data == sent.data, "the same numbers are sent as other bytes the second time")
        if chain.codes:
            _expect_refusals(chain, sent.data, values.size)


def _expect_refusals(chain: Chain, data: bytes, count: int) -> None:
    for what, damaged in {
        "cut": data[:-1],
        "longer": data + b"\0",
        "noise": bytes(range(200, 240)),
        "empty": b"",
    }.items():
        try:
            chain.decode(damaged, count)
        except Refused:
            continue
        except Exception as error:
            expect(False, f"codes that are {what} raise {error!r}, not Refused")
        expect(False, f"codes that are {what} are accepted")


def combines_in_any_order(link: Filter, folder: Path) -> None:
    if not isinstance(link, Mixer | Combiner):
        return
    generator = np.random.default_rng(2)
    given = {client: generator.standard_normal(9).astype(np.float32) for client in range(max(5, link.least()))}
    weights = {client: 1 + (client == 2) for client in given}
    one, other = (_combined(link, order, weights) for order in (given, dict(reversed(given.items()))))
    expect(np.array_equal(one, other), "the order in which contributions came changes the outcome")
    shape = (len(given), 9) if isinstance(link, Mixer) else (9,)
    expect(one.shape == shape and one.dtype == np.float32, f"the outcome has shape {one.shape} and type {one.dtype}")


def _combined(link: Mixer | Combiner, given: Mapping[int, np.ndarray], weights: Mapping[int, int]) -> np.ndarray:
    if isinstance(link, Combiner):
        return link.combine(given, weights)
    mixed = link.mix(given, weights)
    expect(mixed.keys() == given.keys(), f"contributions of clients {sorted(given)} became {sorted(mixed)}'s")
    return np.stack([mixed[client] for client in sorted(mixed)])


def runs_with_methods(link: Filter, folder: Path) -> None:
    """Live, replayed and on replicas of their own the same; interrupted runs end in the same ledger."""
    used, cohort = 0, max(4, link.least() if isinstance(link, Mixer | Combiner) else 0)
    for method in METHODS:
        federation = federation_for(method, cohort)
        try:
            runs = [
                trial(folder / f"{method.name}-{own}", recipe_of(method, federation, filters=(link,), replicas=own))
                for own in (False, True)
            ]
        except FedzeroError:
            continue  # it leaves not what this method needs, and says so
        used += 1
        runs[1].engine = Changing(runs[1].engine, lambda replies, *_: replies[::-1])
        for run in runs:
            run.play(5)
        expect(not any(record.refused for record in runs[0].records), f"{method.name}: {runs[0].records[-1].refused}")
        expect(runs[0].records == runs[1].records, f"{method.name}: replicas of their own lead to other numbers")
        digests = {run.replica.digest() for run in runs} | {runs[0].replayed().digest()}
        expect(len(digests) == 1, f"{method.name}: replicas of their own, or the replay, end in another model")
        methods.resumes(method, folder / f"{method.name}-resumed", (link,), federation=federation)
    expect(used > 0, "no method can be used with it")


def has_a_place_in_the_chain(link: Filter, folder: Path) -> None:
    kinds = [kind.__name__ for kind in (Shaper, Coder, Mixer, Combiner) if isinstance(link, kind)]
    expect(
        len(kinds) == 1, f"it is {' and '.join(kinds) or 'none'} of Shaper, Coder, Mixer and Combiner; it must be one"
    )


CHECKS: tuple[Check, ...] = (has_a_place_in_the_chain, keeps_numbers_whole, combines_in_any_order, runs_with_methods)
