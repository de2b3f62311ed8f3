"""Chains: round trips, sizes, what is carried over to the next turn, and messages nobody sent."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from vectors import EPS, chain_of, draw, few, normal, tame, vectors

from fedzero.errors import FedzeroError, Refused
from fedzero.links import NO_FILTERS, Chain
from fedzero.links.chain import Coded
from fedzero.links.contract import Promise

CLIP, QUANTISE, SIGN = {"kind": "clip", "norm": 3.0}, {"kind": "quantise"}, {"kind": "sign"}
TOP_K, FEEDBACK = {"kind": "top-k", "fraction": 0.2}, {"kind": "top-k", "fraction": 0.2, "feedback": True}
SIGN_FEEDBACK = {"kind": "sign", "feedback": True}
CHAINS = [
    NO_FILTERS,
    chain_of(CLIP),
    chain_of(TOP_K),
    chain_of(QUANTISE),
    chain_of(SIGN),
    chain_of(CLIP, TOP_K, QUANTISE),
    chain_of(TOP_K, SIGN),
]


def label(chain: Chain) -> str:
    return "+".join(link.__struct_config__.tag for link in chain.links) or "none"


chains = pytest.mark.parametrize("chain", CHAINS, ids=label)
FEEDBACKS = [
    chain_of(FEEDBACK),
    chain_of(SIGN_FEEDBACK),
    chain_of(FEEDBACK, QUANTISE),
    chain_of(FEEDBACK, SIGN),
    chain_of(FEEDBACK, SIGN_FEEDBACK),
    chain_of(FEEDBACK, CLIP),
    chain_of({**FEEDBACK, "fraction": 0.5}, FEEDBACK),
    chain_of(TOP_K, SIGN_FEEDBACK),
]
with_feedback = pytest.mark.parametrize("chain", FEEDBACKS, ids=label)


@chains
@few
@given(values=vectors)
@example(values=np.zeros(9, np.float32))
@example(values=np.array([-0.0, 0, 1], np.float32))
def test_round_trip(chain, values) -> None:
    """What the client thinks the server will read, the server reads, to the last bit; and it fits the limit."""
    sent = chain.encode(values, None, draw())
    read = chain.decode(sent.data, len(values))
    assert read.dtype == np.float32
    assert read.tobytes() == sent.values.tobytes()
    assert len(sent.data) <= chain.limit(len(values))
    assert sent.residual is None


@with_feedback
@few
@given(values=tame, turns=st.integers(1, 6))
def test_nothing_is_lost_with_feedback(chain, values, turns) -> None:
    """Σ sent + rest = Σ meant. Two roundings a turn, of numbers as large as what was wanted in it.

    A link before the one with the feedback changes what is meant.
    """
    meant, sent, rest, allowed = np.zeros(len(values)), np.zeros(len(values)), None, np.zeros(len(values))
    for turn in range(turns):
        fresh = np.roll(values, turn)
        first = next((link for link in chain.client_links[:1] if not link.traits.keeps_residual), None)
        meant += fresh if first is None else first.shape(fresh)
        allowed += 2 * EPS * (np.abs(fresh) + (0 if rest is None else np.abs(rest))) + 2.0**-148
        out = chain.encode(fresh, rest, draw(turn))
        rest = out.residual
        assert rest is not None
        assert rest.dtype == np.float32
        sent += out.values
        allowed += EPS * np.abs(out.values)
    assert (np.abs(sent + rest - meant) <= allowed).all()


def test_feedback_makes_up_for_what_a_turn_left_out() -> None:
    """Ten equal turns of which a tenth travels each: after them everything has arrived at least once."""
    chain, values, rest = chain_of({**FEEDBACK, "fraction": 0.1}), normal(20), None
    values += np.sign(values)  # between 1 and 4: none so small that it has to wait longer
    arrived = np.zeros(20)
    for turn in range(40):
        out = chain.encode(values, rest, draw(turn))
        arrived, rest = arrived + out.values, out.residual
    assert (arrived != 0).all()
    plain = chain_of({**TOP_K, "fraction": 0.1})
    assert np.count_nonzero(plain.encode(values, None, draw()).values) == 2, "without feedback the same two always"


@chains
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_link_hides_a_number_that_is_none(chain, bad) -> None:
    """A client whose function fails says so, instead of sending a clipped infinity."""
    values = normal(20)
    values[3] = bad
    with pytest.raises(Refused, match="NaN or infinite"):
        chain.decode(chain.encode(values, None, draw()).data, 20)


@with_feedback
def test_a_rest_that_grows_beyond_float32_is_refused(chain) -> None:
    huge = np.full(20, 3e38, np.float32)
    with pytest.raises(Refused, match=r"NaN|infinite"), np.errstate(over="ignore", invalid="ignore"):
        chain.encode(huge, huge, draw())


# ---- messages nobody sent


def refused_or_read(chain: Chain, data: bytes, n: int) -> None:
    try:
        values = chain.decode(data, n)
    except Refused:
        return
    assert values.shape == (n,)
    assert np.isfinite(values).all()


@chains
@few
@given(data=st.binary(max_size=400), n=st.integers(1, 60))
def test_noise(chain, data, n) -> None:
    refused_or_read(chain, data, n)


@chains
@few
@given(values=tame, place=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 3))
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_damaged_messages(chain, values, place, byte, cut) -> None:
    """One byte changed, and perhaps the end missing."""
    data = bytearray(chain.encode(values, None, draw()).data)
    data[place % len(data)] = byte
    refused_or_read(chain, bytes(data[: len(data) - cut]), len(values))


CODED = [chain for chain in CHAINS if chain.codes]
parts = st.binary(max_size=60)


@pytest.mark.parametrize("chain", CODED, ids=label)
@few
@given(places=parts, scale=parts, codes=parts, n=st.integers(1, 60))
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_well_formed_nonsense(chain, places, scale, codes, n) -> None:
    refused_or_read(chain, msgspec.msgpack.encode(Coded(places, scale, codes)), n)


@chains
@pytest.mark.parametrize("more", [-1, 1, 30])
def test_another_length_is_refused(chain, more) -> None:
    data = chain.encode(normal(40), None, draw()).data
    with pytest.raises(Refused):
        chain.decode(data, 40 + more * (8 if chain.codes else 1))


def listed(places: Sequence[int]) -> bytes:
    return np.array(places, "<u4").tobytes()


N = 1000
"""So many numbers that a few places travel as a list."""
WRONG_PLACES = {
    "beyond the end": listed([3, N]),
    "far beyond the end": listed([3, 2**32 - 1]),
    "out of order": listed([5, 3]),
    "twice": listed([5, 5]),
    "half a number": listed([3, 5])[:-1],
    "longer than a bitmap": bytes(-(-N // 8) + 4),
    "none": b"",
    "one too few": listed([3]),
    "one too many": listed([3, 5, 7]),
}


@pytest.mark.parametrize("name", WRONG_PLACES)
@pytest.mark.parametrize(
    ("chain", "codes"), [(chain_of(TOP_K), bytes(8)), (chain_of(TOP_K, QUANTISE), bytes(2))], ids=["plain", "quantised"]
)
def test_wrong_places_are_refused(chain, codes, name) -> None:
    scale = b"" if chain.coder.length(1) == 4 else struct.pack("<f", 1.0)
    good = chain.decode(msgspec.msgpack.encode(Coded(listed([3, 5]), scale, codes)), N)
    assert not good.any()
    with pytest.raises(Refused):
        chain.decode(msgspec.msgpack.encode(Coded(WRONG_PLACES[name], scale, codes)), N)


@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 999, 1000])
def test_places_as_a_list_or_as_a_bitmap(k) -> None:
    """Whichever is shorter, and each is read as what it is: 31 places are 124 bytes, the bitmap 125."""
    chain = chain_of({"kind": "top-k", "fraction": k / N})
    values = normal(N)
    sent = chain.encode(values, None, draw())
    places = msgspec.msgpack.decode(sent.data, type=Coded).places
    assert len(places) == min(4 * k, 125)
    assert np.flatnonzero(chain.decode(sent.data, N)).tolist() == sorted(np.argsort(-np.abs(values))[:k].tolist())


@pytest.mark.parametrize(
    "scale", [b"", b"\0\0\0", bytes(5), *(struct.pack("<f", s) for s in (np.nan, np.inf, -1.0))], ids=bytes.hex
)
@pytest.mark.parametrize("chain", [c for c in CODED if c.coder.length(1) == 1], ids=label)
def test_wrong_scales_are_refused(chain, scale) -> None:
    sent = msgspec.msgpack.decode(chain.encode(normal(50), None, draw()).data, type=Coded)
    with pytest.raises(Refused, match="scale"):
        chain.decode(msgspec.msgpack.encode(msgspec.structs.replace(sent, scale=scale)), 50)


# ---- what may follow what

STAGES = {"clip": 0, "top-k": 0, "quantise": 1, "sign": 1, "nnm": 2, "median": 3, "krum": 3}
ORDERS = [order for size in (1, 2, 3) for order in itertools.product(STAGES, repeat=size)]


def filters_of(order: Sequence[str]) -> tuple[dict[str, Any], ...]:
    return tuple({"kind": kind} | ({"norm": 1.0} if kind == "clip" else {}) for kind in order)


def test_chains_go_from_shaping_over_coding_to_combining() -> None:
    """All chains of up to three: any number of shapers, then one coder, any number of mixers, then one combiner."""
    for order in ORDERS:
        stages = [STAGES[kind] for kind in order]
        right = stages == sorted(stages) and stages.count(1) <= 1 and stages.count(3) <= 1
        try:
            chain_of(*filters_of(order)).check_order()
        except FedzeroError as refusal:
            assert not right, order
            assert any(repr(kind) in str(refusal) for kind in order)
        else:
            assert right, order


@pytest.mark.parametrize(("kind", "least"), [("median", 2), ("trimmed-mean", 3), ("krum", 5), ("nnm", 3)])
def test_combiners_need_comparable_numbers_of_enough_clients(kind, least) -> None:
    chain = chain_of({"kind": kind})
    chain.check("x", True, least)
    with pytest.raises(FedzeroError, match=f"'{kind}' needs at least {least} clients per round"):
        chain.check("x", True, least - 1)
    with pytest.raises(FedzeroError, match=f"'{kind}' compares .* with x they belong to"):
        chain.check("x", False, 10)
    chain_of(CLIP, TOP_K, QUANTISE, {"kind": "server-clip", "norm": 1.0}).check("x", False, 1)


# ---- what a chain promises is enforced by the server


PROMISING = [
    chain_of(CLIP),
    chain_of(CLIP, QUANTISE),
    chain_of(CLIP, SIGN),
    chain_of(CLIP, TOP_K),
    chain_of(TOP_K, CLIP, SIGN),
    chain_of(FEEDBACK, CLIP, QUANTISE),
]


@pytest.mark.parametrize("chain", PROMISING, ids=label)
@few
@given(values=vectors, scale=st.sampled_from([1e-3, 1.0, 1e3]))
@example(values=np.full(900, 1.0, np.float32), scale=1.0)
@example(values=np.eye(1, 900, dtype=np.float32)[0], scale=1e3)
def test_clipped_numbers_are_let_in_and_longer_ones_are_not(chain, values, scale) -> None:
    """The bound allows for what a coder adds: ‖v‖ (1 + √n/127) of 8 bits, nothing of signs."""
    sent = chain.encode(values, None, draw())
    assert chain.decode(sent.data, len(values)).tobytes() == sent.values.tobytes()
    unclipped = Chain(tuple(link for link in chain.links if link.name != "clip"))
    longest = chain.promise(len(values)).length
    long = (np.where(values == 0, 0.1, np.sign(values)) * 3 * scale).astype(np.float32)
    sent = unclipped.encode(long, None, draw())
    if np.linalg.norm(sent.values.astype(np.float64)) <= longest:
        assert chain.decode(sent.data, len(values)).tobytes() == sent.values.tobytes()
    else:
        with pytest.raises(Refused, match="where clipping leaves at most"):
            chain.decode(sent.data, len(values))


@pytest.mark.parametrize("rest", [(), (QUANTISE,), (SIGN,), (CLIP,)], ids=str)
def test_more_places_than_top_k_leaves_are_refused(rest) -> None:
    """20 % of 50 numbers are 10; a client that applies another fraction sends more."""
    chain, other = (chain_of({**TOP_K, "fraction": f}, *rest) for f in (0.2, 0.22))
    assert np.count_nonzero(chain.decode(chain.encode(normal(50), None, draw()).data, 50)) <= 10
    with pytest.raises(Refused, match="sent 11 numbers with their places where at most 10 of 50 are left"):
        chain.decode(other.encode(normal(50), None, draw()).data, 50)


def test_what_was_left_out_before_has_no_bound() -> None:
    """A link with feedback after the clip adds what it left out in earlier turns."""
    assert chain_of(CLIP, FEEDBACK).promise(50) == Promise(50, 10, np.inf)
    assert chain_of(TOP_K, SIGN_FEEDBACK).promise(50) == Promise(50, 50, np.inf)
    assert chain_of(FEEDBACK, CLIP).promise(50).length == pytest.approx(3.0, rel=1e-4)
