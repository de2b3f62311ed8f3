/* The client's half of [privacy]: vectors of bounded norm on a grid of integers (docs/privacy.md, Integers). Arithmetic in
 * float64 is in the order of NumPy; what the promise rests on, the norm of the integers, is checked in integers.
 */
#include "internal.h"

/* Fixed point: 64 bits before the point, 320 behind it. */
enum { WORDS = 12, POINT = 320, ATTEMPTS = 1000, MOST = 1 << 20, CHUNK = 8 };

/* fixed += value · 2^(bit − POINT) */
static void add_at(uint32_t *fixed, uint64_t value, int bit) {
    uint32_t shift = (uint32_t)bit % 32, carry = 0;
    uint32_t parts[3] = {(uint32_t)(value << shift), (uint32_t)(value << shift >> 32),
                         shift ? (uint32_t)(value >> (64 - shift)) : 0};
    for (int i = 0; bit / 32 + i < WORDS; i++) {
        uint64_t sum = (uint64_t)fixed[bit / 32 + i] + carry + (i < 3 ? parts[i] : 0);
        fixed[bit / 32 + i] = (uint32_t)sum;
        carry = (uint32_t)(sum >> 32);
    }
}

static uint64_t whole_part(const uint32_t *fixed) { return fixed[WORDS - 2] | (uint64_t)fixed[WORDS - 1] << 32; }

/* 1 + ⌊√(P·2⁴⁰ − 1)⌋: the smallest multiple of 2⁻²⁰ that is not below √P, in units of 2⁻²⁰. */
static uint64_t root_above(uint32_t count) {
    uint64_t square = ((uint64_t)count << 40) - 1, root = 0;
    for (uint64_t bit = 1ull << 31; bit; bit >>= 1)
        if ((root + bit) * (root + bit) <= square) root += bit;
    return root + 1;
}

/* L = ⌈(sC)² + P/4 + sC + √P/2⌉ */
uint64_t fz_allowance(double clip, int32_t exponent, uint32_t count) {
    uint32_t sum[WORDS] = {0}, norm[WORDS] = {0};
    if (!(clip > 0) || !fz_is_finite64(clip) || exponent < -100 || exponent > 100 || count < 1 || count > MOST) return 0;
    uint64_t bits = fz_bits64(clip), mantissa = bits & 0xFFFFFFFFFFFFFu, root = root_above(count);
    int power = (int)(bits >> 52) - 1075 + exponent; /* sC = mantissa · 2^power */
    if (bits >> 52) mantissa |= 1ull << 52;
    else power++;
    if (power + 52 >= 30) return 0;
    if (power < -153) { /* below 2⁻¹⁰⁰ it only decides that something is left to round up */
        mantissa = 1;
        power = -153;
    }
    add_at(norm, mantissa, POINT + power);
    add_at(norm, root, POINT - 20);
    if (whole_part(norm) >= 1u << 30) return 0;
    uint64_t high = mantissa >> 32, low = mantissa & 0xFFFFFFFFu;
    add_at(sum, low * low, POINT + 2 * power);
    add_at(sum, 2 * high * low, POINT + 2 * power + 32);
    add_at(sum, high * high, POINT + 2 * power + 64);
    add_at(sum, mantissa, POINT + power);
    add_at(sum, count, POINT - 2);
    add_at(sum, root, POINT - 21);
    uint32_t rest = 0;
    for (int i = 0; i < WORDS - 2; i++) rest |= sum[i];
    return whole_part(sum) + (rest != 0);
}

/* The vector with its norm bounded, times 2^exponent. */
static void bounded(const float *values, uint32_t count, double clip, double scale, int normalise, double *out) {
    double largest = 0;
    int finite = 1;
    for (uint32_t i = 0; i < count; i++) {
        double size = values[i] < 0 ? -(double)values[i] : (double)values[i];
        finite &= fz_is_finite(values[i]);
        if (size > largest) largest = size;
    }
    for (uint32_t i = 0; i < count; i++) out[i] = finite && largest > 0 ? (double)values[i] / largest : 0;
    double length = fz_norm(out, count);
    int whole = !finite || (!normalise && largest * length <= clip);
    for (uint32_t i = 0; i < count; i++) {
        double unit = length > 0 ? out[i] / length : out[i];
        out[i] = (whole ? (finite ? (double)values[i] : 0) : clip * unit) * scale;
    }
}

/* One rounding at random; whether the squared norm is allowed. A negative number: the source failed. */
static int rounded(const double *scaled, uint32_t count, uint64_t allowance, fz_entropy entropy, void *state,
                   int32_t *whole) {
    uint64_t square = 0;
    uint8_t bytes[8 * CHUNK];
    for (uint32_t i = 0; i < count; i++) {
        if (i % CHUNK == 0 && entropy(state, bytes, 8 * (size_t)fz_least(CHUNK, count - i)) != FZ_OK) return -1;
        double coin = (double)(fz_load64(bytes + 8 * (i % CHUNK)) >> 11) * 1.1102230246251565e-16; /* 2⁻⁵³ */
        int32_t down = (int32_t)scaled[i];
        if ((double)down > scaled[i]) down--;
        whole[i] = down + (coin < scaled[i] - (double)down);
        int64_t wide = whole[i];
        if (square <= allowance) square += (uint64_t)(wide * wide);
    }
    return square <= allowance;
}

fz_status fz_private(const float *values, uint32_t count, double clip, int32_t exponent, int normalise,
                     fz_entropy entropy, void *state, double *scratch, int32_t *whole) {
    uint64_t allowance = fz_allowance(clip, exponent, count);
    if (!entropy) return FZ_ENTROPY;
    if (!allowance) return FZ_ARGUMENT;
    double scale = fz_double((uint64_t)(1023 + exponent) << 52);
    bounded(values, count, clip, scale, normalise, scratch);
    int fits = fz_norm(scratch, count) <= clip * scale * (1 + 1e-9);
    for (int attempt = 0, done = 0; fits && !done && attempt < ATTEMPTS; attempt++) {
        done = rounded(scratch, count, allowance, entropy, state, whole);
        if (done < 0) {
            memset(whole, 0, 4 * (size_t)count);
            return FZ_ENTROPY;
        }
        fits = done || attempt + 1 < ATTEMPTS;
    }
    if (!fits) memset(whole, 0, 4 * (size_t)count);
    return FZ_OK;
}
