/* Root, exponential and logarithm by + − × ÷ and bits: the core needs no mathematical library. */
#include "internal.h"

/* One binary digit after the other of a number with 54 of them, of which the last decides the rounding. */
double fz_sqrt(double x) {
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
}

/* exp x = 2ᵏ exp r with |r| ≤ ln 2/2 and a polynomial of degree 6; relative error below 3·10⁻⁷ for x ≤ 0, 0 below −87. */
float fz_exp(float x) {
    if (!(x >= -87.0f)) return x < 0 ? 0 : x; /* NaN stays */
    if (x > 88.0f) return fz_float(0x7F800000u);
    float scaled = x * 1.44269504f;
    int32_t k = (int32_t)(scaled < 0 ? scaled - 0.5f : scaled + 0.5f);
    float r = x - (float)k * 0.693359375f; /* exact: the constant has few digits */
    r = r - (float)k * -2.12194440e-4f;
    float p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 0.16666667f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    return (p + 1.0f) * fz_float((uint32_t)(k + 127) << 23);
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
