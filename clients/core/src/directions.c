/* Words and signs of a key (docs/directions.md, Blocks, Rademacher, Rank one). */
#include "internal.h"

void fz_block(uint64_t key, uint64_t block, uint32_t ordinal, uint32_t domain, uint32_t words[4]) {
    fz_philox(key, block, ordinal, domain, words);
}

static void factor(uint64_t key, uint32_t ordinal, uint32_t domain, uint32_t count, float *signs) {
    for (uint32_t begin = 0; begin < count; begin += 128) {
        uint32_t words[4], most = fz_least(128, count - begin);
        fz_philox(key, begin / 128, ordinal, domain, words);
        for (uint32_t i = 0; i < most; i++) signs[begin + i] = words[i / 32] >> (i % 32) & 1 ? -1.0f : 1.0f;
    }
}

void fz_row_signs(uint64_t key, uint32_t ordinal, uint32_t count, float *signs) {
    factor(key, ordinal, FZ_DOMAIN_ROWS, count, signs);
}

void fz_column_signs(uint64_t key, uint32_t ordinal, uint32_t count, float *signs) {
    factor(key & FZ_COLUMN_KEY, ordinal, FZ_DOMAIN_COLUMNS, count, signs);
}
