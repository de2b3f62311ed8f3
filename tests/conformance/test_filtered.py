"""Every filter, and chains of them, with every method that can use them. No test here may know a method by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import (
    CLIP,
    FILTERED,
    MEDIAN,
    REFUSED,
    SIGN_FEEDBACK,
    TOP_K,
    UNLIKE,
    WIRES,
    allowed,
    chain_of,
    label,
    traits_of,
)

from fedzero.errors import FedzeroError
from fedzero.testing import methods as checks
from fedzero.testing.engines import Changing
from fedzero.testing.trial import recipe_of, trial

pytestmark = pytest.mark.covered

OF_UNLIKE = [(algorithm, chain) for algorithm, chain in FILTERED if algorithm in UNLIKE]
LONG = [(algorithm, chain) for algorithm, chain in FILTERED if algorithm not in UNLIKE and len(chain.links) > 1]
"""Every other method with chains that have all kinds of links."""
SAMPLED = [(algorithm, chain) for algorithm, chain in OF_UNLIKE if chain.feedback or chain.combiner is not None]
"""Where it matters that somebody was drawn twice: in what is kept for the next turn, and in what is combined."""


@pytest.mark.parametrize(("algorithm", "chain"), [*OF_UNLIKE, *LONG], ids=label)
def test_live_replayed_and_real_replicas_are_the_same(tmp_path: Path, algorithm, chain) -> None:
    """In whatever order the replies come; and bytes are the encoded sizes."""
    shared, real = (
        trial(tmp_path / str(own), recipe_of(algorithm, filters=chain.links, replicas=own)) for own in (False, True)
    )
    base = shared.replica.digest()
    shared.engine = meter = Changing(shared.engine)
    real.engine = Changing(real.engine, lambda replies, *_: replies[::-1])
    shared.play(5)
    real.play(5)
    assert not any(record.refused for record in shared.records)
    assert meter.up == sum(record.bytes_up for record in shared.records) > 0
    assert meter.down == sum(record.bytes_down for record in shared.records) > 0
    assert shared.records == real.records
    assert shared.replica.digest() == real.replica.digest() == shared.replayed().digest() != base
    assert shared.memories() == real.memories()
    keeps = chain.feedback or traits_of(algorithm).remembers
    assert shared.memories().keys() == ({c for r in shared.records for c in r.cohort} if keeps else set())


STOPPED = [(algorithm, chain) for algorithm, chain in OF_UNLIKE if chain.feedback or len(chain.links) > 1]


@pytest.mark.parametrize(("algorithm", "chain"), STOPPED, ids=label)
def test_a_resumed_run_ends_in_the_same_ledger(tmp_path: Path, algorithm, chain) -> None:
    """What filters left out for the next turn outlives the process."""
    checks.resumes(algorithm, tmp_path, chain.links)


ALONE = [(a, chain) for a, chain in FILTERED if chain.feedback and len(chain.links) == 1 and a not in UNLIKE]


@pytest.mark.parametrize(("algorithm", "chain"), ALONE, ids=label)
def test_what_filters_left_out_outlives_the_process(tmp_path: Path, algorithm, chain) -> None:
    """Clients are refused every other round, in one exchange or the other: what they keep is of turns that counted."""
    checks.resumes(algorithm, tmp_path, chain.links)


@pytest.mark.parametrize(("algorithm", "chain"), SAMPLED, ids=label)
def test_sampling_with_replacement(tmp_path: Path, algorithm, chain) -> None:
    checks.weighs_who_is_drawn_twice(algorithm, tmp_path, chain.links)


@pytest.mark.parametrize(("algorithm", "chain"), REFUSED, ids=label)
def test_a_chain_that_destroys_what_a_method_needs_is_refused(tmp_path: Path, algorithm, chain) -> None:
    """Before anything is written, in a sentence that names the filter, what is the matter and the mend."""
    with pytest.raises(FedzeroError) as refusal:
        trial(tmp_path / "x", recipe_of(algorithm, filters=chain.links))
    sentence, combiner = str(refusal.value), chain.combiner
    if chain.sparse and traits_of(algorithm).whole:
        assert sentence.startswith("filters: 'top-k' leaves numbers out") and "drop the filter" in sentence
    elif chain.feedback and (traits_of(algorithm).self_correcting or traits_of(algorithm).whole):
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
    if allowed(algorithm, chain)
    and not (chain is SOFT_CLIP and traits_of(algorithm).seeded)
    and not (chain.feedback and traits_of(algorithm).remembers)
]
"""Clipping is tried where numbers are of the size of a step; slopes may be as large as they like. With signs and
a memory of their own, clients need a minute; that what they keep is right has tests above."""


@pytest.mark.parametrize(("algorithm", "chain"), SOLVES, ids=label)
def test_what_a_filter_leaves_still_solves_a_quadratic(tmp_path: Path, algorithm, chain) -> None:
    """Within 5 % of the starting gap: what travels points where all of it does."""
    checks.solves_a_quadratic(algorithm, tmp_path, chain.links, left=0.05)
