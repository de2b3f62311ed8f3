"""FeedSign: against the paper by hand, ties, and what a bit costs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from byhand import Listening, assert_near, bound, federation, model, slope, start

from fedzero.errors import FedzeroError
from fedzero.links.coders import Bits
from fedzero.methods import FeedSign
from fedzero.model.updates import Seeded, decode_update
from fedzero.protocol.messages import decode_reply

ETA, MU = 5e-2, 0.1


def by_hand(world, rounds: int, K: int, P: int) -> np.ndarray:
    x = start()
    for r in range(rounds):
        z = [[world.z(r, k, p) for p in range(P)] for k in range(K)]
        votes = np.zeros((K, P))
        for i in world.cohort(r):
            y = x.copy()
            for k in range(K):
                b = np.array([1 if slope(world.f(r, i, k), y, z[k][p], MU, True) >= 0 else -1 for p in range(P)])
                votes[k] += b
                y = y - ETA / P * sum(b[p] * z[k][p] for p in range(P))
        assert (votes != 0).all(), "an odd cohort has no ties"
        x = x - ETA / P * sum(np.sign(votes[k, p]) * z[k][p] for k in range(K) for p in range(P))
    return x


@pytest.mark.parametrize(("K", "P"), [(1, 1), (1, 9), (3, 2)])
def test_ten_rounds_equal_the_paper_by_hand(tmp_path: Path, K, P) -> None:
    algorithm = FeedSign(rate=ETA, directions=P, local_steps=K, radius=MU)
    run, world = federation(tmp_path, algorithm, cohort=5, replicas=True)
    run.play(10)
    x = by_hand(world, 10, K, P)
    assert np.abs(x - start()).max() > 0.1, "the run must have moved"
    assert_near(model(run), x, bound(MU))
    assert not any(r.refused for r in run.records)


@pytest.mark.parametrize(("P", "size"), [(1, 1), (8, 1), (9, 2)])
def test_a_bit_a_direction_travels_both_ways(tmp_path: Path, P, size) -> None:
    """A single bit takes a byte; the rest of a message is what every method's has."""
    m = 4
    run, _ = federation(tmp_path, FeedSign(rate=ETA, directions=P, radius=MU), clients=m, cohort=m)
    run.engine = heard = Listening(run.engine)
    run.play(5)
    assert all(len(decode_reply(data, 1 << 10).values) == size for *_, data in heard.heard)
    for record in run.records:
        assert len(decode_update(record.update).scalars) == size
        reply = (record.round, 0, bytes(8), bytes(size), bytes(4), 2 * P)
        assert record.bytes_up == m * len(msgspec.msgpack.encode(reply))
        missed = [msgspec.Raw(r.update) for r in run.records[: record.round][-1:]]
        assert record.bytes_down == m * len(msgspec.msgpack.encode((1, record.round, 0, missed)))


def test_a_tie_is_decided_by_a_coin_of_the_round(tmp_path: Path) -> None:
    run, world = federation(tmp_path, FeedSign(rate=ETA, directions=20, radius=MU), cohort=2)
    run.engine = heard = Listening(run.engine)
    run.play(4)
    ties, ups = 0, 0
    for r in range(4):
        a, b = (Bits().decode(b"", decode_reply(d, 1 << 10).values, 20) for n, _, _, _, d in heard.heard if n == r)
        found = Bits().decode(b"", decode_update(run.records[r].update).scalars, 20)
        assert np.array_equal(found[a == b], a[a == b])
        coins = 2 * world.keys.generator("vote", r).integers(2, size=20) - 1
        assert np.array_equal(found[a != b], coins[a != b])
        ties, ups = ties + (a != b).sum(), ups + (found[a != b] > 0).sum()
    assert 0 < ups < ties


def test_bits_are_signs() -> None:
    values = np.array([3.0, -0.5, 0.0, -0.0, -1e-30, 1e30, 1, 1, -1], np.float32)
    scale, codes = Bits().encode(values, None)
    assert (scale, len(codes)) == (b"", 2)
    assert Bits().decode(scale, codes, 9).tolist() == [1, -1, 1, 1, -1, 1, 1, 1, -1]


def test_an_update_of_another_length_is_refused() -> None:
    algorithm = FeedSign(rate=ETA, directions=9)
    with pytest.raises(FedzeroError, match="round 4 has 3 bytes of signs where feedsign has 2"):
        algorithm.decode_update(Seeded(4, bytes(3)))
