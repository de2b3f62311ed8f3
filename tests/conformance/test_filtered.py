"""Every filter, and chains of them, with every method that can use them. No test here may know a method by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cases import (
    CLIP,
    FILTERED,
    MEDIAN,
    REFUSED,
    SIGN_FEEDBACK,
    TOP_K,
    WIRES,
    allowed,
    chain_of,
    federation_for,
    label,
    scale_of,
)
from harness import small
from resuming import recipe_of, resumes
from trouble import Meter, Tampering, troubled

from fedzero.errors import FedzeroError
from fedzero.protocol.local import LocalEngine
from fedzero.tasks import Quadratic

UNLIKE = list({(a.seeded(scale_of(a)), a.remembers(scale_of(a)), a.exchanges): a for a in reversed(WIRES)}.values())
"""Methods that leave unlike things in a ledger; those with feedback are all stopped and resumed below."""
filtered = pytest.mark.parametrize(("algorithm", "chain"), FILTERED, ids=label)
SAMPLED = [
    (algorithm, chain)
    for algorithm, chain in FILTERED
    if 1 < federation_for(algorithm)["cohort"] < federation_for(algorithm)["clients"]
    and (chain.feedback or chain.combiner is not None)
]
"""Where it matters that somebody was drawn twice: in what is kept for the next turn, and in what is combined."""


@filtered
def test_live_replayed_and_real_replicas_are_the_same(tmp_path: Path, algorithm, chain) -> None:
    """In whatever order the replies come; and bytes are the encoded sizes."""
    shared, real = (
        small(tmp_path / str(replicas), algorithm, filters=chain.links, replicas=replicas, **federation_for(algorithm))
        for replicas in (False, True)
    )
    base = shared.replica.digest()
    shared.engine = meter = Meter(shared.engine)
    real.engine = Tampering(real.engine, lambda replies, *_: replies[::-1])
    shared.play(5)
    real.play(5)
    assert not any(record.refused for record in shared.records)
    assert meter.up == sum(record.bytes_up for record in shared.records) > 0
    assert meter.down == sum(record.bytes_down for record in shared.records) > 0
    assert shared.records == real.records
    assert shared.replica.digest() == real.replica.digest() == shared.replayed().digest() != base
    assert shared.memories() == real.memories()
    keeps = chain.feedback or algorithm.remembers(shared.replica.state.scale)
    assert shared.memories().keys() == ({c for r in shared.records for c in r.cohort} if keeps else set())


@pytest.mark.parametrize(("algorithm", "chain"), [pair for pair in FILTERED if pair[0] in UNLIKE], ids=label)
def test_a_resumed_run_ends_in_the_same_ledger(tmp_path: Path, algorithm, chain) -> None:
    """What filters left out for the next turn outlives the process; stopped behind the checkpoint of round 10."""
    resumes(tmp_path, recipe_of(tmp_path / "x", algorithm, 12, filters=chain.links), 10)


@pytest.mark.parametrize(("algorithm", "chain"), [pair for pair in FILTERED if pair[1].feedback], ids=label)
def test_a_troubled_run_can_be_resumed(tmp_path: Path, algorithm, chain, monkeypatch) -> None:
    """Clients are refused every other round, in one exchange or the other: what they keep is of turns that counted."""
    monkeypatch.setattr(LocalEngine, "exchange", troubled(LocalEngine.exchange))
    resumes(tmp_path, recipe_of(tmp_path / "x", algorithm, 8, replicas=True, filters=chain.links), 4)


@pytest.mark.parametrize(("algorithm", "chain"), SAMPLED, ids=label)
def test_sampling_with_replacement(tmp_path: Path, algorithm, chain) -> None:
    places = federation_for(algorithm) | {"replacement": True, "filters": chain.links}
    shared, real = (small(tmp_path / str(own), algorithm, replicas=own, **places) for own in (False, True))
    shared.play(5)
    real.play(5)
    assert any(len(set(r.cohort)) < len(r.cohort) for r in shared.records)
    assert not any(r.refused for r in shared.records)
    assert shared.records == real.records
    assert shared.replica.digest() == real.replica.digest() == shared.replayed().digest()


@pytest.mark.parametrize(("algorithm", "chain"), REFUSED, ids=label)
def test_a_chain_that_destroys_what_a_method_needs_is_refused(tmp_path: Path, algorithm, chain) -> None:
    """Before anything is written, in a sentence that names the filter, what is the matter and the mend."""
    with pytest.raises(FedzeroError) as refusal:
        small(tmp_path / "x", algorithm, filters=chain.links, **federation_for(algorithm))
    sentence, combiner = str(refusal.value), chain.combiner
    if chain.feedback and algorithm.makes_up(scale_of(algorithm)):
        assert sentence.startswith("filters: feedback = true") and "set feedback = false" in sentence
    else:
        assert combiner is not None and sentence.startswith(f"filters: {combiner.__struct_config__.tag!r}")
        assert "drop the filter" in sentence or "federation.cohort" in sentence
    assert not (tmp_path / "x").exists()


SOFT_CLIP = chain_of(CLIP | {"norm": 0.3})
SOLVED_WITH = [SOFT_CLIP, *(chain_of(link) for link in (TOP_K, SIGN_FEEDBACK, MEDIAN))]
SOLVES = [
    (algorithm, chain)
    for algorithm in WIRES
    for chain in SOLVED_WITH
    if allowed(algorithm, chain) and not (chain is SOFT_CLIP and algorithm.seeded(scale_of(algorithm)))
]
"""Clipping is tried where numbers are of the size of a step; slopes may be as large as they like."""


@pytest.mark.parametrize(("algorithm", "chain"), SOLVES, ids=label)
def test_what_a_filter_leaves_still_solves_a_quadratic(tmp_path: Path, algorithm, chain) -> None:
    """Within 5 % of the starting gap in 150 rounds at one of two rates: what travels points where all of it does."""
    gaps = []
    for rate in (2e-2, 4e-2):
        task = Quadratic(dimension=20, condition=3.0, spread=0.2)
        tuned = msgspec.structs.replace(algorithm, rate=rate)
        places = federation_for(algorithm)
        run = small(tmp_path / str(rate), tuned, task=task, merge=True, filters=chain.links, **places)
        start, gap = run.engine.evaluate()[1].loss, 1.0
        while gap > 0.05 and len(run.records) < 150:
            run.play(10)
            gap = run.engine.evaluate()[1].loss / start
        gaps.append(gap)
        if gap <= 0.05:
            return
    pytest.fail(f"left of the gap at the two rates: {gaps}")
