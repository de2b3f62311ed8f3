/* Root, exponential and logarithm by + − × ÷ and bits: the core needs no mathematical library. */
#include "vector.h"

/* One binary digit after the other of a number with 54 of them, of which the last decides the rounding. */
double fz_sqrt(double x) {
#ifdef __wasm__
    return __builtin_sqrt(x); /* an instruction, correctly rounded */
#else
    uint64_t bits = fz_bits64(x);
    if (!(x > 0) || !fz_is_finite64(x)) return x; /* 0, infinity and NaN are their own; others do not occur */
    int exponent = (int)(bits >> 52);
    uint64_t mantissa = bits & 0xFFFFFFFFFFFFFu;
    if (exponent) mantissa |= 1ull << 52;
    else exponent = 1;
    while (!(mantissa >> 52)) {
        mantissa <<= 1;
        exponent--;
    }
    exponent -= 1023;
    if (exponent & 1) {
        mantissa <<= 1;
        exponent--;
    }
    /* mantissa/2⁵² is in [1, 4). Two of its bits give one of the root; 53 + 1 bits are wanted. */
    uint64_t root = 0, rest = 0, window = mantissa << 10; /* 54 significant bits at the top */
    for (int i = 0; i < 54; i++) {
        rest = rest << 2 | window >> 62;
        window <<= 2;
        root <<= 1;
        if (rest >= 2 * root + 1) {
            rest -= 2 * root + 1;
            root++;
        }
    }
    root = (root >> 1) + (root & 1); /* a root is never half-way between two numbers */
    return fz_double((root & 0xFFFFFFFFFFFFFu) + ((uint64_t)(exponent / 2 + 1023 + (int)(root >> 53)) << 52));
#endif
}

/* exp x = 2ᵏ exp r with |r| ≤ ln 2/2 and a polynomial of degree 6, for x ≤ 0; 0 below −87. Adding 1.5·2²³ rounds x/ln 2 to
 * the integer k, whose lowest bits are then the lowest of the sum. Relative error below 3·10⁻⁷. */
static fz_v exponential(fz_v x) {
    fz_u small = fz_below(x, -87.0f);
    fz_v clipped = fz_as_numbers((fz_as_bits(x) & ~small) | (fz_as_bits(fz_all(-87.0f)) & small));
    fz_v sum = clipped * 1.44269504f + 12582912.0f, k = sum - 12582912.0f;
    fz_v r = clipped - k * 0.693359375f; /* exact: the constant has few digits */
    r = r - k * -2.12194440e-4f;
    fz_v p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 0.16666667f;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;
    fz_v power = fz_as_numbers((fz_as_bits(p) + (fz_as_bits(sum) << 23)) & ~small);
    return power + (clipped - clipped); /* NaN stays */
}

void fz_exponentials(float *values, size_t count) {
    size_t i = 0;
    for (; i + FZ_LANES <= count; i += FZ_LANES) fz_put(values + i, exponential(fz_get(values + i)));
    if (i == count) return;
    float rest[FZ_LANES] = {0};
    memcpy(rest, values + i, 4 * (count - i));
    fz_put(rest, exponential(fz_get(rest)));
    memcpy(values + i, rest, 4 * (count - i));
}

/* log x = k ln 2 + log m with m in [√½, √2) and s = (m − 1)/(m + 1), for normal x > 0. */
float fz_log(float x) {
    uint32_t bits = fz_bits(x);
    int32_t k = (int32_t)(bits - 0x3F3504F3u) >> 23;
    if (!(x > 0) || !fz_is_finite(x)) return x > 0 ? x : fz_float(0x7FC00000u);
    float m = fz_float(bits - ((uint32_t)k << 23)), s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = 0.111111111f;
    p = p * z + 0.142857143f;
    p = p * z + 0.2f;
    p = p * z + 0.333333333f;
    p = p * z;
    float low = (float)k * -2.12194440e-4f + 2.0f * (s * p);
    return (low + 2.0f * s) + (float)k * 0.693359375f;
}
