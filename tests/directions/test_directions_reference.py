"""The NumPy reference against published vectors, golden digests and a scalar reading of docs/directions.md."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import reference, spec
from fedzero.directions.spec import Domain

HERE = Path(__file__).parent
GOLDEN = runpy.run_path(str(HERE / "golden.py"))
KEPT = json.loads((HERE / "golden.json").read_text())
DOCS = HERE.parents[1] / "docs" / "directions.md"

keys = st.integers(0, 2**64 - 1)
tensors = st.integers(0, 2**32 - 1)
words = st.integers(0, 2**32 - 1)
quick = settings(max_examples=40, deadline=None, derandomize=True)


def test_golden_digests():
    """All but the sizes of 2²⁴: those are checked on the compiled kernels, and on both by `golden.py --check`."""
    derived = GOLDEN["derive_table"](GOLDEN["REFERENCE"], large=False)
    derived |= {"rounding": GOLDEN["rounding"](), "version": spec.VERSION}
    derived |= {part: GOLDEN[part]() for part in ("keys", "blocks", "pairs")}
    assert derived.keys() | {"large"} == KEPT.keys()
    for part, table in derived.items():
        assert table == KEPT[part], part


def test_the_page_quotes_the_golden_file():
    """Whoever changes the stream must change the page: its digests are those of golden.json."""
    page = DOCS.read_text()
    kept = {value for part in KEPT.values() if isinstance(part, dict) for value in part.values()}
    quoted = re.findall(r"`([0-9a-f]{64})`", page)
    assert len(quoted) >= 30
    assert set(quoted) <= kept
    assert f"version {spec.VERSION}" in page.splitlines()[0]
    for coefficient in (*spec.LOG2, *spec.SIN, *spec.COS):
        assert f"`{np.float32(coefficient).view(np.uint32):08X}`" in page


def rows(title: str, cells: int) -> list[list[str]]:
    """Rows of so many cells under a heading of the page's test vectors."""
    section = DOCS.read_text().split(f"### {title}\n")[-1].split("\n### ")[0]
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in section.splitlines()]
    return [row for row in table if len(row) == cells and re.fullmatch("[0-9a-f]{16}", row[0])]


@pytest.mark.parametrize(
    ("title", "make", "places"),
    [
        ("Gaussian", lambda *a: reference.gaussian(*a).view(np.uint32), (0, 1, 31, 32, 64, 96, 128)),
        ("Rounding", reference.rounding_bits, (0, 1, 32, 64, 224, 256)),
        ("Rademacher", reference.rademacher, (0, 256, 4096)),
    ],
)
def test_first_values_on_the_page(title, make, places):
    table = rows(title, 2 + len(places))
    assert len(table) == 5
    for key, tensor, *values in table:
        z = make(int(key, 16), 2**32 - 1 if tensor == "2³²−1" else int(tensor), 4200)
        if title == "Rademacher":
            assert values == ["".join("+" if v > 0 else "-" for v in z[i : i + 16]) for i in places]
        else:
            assert [int(value, 16) for value in values] == [z[i] for i in places]


def test_rounding_table_on_the_page():
    table = [
        row for row in DOCS.read_text().splitlines() if re.search("` \\| `[0-9a-f]{4}( [0-9a-f]{4}){3}` \\| `", row)
    ]
    assert len(table) == 10
    random = np.array([0, 0x4000, 0x8000, 0xFFFF], np.uint32)
    for row in table:
        pattern, brain, half = re.findall("`([^`]*)`", row)
        x = np.full(4, int(pattern, 16), np.uint32).view(np.float32)
        assert brain == " ".join(f"{b:04x}" for b in reference.round_bfloat16(x, random))
        assert half == " ".join(f"{b:04x}" for b in reference.round_float16(x, random))


def section(title: str) -> str:
    return DOCS.read_text().split(f"### {title}\n")[-1].split("\n### ")[0]


def test_words_and_pairs_on_the_page_are_those_of_the_golden_file():
    words = "`([0-9a-f]{8}(?: [0-9a-f]{8})*)`"
    blocks = re.findall(rf"(?m)^\| {words} \| {words} \| {words} \|$", section("Philox"))
    assert len(blocks) == 3
    found = {f"counter {counter} key {key}": words for counter, key, words in blocks}
    of_key_0 = re.findall(rf"\| block (\S+), domain (\d) \| \| {words} \|", section("Philox"))
    assert len(of_key_0) == 4
    for number, domain, words_there in of_key_0:
        counter = "00000000 00000001" if number == "2³²" else f"{int(number):08x} 00000000"
        found[f"counter {counter} 00000000 0000000{domain} key 00000000 00000000"] = words_there
    assert found.items() <= KEPT["blocks"].items()
    pairs = re.findall(rf"(?m)^\| {words} \| {words} \| {words} \|$", section("Gaussian"))
    assert len(pairs) == 6
    assert {f"{a} {b}": pair for a, b, pair in pairs}.items() <= KEPT["pairs"].items()


def test_the_page_explains_every_entry_of_the_golden_file():
    """Parts by name, each with the form of its names; and what is said of sizes is so."""
    page = section("The file golden.json")
    place, hexadecimal = r"key 0x[0-9a-f]{16} tensor \d+ n \d+", r"[0-9a-f]{8}"
    forms = {
        "directions": f"(gaussian|rademacher) {place}",
        "large": f"(gaussian|rademacher) {place}",
        "matrices": rf"rank1 {place} columns \d+",
        "rounding": place,
        "rounded": rf"(bfloat16|float16) scale 2\^-?\d+ {place}",
        "programs": r"(SGD|MOMENTUM|ADAM|SIGN) (gaussian|rademacher|rank1) (float32|bfloat16|float16)( columns \d+)?",
        "sums": f"(checksum gaussian|checksum rounding|squares) {place}",
        "keys": ".*",
        "blocks": f"counter {hexadecimal}( {hexadecimal}){{3}} key {hexadecimal} {hexadecimal}",
        "pairs": f"{hexadecimal} {hexadecimal}",
    }
    assert forms.keys() | {"version"} == KEPT.keys()
    for part, form in forms.items():
        assert f"`{part}`" in page
        assert all(re.fullmatch(form, name) for name in KEPT[part]), part
    stated = {int(n) for n in re.search("n = (5025), (5120) and (4500)", section("Digests")).groups()}
    columns = {int(name.rpartition(" ")[2]) for name in KEPT["programs"] if "columns" in name}
    assert {rows * c for rows, c in ((75, 67), (10, 512), (3, 1500)) if c in columns} == stated


# -- Philox ------------------------------------------------------------------------------------------------------

RANDOM123 = [  # counter, key, words; from kat_vectors of Random123
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), RANDOM123)
def test_philox_known_answers(counter, key, expected):
    c0, c1, tensor, domain = counter
    blocks = np.array([c0 | c1 << 32], np.uint64)
    got = reference.philox(blocks, tensor, domain, key[0] | key[1] << 32)
    assert tuple(int(word[0]) for word in got) == expected


# -- a second implementation, one coordinate at a time, from the page alone --------------------------------------


def scalar_philox(block: int, tensor: int, domain: int, key: int) -> list[int]:
    mask = 0xFFFFFFFF
    c = [block & mask, block >> 32, tensor, domain]
    k0, k1 = key & mask, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & mask, p0 >> 32 ^ c[3] ^ k1, p0 & mask]
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    return c


def bits(value: np.float32) -> int:
    return int(np.float32(value).view(np.uint32))


def number(pattern: int) -> np.float32:
    return np.uint32(pattern).view(np.float32)


def scalar_pair(a: int, b: int) -> tuple[np.float32, np.float32]:
    q0, q1, q2, q3, q4, q5, q6 = map(
        number, (0x3FB8AA46, 0xBF38AB8E, 0x3EF61796, 0xBEB7E712, 0x3E971750, 0xBE8ABD92, 0x3E346531)
    )
    s0, s1, s2 = map(number, (0x3FECBB64, 0xBF42A7D7, 0x3DBBF9CC))
    c0, c1, c2, c3 = map(number, (0x3F96B55F, 0xBFB9EDB9, 0x3E98E0BC, 0xBCC4D877))
    n = bits(np.float32(a | 1)) - 0x4F3504F3
    k = n >> 23
    t = number((n & 0x7FFFFF) + 0x3F3504F3) - np.float32(1)
    q = (((((q6 * t + q5) * t + q4) * t + q3) * t + q2) * t + q1) * t + q0
    r = np.sqrt(np.float32(-k) - t * q)
    x = number((b & 0x7FFFFF) | 0x3F800000) - np.float32(1.5)
    y = x * x
    sine = (((s2 * y + s1) * y + s0) * x) * r
    cosine = (((c3 * y + c2) * y + c1) * y + c0) * r
    cosine = number(bits(cosine) ^ (b & 0x80000000))
    return (sine, cosine) if b & 0x40000000 else (cosine, sine)


def scalar_gaussian(key: int, tensor: int, i: int) -> np.float32:
    w = scalar_philox(32 * (i // 128) + i % 32, tensor, 1, key)
    return (*scalar_pair(w[0], w[1]), *scalar_pair(w[2], w[3]))[i // 32 % 4]


def scalar_rademacher(key: int, tensor: int, i: int) -> int:
    w, m = scalar_philox(32 * (i // 4096) + i // 8 % 32, tensor, 2, key), i // 256 % 16
    return 1 - 2 * (w[m // 4] >> 8 * (m % 4) + i % 8 & 1)


def scalar_rounding(key: int, tensor: int, i: int) -> int:
    w, j = scalar_philox(32 * (i // 256) + i % 32, tensor, 3, key), i // 32 % 8
    return w[j // 2] >> 16 * (j % 2) & 0xFFFF


@quick
@given(keys, tensors, st.lists(st.integers(0, 20_000), min_size=20, max_size=20))
def test_streams_follow_the_page(key, tensor, places):
    n = max(places) + 1
    z, s, r = (f(key, tensor, n) for f in (reference.gaussian, reference.rademacher, reference.rounding_bits))
    for i in places:
        assert bits(z[i]) == bits(scalar_gaussian(key, tensor, i))
        assert s[i] == scalar_rademacher(key, tensor, i)
        assert r[i] == scalar_rounding(key, tensor, i)


@quick
@given(words, words)
def test_pairs_follow_the_page(a, b):
    got = reference.box_muller(np.array([a], np.uint32), np.array([b], np.uint32))
    assert [bits(v[0]) for v in got] == [bits(v) for v in scalar_pair(a, b)]


PAIRS = [  # the page's own table
    (0x00000000, 0x00400000, 0x40D5224C, 0x00000000),
    (0x00000000, 0xFFC00000, 0x00000000, 0xC0D5224C),
    (0xFFFFFFFF, 0x00000000, 0x00000000, 0x80000000),
    (0x80000000, 0x00000000, 0x3F55224C, 0xBF552263),
    (0x12345678, 0x9ABCDEF0, 0xC0130CD3, 0xBDB4C932),
    (0xB504F333, 0x7FFFFFFF, 0x3F16B569, 0x3F16B55D),
]


@pytest.mark.parametrize(("a", "b", "first", "second"), PAIRS)
def test_pairs_at_the_corners(a, b, first, second):
    got = reference.box_muller(np.array([a], np.uint32), np.array([b], np.uint32))
    assert [bits(v[0]) for v in got] == [first, second]


def test_the_scalar_reading_gives_the_words_and_pairs_of_the_golden_file():
    """Whoever reads the page alone, and has nothing but the file to compare with."""
    for name, kept in KEPT["blocks"].items():
        c0, c1, tensor, domain, k0, k1 = (int(word, 16) for word in re.findall("[0-9a-f]{8}", name))
        found = scalar_philox(c0 | c1 << 32, tensor, domain, k0 | k1 << 32)
        assert " ".join(f"{word:08x}" for word in found) == kept
    for name, kept in KEPT["pairs"].items():
        a, b = (int(word, 16) for word in name.split())
        assert " ".join(f"{bits(value):08x}" for value in scalar_pair(a, b)) == kept


# -- tails and prefixes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [reference.gaussian, reference.rademacher, reference.rounding_bits])
def test_a_shorter_tensor_is_a_prefix(make):
    whole = make(9, 2, 8300)
    for n in (0, 1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 4095, 4096, 4097, 8192, 8299):
        part = make(9, 2, n)
        assert part.shape == (n,)
        assert part.dtype == whole.dtype
        np.testing.assert_array_equal(part, whole[:n])


@pytest.mark.parametrize("make", [reference.gaussian, reference.rademacher, reference.rounding_bits])
def test_key_tensor_and_both_halves_of_the_key_matter(make):
    places = [(0, 0), (1, 0), (1 << 32, 0), (1 << 63, 0), (0, 1), (0, 1 << 31)]
    streams = {make(key, tensor, 256).tobytes() for key, tensor in places}
    assert len(streams) == len(places)


def test_domains_are_different_streams():
    blocks = np.arange(64, dtype=np.uint64)
    assert len({reference.philox(blocks, 0, domain, 5)[0].tobytes() for domain in Domain}) == len(Domain)


def test_direction_picks_the_stream():
    np.testing.assert_array_equal(reference.direction(Domain.GAUSSIAN, 4, 1, 99), reference.gaussian(4, 1, 99))
    np.testing.assert_array_equal(reference.direction(Domain.RADEMACHER, 4, 1, 99), reference.rademacher(4, 1, 99))


# -- sums --------------------------------------------------------------------------------------------------------


def scalar_checksum(elements: list[int]) -> int:
    total, mask = 0, 2**64 - 1
    for i, b in enumerate(elements):
        h = i * 0x9E3779B97F4A7C15 + b & mask
        h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & mask
        h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & mask
        total += h ^ h >> 33
    return total & mask


@quick
@given(st.lists(words, max_size=50))
def test_checksum_follows_the_page(elements):
    assert reference.checksum(np.array(elements, np.uint32)) == scalar_checksum(elements)
    halves = [e & 0xFFFF for e in elements]
    assert reference.checksum(np.array(halves, np.uint16)) == scalar_checksum(halves)


def test_checksum_sees_every_bit_and_every_swap():
    base = reference.gaussian(1, 0, 64).view(np.uint32)
    flipped = [
        base ^ np.where(np.arange(64) == i, np.uint32(1 << b), np.uint32(0)) for i in range(64) for b in range(32)
    ]
    swapped = [base[np.r_[:i, i + 1, i, i + 2 : 64]] for i in range(63)]
    sums = [reference.checksum(x) for x in (base, *flipped, *swapped)]
    assert len(set(sums)) == len(sums)


@quick
@given(keys, tensors, st.integers(0, 700))
def test_squares_are_floors_in_units_of_two_to_the_minus_24(key, tensor, n):
    z = reference.gaussian(key, tensor, n)
    assert reference.squares(key, tensor, n) == sum(math.floor(float(np.float32(v * v)) * 2**24) for v in z)
