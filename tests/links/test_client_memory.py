"""Lossy chains and clients that remember: what a client keeps follows from what the server read, not from what the
client meant, so that the server's sums stay the sums of what the clients have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import small
from vectors import EPS, chain_of

from fedzero.links import Chain
from fedzero.methods import ScaffoldZO, ZoneS
from fedzero.protocol.client import ClientMemory
from fedzero.testing.trial import Trial

CLIP, TOP_K, QUANTISE, SIGN = {"kind": "clip", "norm": 0.05}, {"kind": "top-k"}, {"kind": "quantise"}, {"kind": "sign"}
LOSSY = [
    Chain(),
    chain_of(CLIP),
    chain_of(TOP_K),
    chain_of({**TOP_K, "feedback": True}),
    chain_of(QUANTISE),
    chain_of(SIGN),
    chain_of({**SIGN, "feedback": True}),
    chain_of(CLIP, TOP_K, QUANTISE),
    chain_of({**TOP_K, "feedback": True}, SIGN),
]
"""All without a combiner: a median of changes is not a change of the mean."""
ROUNDS = 25


def label(chain: Chain) -> str:
    return (
        "+".join(link.__struct_config__.tag + "*" * getattr(link, "feedback", False) for link in chain.links) or "none"
    )


lossy = pytest.mark.parametrize("chain", LOSSY, ids=label)
FORGETFUL = [chain for chain in LOSSY if not chain.feedback]
"""ZONE-S carries on what was left out by itself, and refuses feedback."""


def remembered(run: Trial) -> np.ndarray:
    """What every client has, (N, d), float64; zeros for those who had no turn."""
    found = np.zeros((run.setup.recipe.federation.clients, 50))
    for client, pieces in run.memories().items():
        memory = ClientMemory.of_chunks(pieces).memory
        assert memory is not None
        found[client] = memory[0]
    return found


def carried(run: Trial) -> np.ndarray:
    """What the server has of it, (d,): Λ, or c."""
    (vector,) = run.replica.state.carry.tensors()
    return vector.numpy()


def tolerance(largest: float) -> float:
    """Server and client each round a change when they scale it, and their sums when they add it: at most four roundings
    a round on either side, of numbers no larger than the largest that ever was."""
    return 8 * ROUNDS * EPS * largest


def played(folder: Path, algorithm: Any, chain: Chain, **places: Any) -> tuple[Trial, float]:
    """A run, and the largest number that any client or the server ever kept."""
    run, largest = small(folder, algorithm, filters=chain.links, **places), 0.0
    for _ in range(ROUNDS):
        run.play(1)
        kept = np.abs(carried(run)).max(), np.abs(remembered(run)).sum(axis=0).max()
        largest = max(largest, *map(float, kept))
    assert not any(record.refused for record in run.records)
    return run, largest


@pytest.mark.parametrize("chain", FORGETFUL, ids=label)
def test_the_multipliers_add_up(tmp_path: Path, chain) -> None:
    """ZONE-S: Λ = Σ λ_i."""
    run, largest = played(tmp_path, ZoneS(rate=2e-3, form="dense"), chain, clients=5, cohort=1)
    found = remembered(run)
    assert np.abs(carried(run) - found.sum(axis=0)).max() <= tolerance(largest)
    assert np.abs(found).max() > 1e3 * tolerance(largest), "there is something to compare"


@pytest.mark.covered
@lossy
@pytest.mark.parametrize("replacement", [False, True])
def test_the_control_variates_average(tmp_path: Path, chain, replacement) -> None:
    """SCAFFOLD type II: c = (1/N) Σ c_i; who is drawn twice changes its c_i once."""
    method = ScaffoldZO(rate=2e-3, local_steps=2, directions=5, form="dense")
    run, largest = played(tmp_path, method, chain, clients=6, cohort=3, replacement=replacement)
    found = remembered(run)
    assert np.abs(carried(run) - found.mean(axis=0)).max() <= tolerance(largest)
    assert np.abs(found).max() > 1e3 * tolerance(largest), "there is something to compare"


@pytest.mark.parametrize("chain", FORGETFUL[1:], ids=label)
def test_the_test_can_tell(tmp_path: Path, chain, monkeypatch) -> None:
    """Clients that remember what they meant instead of what was read do not add up."""
    import fedzero.protocol.client as clients

    honest = clients.Client._remember
    monkeypatch.setattr(clients.Client, "_remember", lambda self, given, _: honest(self, given, given.values))
    run, largest = played(tmp_path, ZoneS(rate=2e-3, form="dense"), chain, clients=5, cohort=1)
    assert np.abs(carried(run) - remembered(run).sum(axis=0)).max() > tolerance(largest)
