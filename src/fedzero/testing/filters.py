"""What every link must do, with methods of every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedzero.errors import FedzeroError, Refused
from fedzero.links import Chain, Coder, Link
from fedzero.links.contract import ClientContext, Contribution, Replies
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
LOSS = 0.4375


def check_link(link: Link, checks: Sequence[Check] | None = None) -> None:
    """Send what methods send through a link, and raise `CheckFailed` with what does not hold.

    Checks: numbers keep their count and stay finite; codes have the length they say, and damaged ones are refused; its
    traits are true; the order of clients does not matter, and none is lost; runs replay, resume and are the same on
    replicas of their own.
    """
    run_checks(type(link), link, CHECKS if checks is None else checks)


check_filter = check_link
"""Its name in 0.2."""


def _vectors() -> Iterator[np.ndarray]:
    generator = np.random.default_rng(0)
    for size in (1, 2, 7, 33, 1000):
        yield generator.standard_normal(size).astype(np.float32)
        yield np.zeros(size, np.float32)
        yield (generator.standard_normal(size) * 1e30).astype(np.float32)


def _context(private: int = 1) -> ClientContext:
    """The same public draws always; private ones by number."""
    return ClientContext(lambda: np.random.default_rng(1), entropy=lambda n: np.random.default_rng(private).bytes(n))


def keeps_numbers_whole(link: Link, folder: Path) -> None:
    chain = Chain((link,))
    for values in _vectors():
        before, mine = values.copy(), Contribution(values, LOSS)
        sent = chain.on_client(mine, None, _context())
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
        again = chain.on_client(mine, None, _context())
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


def has_true_traits(link: Link, folder: Path) -> None:
    """Whether it hides the loss, and whether it draws what nobody can draw again."""
    values, traits = np.random.default_rng(0).standard_normal(33).astype(np.float32), link.traits
    one, other = (Chain((link,)).on_client(Contribution(values, LOSS), None, _context(which)) for which in (1, 2))
    if traits.hides_loss:
        expect(one.loss != LOSS, "it says that it hides the loss, and leaves it as it is")
    else:
        expect(one.loss == LOSS, "it changes the loss, and has not the trait hides_loss")
    if traits.draws_privately:
        expect(one.data != other.data, "it says that it draws privately, and sends the same whatever is drawn")
    else:
        expect((one.data, one.loss) == (other.data, other.loss), "it draws privately, and has no trait that says so")


def treats_clients_alike(link: Link, folder: Path) -> None:
    if not link.reads_each_reply:
        return
    generator = np.random.default_rng(2)
    given = {client: generator.standard_normal(9).astype(np.float32) for client in range(max(5, link.least()))}
    weights = {client: 1 + (client == 2) for client in given}
    one, other = (_received(link, order, weights) for order in (given, dict(reversed(given.items()))))
    expect(np.array_equal(one, other), "the order in which contributions came changes the outcome")


def _received(link: Link, given: Mapping[int, np.ndarray], weights: Mapping[int, int]) -> np.ndarray:
    """What comes of contributions: the one vector, or one for every client that is left."""
    if link.has("combine"):
        one = link.combine(given, weights)
        expect(one.shape == (9,) and one.dtype == np.float32, f"one vector has shape {one.shape}, type {one.dtype}")
        return one
    left = link.on_server(Replies(given, weights))
    known = left.values.keys() | left.refused.keys()
    whole = known == given.keys() and not left.values.keys() & left.refused.keys()
    expect(whole, f"contributions of clients {sorted(given)} became {sorted(known)}'s")
    expect(left.bounded <= given.keys(), f"it marks clients {sorted(left.bounded - given.keys())}, who sent nothing")
    for own in left.values.values():
        expect(own.shape == (9,) and own.dtype == np.float32, f"an outcome has shape {own.shape} and type {own.dtype}")
    return np.stack([left.values[client] for client in sorted(left.values)])


def runs_with_methods(link: Link, folder: Path) -> None:
    """Live, replayed and on replicas of their own the same; interrupted runs end in the same ledger.

    Private noise is another in every run: then only what follows from the ledger is the same."""
    used, cohort, private = 0, max(4, link.least()), link.traits.draws_privately
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
            expect(run.replica.digest() == run.replayed().digest(), f"{method.name}: the replay ends in another model")
        expect(not any(record.refused for record in runs[0].records), f"{method.name}: {runs[0].records[-1].refused}")
        if private:
            continue
        same = runs[0].records == runs[1].records and runs[0].replica.digest() == runs[1].replica.digest()
        expect(same, f"{method.name}: replicas of their own lead to other numbers")
        methods.resumes(method, folder / f"{method.name}-resumed", (link,), federation=federation)
    expect(used > 0, "no method can be used with it")


def has_a_place_in_the_chain(link: Link, folder: Path) -> None:
    """A coder codes and nothing else; any other link has a half at least, and one of the two on the server."""
    halves = [half for half in ("on_client", "on_server", "combine") if link.has(half)]
    if isinstance(link, Coder):
        expect(not halves, f"it is a Coder, and has {' and '.join(halves)}; it must be one or the other")
    else:
        expect(bool(halves), "it overrides none of on_client, on_server and combine, and is no Coder")
        expect("combine" not in halves or len(halves) == 1, f"a link that combines has no other half: {halves}")


CHECKS: tuple[Check, ...] = (
    has_a_place_in_the_chain,
    keeps_numbers_whole,
    has_true_traits,
    treats_clients_alike,
    runs_with_methods,
)
