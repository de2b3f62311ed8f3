"""What the numbers are for: distributions, independence, unbiased rounding. Keys are fixed: nothing is left to luck."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from fedzero.directions import Keys, cpu, reference
from fedzero.directions.spec import Domain
from fedzero.directions.terms import Program, Terms

N = 1 << 20
BOTH = pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RADEMACHER])


def direction(stream: Domain, key: int, tensor: int = 0, n: int = N) -> np.ndarray:
    out = torch.empty(n)
    cpu.generate(out, stream, key, tensor)
    return out.numpy()


def assert_mean(sample: np.ndarray, mean: float, deviation: float) -> None:
    """Within five standard errors."""
    assert abs(float(np.mean(sample, dtype=np.float64)) - mean) < 5 * deviation / math.sqrt(sample.size)


# -- distributions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_gaussian_moments(key):
    """E z^p = (p−1)!! for even p and 0 for odd p; Var z^p = E z^2p − (E z^p)²."""

    def moment(p: int) -> int:
        return 0 if p % 2 else math.prod(range(1, p, 2))

    z = direction(Domain.GAUSSIAN, key, n=1 << 22).astype(np.float64)
    power = np.ones_like(z)
    for p in range(1, 9):
        power *= z
        assert_mean(power, moment(p), math.sqrt(moment(2 * p) - moment(p) ** 2))


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_gaussian_distribution_by_kolmogorov_and_smirnov(key):
    z = direction(Domain.GAUSSIAN, key, tensor=5)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    # The four numbers of a block come from different words and formulas: each on its own.
    for plane in z.reshape(-1, 4, 32).transpose(1, 0, 2):
        assert stats.kstest(plane.reshape(-1), "norm").pvalue > 1e-3
    # The test has teeth: a scale that is wrong by one per cent is found.
    assert stats.kstest(z * np.float32(1.01), "norm").pvalue < 1e-6


def test_gaussian_tails_and_range():
    z = np.abs(direction(Domain.GAUSSIAN, 3, n=1 << 24))
    for limit in (2.0, 3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(limit) * z.size
        assert abs(np.count_nonzero(z > limit) - expected) < 5 * math.sqrt(expected)
    assert z.max() <= np.uint32(0x40D5224C).view(np.float32)


def test_radius_and_angle_cover_their_whole_range():
    """Every radius word gives a finite number; the largest one is √32·√(2 ln 2), rounded."""
    words = np.concatenate(
        [np.arange(1 << 16), 2**32 - 1 - np.arange(1 << 16), 2 ** np.arange(32), 2 ** np.arange(32) - 1]
    )
    words = words.astype(np.uint32)
    for angle in (0, 0x3FFFFF, 0x400000, 0x7FFFFF, 0xFFFFFFFF):
        first, second = reference.box_muller(words, np.full_like(words, angle))
        radius = np.hypot(first.astype(np.float64), second)
        exact = np.sqrt(-2 * np.log((words | np.uint32(1)).astype(np.float32) / 2.0**32))
        np.testing.assert_allclose(radius, exact, rtol=3e-6)
    assert exact.max() == pytest.approx(6.66043, abs=1e-4)


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_rademacher_moments(key):
    z = direction(Domain.RADEMACHER, key)
    assert set(np.unique(z)) == {-1.0, 1.0}
    assert_mean(z, 0, 1)
    # Each of the 4096 places of a group, each of the 8 bits of an octet, each of the 16 octets of a block.
    groups = z.reshape(-1, 16, 32, 8)
    for axes in ((0,), (0, 1, 2), (0, 2, 3)):
        means = groups.mean(axis=axes)
        assert np.max(np.abs(means)) < 5.5 / math.sqrt(N / means.size)


def test_rounding_bits_are_uniform():
    random = reference.rounding_bits(5, 1, 1 << 18)
    assert random.max() < 1 << 16
    assert stats.kstest(random / 2.0**16, "uniform").pvalue > 1e-3
    for shift in (0, 8):
        counts = np.bincount((random >> np.uint32(shift)) & np.uint32(0xFF), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3


@BOTH
def test_one_coordinate_over_many_keys(stream):
    """Neighbouring keys and neighbouring tensors are as good as random ones."""
    n = 8192
    by_key = np.array([direction(stream, key, n=1)[0] for key in range(n)])
    by_tensor = np.array([direction(stream, 1, tensor, n=1)[0] for tensor in range(n)])
    by_round = np.array([direction(stream, Keys.of_seed(1).direction(r, 0, 0), n=1)[0] for r in range(n)])
    for sample in (by_key, by_tensor, by_round):
        assert_mean(sample, 0, 1)
        assert abs(np.corrcoef(sample[1:], sample[:-1])[0, 1]) < 5 / math.sqrt(n)
        if stream is Domain.GAUSSIAN:
            assert stats.kstest(sample, "norm").pvalue > 1e-3


# -- independence ------------------------------------------------------------------------------------------------


def assert_uncorrelated(a: np.ndarray, b: np.ndarray) -> None:
    """Means of products of independent standardised samples: within five standard errors of zero."""
    products = (a - a.mean(dtype=np.float64)) * (b - b.mean(dtype=np.float64))
    assert abs(products.mean()) < 5 * a.std(dtype=np.float64) * b.std(dtype=np.float64) / math.sqrt(a.size)


@BOTH
def test_independent_across_keys_and_tensors(stream):
    places = [(0, 0), (1, 0), (2, 0), (1 << 32, 0), (2**64 - 1, 0), (0, 1), (0, 2), (1, 1), (0, 2**32 - 1)]
    samples = [direction(stream, *place, n=1 << 18) for place in places]
    for a, b in combinations(samples, 2):
        assert_uncorrelated(a, b)
        if stream is Domain.GAUSSIAN:
            assert_uncorrelated(a * a, b * b)


def test_independent_across_domains():
    n = 1 << 18
    blocks = np.arange(n, dtype=np.uint64)
    words = [reference.philox(blocks, 0, domain, 9)[0].astype(np.float64) for domain in Domain]
    numbers = [direction(s, 9, n=n) for s in (Domain.GAUSSIAN, Domain.RADEMACHER)]
    numbers.append(reference.rounding_bits(9, 0, n).astype(np.float64))
    for samples in (words, numbers):
        for a, b in combinations(samples, 2):
            assert_uncorrelated(a, b)


@BOTH
@pytest.mark.parametrize("lag", [1, 2, 8, 31, 32, 64, 96, 127, 128, 256, 4096])
def test_independent_along_the_stream(stream, lag):
    """Lag 32 pairs the two numbers of one Box–Muller pair, whose squares share a radius."""
    z = direction(stream, 4)
    assert_uncorrelated(z[lag:], z[:-lag])
    if stream is Domain.GAUSSIAN:
        assert_uncorrelated(z[lag:] ** 2, z[:-lag] ** 2)
        assert_uncorrelated(np.abs(z[lag:]), np.sign(z[:-lag]))


def test_secret_gives_unrelated_directions():
    plain, private = Keys.of_seed(3), Keys.of_seed(3, b"secret")
    a, b = (direction(Domain.GAUSSIAN, keys.direction(0, 0, 0), n=1 << 18) for keys in (plain, private))
    assert_uncorrelated(a, b)


def test_norm_from_integer_squares():
    for key, n in ((0, 1000), (5, 100_003)):
        z = direction(Domain.GAUSSIAN, key, 2, n).astype(np.float64)
        exact = math.fsum(z * z)
        counted = cpu.squares(key, 2, n, torch.device("cpu")) / 2**24
        assert 0 <= exact - counted + n * 2**-24 < 3 * n * 2**-24


# -- stochastic rounding -----------------------------------------------------------------------------------------

ROUNDERS = {torch.bfloat16: reference.round_bfloat16, torch.float16: reference.round_float16}
VALUES = {
    torch.bfloat16: [1.0 + 2**-9, -1.0 - 2**-20, 0.1, -3e-5, 1e30, 3.3e38, 1e-38, 1e-39, -3e-41],
    torch.float16: [
        *(1.0 + 2**-12, -0.1, 1e-3, 60000.1, -65503.9),
        *(2**-14 * 1.0001, 2**-14 * 0.9999, -(2**-15) * 1.3, 2**-16 * 1.7, -(2**-17) * 1.01),  # into the subnormals
    ],
}
DEEP = [2**-18 * 1.123456, -(2**-20) * 1.9, 2**-23 * 1.4, 2**-24 * 0.7, -(2**-25), 2**-30, 2**-39, 2**-41, 1e-40]


def decode(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(bits.view(np.int16)).view(dtype).double().numpy()


@pytest.mark.parametrize(("dtype", "value"), [(d, v) for d, values in VALUES.items() for v in values])
def test_rounding_is_exactly_unbiased(dtype, value):
    """Over all 2¹⁶ values of the random bits the mean is the number itself, and only its two neighbours occur."""
    x = np.full(1 << 16, value, np.float32)
    out = decode(ROUNDERS[dtype](x, np.arange(1 << 16, dtype=np.uint32)), dtype)
    low, high = out.min(), out.max()
    assert set(np.unique(out)) == {low, high}
    assert low <= float(x[0]) <= high
    up = np.count_nonzero(out == high)
    assert low + (high - low) * (up / 2**16) == float(x[0])  # exact in float64


@pytest.mark.parametrize("value", DEEP)
def test_deep_float16_subnormals_lose_less_than_two_to_the_minus_40(value):
    x = np.full(1 << 16, value, np.float32)
    out = decode(reference.round_float16(x, np.arange(1 << 16, dtype=np.uint32)), torch.float16)
    assert out.max() - out.min() <= 2.0**-24
    assert 0 <= abs(float(x[0])) - abs(out.mean()) < 2.0**-40
    if abs(value) < 2.0**-40:
        assert not out.any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [*((d, v) for d, values in VALUES.items() for v in values), *((torch.float16, v) for v in DEEP[:6])],
)
def test_rounding_is_unbiased_with_the_bits_of_the_stream(dtype, value):
    n = 1 << 18
    x, out = torch.full((n,), value), torch.empty(n, dtype=dtype)
    cpu.round_into(out, x, 12345, 1)
    values = out.double().numpy()
    low, high = values.min(), values.max()
    exact = float(x[0])
    p = (exact - low) / (high - low) if high > low else 0.0
    assert abs(values.mean() - exact) <= 5 * (high - low) * math.sqrt(p * (1 - p) / n) + 2.0**-40 * (
        dtype == torch.float16
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiny_steps_are_not_lost(dtype):
    """300 steps of a tenth of a unit: nearest rounding would stand still, this arrives on average."""
    n, steps = 4096, 300
    unit = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-10
    x = torch.ones(n, dtype=dtype)
    sign = torch.empty(n)
    cpu.generate(sign, Domain.RADEMACHER, 8, 0)
    tiny = [Terms.of([8], [unit / 10], Domain.RADEMACHER)] * 30
    for s in range(steps // 30):
        cpu.advance(x, (), Program.of(tiny, [30 * s + i for i in range(30)]), 0)
    # Between 1 and 2 the unit stays the same; one rounding has the variance p(1−p) units², p = 0.1.
    up, deviation = x[sign > 0].double(), unit * math.sqrt(steps * 0.1 * 0.9)
    assert abs(float(up.mean()) - 1 - steps * unit / 10) < 5 * deviation / math.sqrt(len(up))
    assert torch.all((torch.ones(n) + sign * unit / 10).to(dtype) == 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_representable_numbers_stay(dtype):
    """All 2¹⁶ patterns: whatever the random bits, a number the type can hold is not changed; NaN becomes one NaN."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype)
    for key in (0, 1, 2, 3):
        out = torch.empty_like(x)
        cpu.round_into(out, x.float(), key, 0)
        number = ~torch.isnan(x)
        assert torch.equal(out.view(torch.int16)[number], bits[number])
        assert set(out.view(torch.int16)[~number].tolist()) == {0x7FC0 if dtype == torch.bfloat16 else 0x7E00}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_infinities_nan_and_the_far_end(dtype):
    largest = torch.finfo(dtype).max
    source = torch.tensor([torch.inf, -torch.inf, torch.nan, -torch.nan, largest, -largest, 3.4028234e38]).repeat(500)
    out = torch.empty(len(source), dtype=dtype)
    cpu.round_into(out, source, 1, 0)
    out = out.float().reshape(500, 7)
    assert torch.all(out[:, 0] == torch.inf)
    assert torch.all(out[:, 1] == -torch.inf)
    assert torch.all(torch.isnan(out[:, 2:4]))
    assert torch.all(out[:, 4] == largest)
    assert torch.all(out[:, 5] == -largest)
    if dtype == torch.float16:
        assert torch.all(out[:, 6] == torch.inf)


def test_float16_between_the_largest_and_infinity():
    """65512 is a quarter of the way from 65504 to where 65536 would be."""
    out = torch.empty(1 << 16, dtype=torch.float16)
    cpu.round_into(out, torch.full((1 << 16,), 65512.0), 1, 0)
    assert set(out.tolist()) == {65504.0, math.inf}
    assert_mean(torch.isinf(out).numpy().astype(np.float64), 0.25, math.sqrt(0.25 * 0.75))


def test_rounding_depends_on_key_and_tensor_only():
    x = torch.full((4096,), 1.0 + 2**-9)
    results = []
    for key, tensor in ((1, 0), (2, 0), (1, 1), (1, 0)):
        out = torch.empty(4096, dtype=torch.bfloat16)
        cpu.round_into(out, x, key, tensor)
        results.append(out)
    assert torch.equal(results[0], results[3])
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
