"""Who gets which samples: everything is dealt exactly once, nobody goes empty-handed, and the keys decide."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.oracles import ALL_DATA
from fedzero.tasks.partition import Dirichlet, Iid, Mix, Partition, Shards, drawn, split

DIGITS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 400))
"""As many labels as in the packaged subset."""
KEYS = Keys.of_seed(1)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """(labels in any order, clients, seed), at least two samples a client."""
    count = draw(st.integers(2, 300))
    classes = draw(st.integers(1, 12))
    labels = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(0, classes, count)
    return labels, draw(st.integers(1, count // 2)), draw(st.integers(0, 2**40))


partitions = st.one_of(st.just(Iid()), st.floats(1e-3, 1e3).map(Dirichlet), st.integers(1, 2).map(Shards))


@settings(max_examples=150, deadline=None)
@given(problems(), partitions)
def test_every_sample_goes_to_exactly_one_client_and_nobody_is_left_out(problem, partition):
    labels, clients, seed = problem
    parts = split(partition, labels, clients, Keys.of_seed(seed))
    assert len(parts) == clients
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) > 0


@settings(max_examples=40, deadline=None)
@given(problems(), partitions)
def test_a_partition_is_a_function_of_its_keys(problem, partition):
    labels, clients, seed = problem
    first = split(partition, labels, clients, Keys.of_seed(seed))
    np.random.default_rng(0).random(3)  # nothing else that draws random numbers matters
    again = split(
        msgspec.convert(msgspec.to_builtins(partition), Partition), labels.copy(), clients, Keys.of_seed(seed)
    )
    assert [part.tolist() for part in first] == [part.tolist() for part in again]
    private = split(partition, labels, clients, Keys.of_seed(seed, b"secret"))
    assert [part.tolist() for part in first] == [part.tolist() for part in private], "a secret moves directions only"


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(0.5), Shards(2)])
def test_another_seed_deals_otherwise(partition):
    one, two = (split(partition, DIGITS, 10, Keys.of_seed(seed)) for seed in (1, 2))
    assert [part.tolist() for part in one] != [part.tolist() for part in two]


@settings(max_examples=30, deadline=None)
@given(problems())
def test_iid_shares_are_equal_to_within_one(problem):
    labels, clients, seed = problem
    sizes = [len(part) for part in split(Iid(), labels, clients, Keys.of_seed(seed))]
    assert max(sizes) - min(sizes) <= 1


def label_counts(partition: Partition, clients: int = 20, seed: int = 3) -> np.ndarray:
    """(clients, labels)"""
    parts = split(partition, DIGITS, clients, Keys.of_seed(seed))
    return np.stack([np.bincount(DIGITS[part], minlength=10) for part in parts])


def test_iid_mixes_the_labels():
    counts = label_counts(Iid())
    # Hypergeometric, 200 of 4,000: mean 20 a label and deviation 4.1.
    assert np.abs(counts - 20).max() < 6 * 4.1
    assert 3 < counts.std() < 5.5


def imbalance(alpha: float) -> float:
    """Mean share of a client's most common label, over a few seeds."""
    shares = []
    for seed in range(5):
        counts = label_counts(Dirichlet(alpha), seed=seed)
        shares.append((counts.max(axis=1) / counts.sum(axis=1)).mean())
    return float(np.mean(shares))


def test_dirichlet_is_more_uneven_the_smaller_alpha():
    found = [imbalance(alpha) for alpha in (0.05, 0.3, 1.0, 10.0, 1000.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.6
    assert found[-1] < 0.15


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    """A share is Beta(α, (n−1)α): mean 1/n, variance (n−1)/(n²(nα+1))."""
    alpha, n = 1.0, 8
    shares = np.concatenate([label_counts(Dirichlet(alpha), n, seed).ravel() / 400 for seed in range(30)])
    variance = (n - 1) / (n**2 * (n * alpha + 1))
    assert shares.mean() == pytest.approx(1 / n)
    assert shares.var() == pytest.approx(variance, rel=0.12)  # 2,400 shares: about 3.5 deviations


@pytest.mark.parametrize("alpha", [1e-6, 1e-12, 1e-300])
def test_dirichlet_with_almost_no_alpha_gives_each_label_to_one_client(alpha):
    parts = split(Dirichlet(alpha), DIGITS, 6, Keys.of_seed(4))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(DIGITS)))
    counts = np.stack([np.bincount(DIGITS[part], minlength=10) for part in parts])
    assert min(len(part) for part in parts) > 0
    # All of a label, but for samples given away so that nobody is empty.
    assert (counts.max(axis=0) >= 400 - 5).all()


def test_dirichlet_deals_one_sample_each_when_there_are_no_more():
    parts = split(Dirichlet(0.1), DIGITS[::40], 100, Keys.of_seed(5))
    assert [len(part) for part in parts] == [1] * 100


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_shards_give_few_labels_a_client(per_client):
    counts = label_counts(Shards(per_client), clients=20)
    # 20 divides the 10 labels evenly, so every shard lies within one label.
    assert ((counts > 0).sum(axis=1) <= per_client).all()
    assert (counts.sum(axis=1) == 200).all()
    assert ((counts > 0).sum(axis=1) == per_client).any()


def test_shards_that_cross_labels_add_at_most_one_label_each():
    counts = label_counts(Shards(2), clients=7)  # 14 shards of about 286 samples, labels of 400
    assert ((counts > 0).sum(axis=1) <= 4).all()


def test_shards_leave_nobody_empty_or_say_so():
    """More shards than samples: some shards are empty, and a client may get only such."""
    for seed in range(5):
        try:
            parts = split(Shards(3), np.arange(12) % 3, 10, Keys.of_seed(seed))
        except FedzeroError as error:
            assert "per_client" in str(error)
        else:
            assert min(len(part) for part in parts) > 0


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(1.0), Shards(1)])
def test_more_clients_than_samples(partition):
    with pytest.raises(FedzeroError, match=r"federation\.clients = 5 .* 4 "):
        split(partition, np.zeros(4, np.int64), 5, Keys.of_seed(0))
    assert [len(part) for part in split(partition, np.zeros(4, np.int64), 4, Keys.of_seed(0))] == [1] * 4


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(1, 40), st.integers(0, 5))
def test_even_batches_take_each_label_in_turn(labels, size, round):
    """As many of a label as of any other, or all there are of it; the rest is what `drawn` promises anyway."""
    every, part = np.array(labels), np.arange(0, len(labels), 2)
    mix = Mix(every, np.full(4, 0.25))
    chosen = drawn(part, size, KEYS, round, 0, 3, mix)
    assert len(chosen) == len(set(chosen)) == min(size, len(part))
    assert set(chosen) <= set(part)
    held, taken = np.bincount(every[part], minlength=4), np.bincount(every[chosen], minlength=4)
    most = taken.max()
    assert all(t >= most - 1 or t == h for t, h in zip(taken, held, strict=True))
    assert list(chosen) == list(drawn(part, size, KEYS, round, 0, 3, mix))


def test_even_batches_differ_and_all_data_is_all():
    every, part = np.arange(200) % 5 // 4, np.arange(200)
    mix = Mix(every, np.array([0.5, 0.5]))
    first, second = (drawn(part, 20, KEYS, round, 0, 0, mix) for round in (1, 2))
    assert set(first) != set(second)
    assert every[first].sum() == every[second].sum() == 10, "a fifth of the samples, half of the batch"
    assert mix.weights(first) is None, "there is nothing to mend"
    assert list(drawn(part, 20, KEYS, 1, ALL_DATA, 0, mix)) == list(part)


def test_labels_come_as_often_as_they_shall():
    every, part = np.arange(400) % 2, np.arange(400)
    chosen = drawn(part, 40, KEYS, 1, 0, 0, Mix(every, np.array([0.8, 0.2])))
    assert np.bincount(every[chosen]).tolist() == [32, 8]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4))
def test_weights_make_up_for_what_a_client_lacks(labels, shares):
    """Of the labels that are there each counts its share, and all together one."""
    every, wanted = np.array(labels), np.array(shares) / sum(shares)
    found = Mix(every, wanted).weights(np.arange(len(every)))
    weights = np.full(len(every), 1 / len(every)) if found is None else found
    there = np.unique(every)
    counted = np.array([weights[every == label].sum() for label in there])
    assert counted == pytest.approx(wanted[there] / wanted[there].sum())


def by_hand(partition: Partition, labels: np.ndarray, clients: int, keys: Keys) -> list[list[int]]:
    """docs/ledger.md, "Partition", in lists."""
    g, n = keys.generator("partition"), len(labels)
    if isinstance(partition, Iid):
        return [sorted(piece.tolist()) for piece in np.array_split(g.permutation(n), clients)]
    if isinstance(partition, Shards):
        shards = np.array_split(np.argsort(labels, kind="stable"), clients * partition.per_client)
        order, each = g.permutation(len(shards)), partition.per_client
        return [sorted(i for s in order[c * each : (c + 1) * each] for i in shards[s].tolist()) for c in range(clients)]
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in sorted(set(labels.tolist())):
        m = g.permutation(np.flatnonzero(labels == label)).tolist()
        p = g.dirichlet([partition.alpha] * clients)
        cuts = [0, *(int(np.round(total * len(m))) for total in np.cumsum(p)[:-1]), len(m)]
        for part, (first, last) in zip(parts, pairwise(cuts), strict=True):
            part += m[first:last]
    parts = [sorted(part) for part in parts]
    for empty in [c for c in range(clients) if not parts[c]]:
        largest = max(range(clients), key=lambda c: len(parts[c]))
        parts[empty] = [parts[largest].pop(0)]
    return parts


@given(
    st.sampled_from([Iid(), Shards(per_client=1), Shards(per_client=2), Dirichlet(alpha=0.01), Dirichlet(alpha=1.0)]),
    st.integers(1, 12),
    st.lists(st.integers(0, 3), min_size=24, max_size=60),
    st.integers(0, 9),
)
def test_parts_are_those_of_the_specification(partition: Any, clients: int, labels: list[int], seed: int) -> None:
    found = split(partition, np.array(labels), clients, Keys.of_seed(seed))
    assert [part.tolist() for part in found] == by_hand(partition, np.array(labels), clients, Keys.of_seed(seed))
