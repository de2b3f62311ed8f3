/* What the files of the core share: bytes, bits of numbers, Philox. Nothing here is part of the interface. */
#ifndef FZ_INTERNAL_H
#define FZ_INTERNAL_H

#include "fedzero_core.h"

/* The whole of the C library that is needed; string.h does not exist on every target. */
void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memset(void *to, int byte, size_t count);

#if defined(FAST_MATH) || defined(__FAST_MATH__)
#error "fast arithmetic changes the bits of a fold"
#endif

#define FZ_SIGN 0x80000000u

static inline uint32_t fz_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float fz_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint64_t fz_bits64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

static inline double fz_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

static inline int fz_is_finite(float value) { return (fz_bits(value) & 0x7F800000u) != 0x7F800000u; }

static inline int fz_is_finite64(double value) {
    return (fz_bits64(value) >> 52 & 0x7FF) != 0x7FF;
}

/* Numbers in memory and in messages are little-endian, whatever the machine is. */
static inline uint64_t fz_load64(const uint8_t *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

static inline void fz_store64(uint8_t *bytes, uint64_t value) {
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> (8 * i));
}

static inline uint32_t fz_load32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline void fz_store32(uint8_t *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> (8 * i));
}

static inline uint32_t fz_least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static inline size_t fz_aligned(size_t bytes) { return (bytes + 15) & ~(size_t)15; }

enum { FZ_DOMAIN_RADEMACHER = 2, FZ_DOMAIN_ROWS = 4, FZ_DOMAIN_COLUMNS = 5, FZ_DOMAIN_SAMPLE = 6, FZ_DOMAIN_COINS = 7 };

#define FZ_COLUMN_KEY 0xFFFFFFFFu /* keys with equal low halves share the signs of columns */

/* BLAKE2b in its sequential form (blake2b.c). */
void fz_blake2b(uint8_t *out, uint32_t length, const uint8_t *key, uint32_t key_length, const char *person,
                const uint8_t *message, size_t count);

/* The same in pieces, for messages that are never whole in memory. */
typedef struct {
    uint64_t state[8], count;
    uint8_t block[128];
    uint32_t filled, length;
} fz_hash;
void fz_hash_begin(fz_hash *hash, uint32_t length, const uint8_t *key, uint32_t key_length, const char *person);
void fz_hash_add(fz_hash *hash, const uint8_t *bytes, size_t count);
void fz_hash_end(fz_hash *hash, uint8_t *out);

/* y[i] ← the products of one row of `rows` with all rows of `weights`, plus bias (dense.c). */
void fz_products(const float *x, size_t stride, uint32_t rows, const float *weights, const float *bias, uint32_t inputs,
                 uint32_t outputs, float *y, size_t y_stride);

/* Σ of `count` numbers in the order of NumPy's sum, so that means and norms have its bits (slopes.c). */
double fz_sum(const double *values, size_t count);
double fz_norm(const double *values, size_t count);

/* √x, correctly rounded, without a floating-point root (numbers.c). */
double fz_sqrt(double x);
void fz_exponentials(float *values, size_t count); /* x ← exp x, for x ≤ 0 */
float fz_log(float x);

#endif
