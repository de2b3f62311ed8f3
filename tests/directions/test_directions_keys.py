"""Keys: pinned, distinct, and moved by the secret only where they should be."""

from __future__ import annotations

import hashlib
import itertools
import json
import runpy
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import SHARED, Keys, derive, fingerprint
from fedzero.directions.keys import root_of, shift

HERE = Path(__file__).parent
SECRET = b"only the clients know"
ints = st.integers(-(2**63), 2**63 - 1)


def test_golden_keys():
    golden = runpy.run_path(str(HERE / "golden.py"))
    assert golden["keys"]() == json.loads((HERE / "golden.json").read_text())["keys"]


def test_key_is_blake2b_of_root_purpose_and_little_endian_integers():
    root = bytes(range(32))
    message = (3).to_bytes(8, "little") + (-1).to_bytes(8, "little", signed=True)
    expected = hashlib.blake2b(message, digest_size=8, key=root, person=b"direction").digest()
    assert derive(root, "direction", 3, -1) == int.from_bytes(expected, "little")
    # The personalisation is padded with zero bytes to 16.
    padded = hashlib.blake2b(message, digest_size=8, key=root, person=b"direction" + bytes(7)).digest()
    assert padded == expected


def test_keys_name_their_roots_and_purposes():
    keys = Keys.of_seed(7)
    assert keys.direction(1, 2, 3) == derive(root_of(7), "direction", 1, 2, 3, SHARED)
    assert keys.direction(1, 2, 3, 4) == derive(root_of(7), "direction", 1, 2, 3, 4)
    assert keys.rounding(5) == keys.rounding(5, 0) == derive(root_of(7), "rounding", 5, 0)


def test_keys_are_distinct_over_rounds_steps_directions_clients_and_purposes():
    keys = Keys.of_seed(0)
    some = [keys.direction(*place) for place in itertools.product(range(9), range(9), range(9), range(-1, 8))]
    some += [keys.rounding(r, s) for r, s in itertools.product(range(40), range(40))]
    some += [derive(keys.root, "direction", *[0] * count) for count in (0, 1, 2, 3, 5, 6)]
    some += [derive(keys.root, purpose, 0, 0, 0, SHARED) for purpose in ("batch", "cohort", "rounding")]
    assert len(set(some)) == len(some)
    assert max(some) > 2**63 > min(some) >= 0
    # Every bit of a key is used: each is set in about half of them.
    bits = np.unpackbits(np.array(some, "<u8").view(np.uint8).reshape(-1, 8), axis=1)
    assert np.all(np.abs(bits.mean(0) - 0.5) < 2.5 / np.sqrt(len(some)))


def test_seeds_give_distinct_roots():
    roots = {root_of(seed) for seed in range(-500, 500)}
    assert len(roots) == 1000
    assert {len(root) for root in roots} == {32}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(ints, max_size=5), st.lists(ints, max_size=5))
def test_different_numbers_give_different_keys(a, b):
    root = root_of(1)
    assert (derive(root, "direction", *a) == derive(root, "direction", *b)) == (a == b)


def test_secret_moves_the_directions_and_nothing_else():
    plain, private = Keys.of_seed(3), Keys.of_seed(3, SECRET)
    places = list(itertools.product(range(4), range(3), range(3), (SHARED, 0, 5)))
    assert not {plain.direction(*p) for p in places} & {private.direction(*p) for p in places}
    assert [plain.rounding(r) for r in range(20)] == [private.rounding(r) for r in range(20)]
    assert plain.root == private.root == plain.direction_root
    draws = [keys.generator("cohort", 4).integers(2**63, size=8).tolist() for keys in (plain, private)]
    assert draws[0] == draws[1]


def test_shift_depends_on_root_and_on_every_part_of_the_secret():
    root = root_of(3)
    shifted = {shift(root, secret) for secret in (SECRET, SECRET[:-1], SECRET + b"\0", SECRET[::-1])}
    assert len(shifted | {shift(root_of(4), SECRET), root}) == 6
    private = Keys.of_seed(3, SECRET)
    assert private.direction_root == shift(root, SECRET)
    assert private.direction(1, 2, 3) == derive(shift(root, SECRET), "direction", 1, 2, 3, SHARED)


def test_fingerprint_tells_secrets_apart_and_says_nothing_of_the_directions():
    marks = [fingerprint(bytes([a, b])) for a in range(40) for b in range(40)]
    assert len(set(marks)) == len(marks)
    assert len(fingerprint(SECRET)) == 16
    assert bytes.fromhex(fingerprint(SECRET)) not in shift(root_of(3), SECRET)


def test_generator_depends_on_purpose_and_numbers():
    keys = Keys.of_seed(1)
    draws = {
        keys.generator(purpose, *numbers).integers(2**63)
        for purpose in ("cohort", "batch")
        for numbers in ((), (0,), (1,), (0, 0), (1, 0))
    }
    assert len(draws) == 10
    assert keys.generator("cohort", 1).integers(2**63) == keys.generator("cohort", 1).integers(2**63)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_integers_beyond_64_bits_are_refused(number):
    with pytest.raises(struct.error):
        derive(root_of(0), "direction", number)
