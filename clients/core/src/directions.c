/* Words and signs of a key (docs/directions.md, Blocks, Rademacher, Rank one). */
#include "vector.h"

/* Philox4x32-10. */
void fz_block(uint64_t key, uint64_t block, uint32_t ordinal, uint32_t domain, uint32_t words[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = ordinal, c3 = domain;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

static void factor(uint64_t key, uint32_t ordinal, uint32_t domain, uint32_t count, float *signs) {
    const fz_u one = fz_all_bits(0x3F800000u), top = fz_all_bits(FZ_SIGN); /* the bits of 1 with a sign */
    for (uint32_t begin = 0; begin < count; begin += 32) {
        uint32_t words[4], most = fz_least(32, count - begin), word = begin / 32 % 4, i = 0;
        if (word == 0) fz_block(key, begin / 128, ordinal, domain, words);
        fz_u bits = fz_all_bits(words[word]) * FZ_TO_THE_TOP;
        FZ_KEEP(bits);
        for (; i + FZ_LANES <= most; i += FZ_LANES)
            fz_put(signs + begin + i, fz_as_numbers((bits << (32 - i - FZ_LANES) & top) | one));
        for (; i < most; i++) signs[begin + i] = words[word] >> i & 1 ? -1.0f : 1.0f;
    }
}

void fz_row_signs(uint64_t key, uint32_t ordinal, uint32_t count, float *signs) {
    factor(key, ordinal, FZ_DOMAIN_ROWS, count, signs);
}

void fz_column_signs(uint64_t key, uint32_t ordinal, uint32_t count, float *signs) {
    factor(key & FZ_COLUMN_KEY, ordinal, FZ_DOMAIN_COLUMNS, count, signs);
}
