/* Folds and steps: x ← x + Σ c z, all terms of a piece of a tensor while the piece is near (docs/directions.md, Fold and
 * view, Steps with memory). c z is c with another sign, so no product is rounded; terms are added in their order.
 */
#include "vector.h"

/* A piece of a tensor that is worked on at a time: of some neighbouring Philox blocks, each of which makes 16 runs of 8
 * neighbours, 256 apart; or a tile of a matrix, which has at most 128 columns (one block of column signs) and 128 rows.
 * TOGETHER: terms whose signs are held at the same time. Without vectors, pieces are small: they are on the stack. */
#if FZ_LANES > 1
enum { BLOCKS = 4, TOGETHER = 8, MOMENTUM_ROWS = 4 };
#else
enum { BLOCKS = 1, TOGETHER = 1, MOMENTUM_ROWS = 1 };
#endif
enum { RUNS = 16, RUN = 8 * BLOCKS, GROUP = 4096, PIECES = 32 / BLOCKS, TILE = 128 };

#if FZ_LANES > 1
typedef uint32_t four __attribute__((vector_size(16)));
typedef uint64_t two __attribute__((vector_size(16)));

#ifdef __wasm_simd128__
#include <wasm_simd128.h>
static inline void product(four c, uint32_t m, four *low, four *high) {
    v128_t factor = wasm_i32x4_splat((int32_t)m), a, b; /* Clang makes slow products of 64 bits of the intrinsics */
    __asm__("local.get %1\nlocal.get %2\ni64x2.extmul_low_i32x4_u\nlocal.set %0" : "=r"(a) : "r"(c), "r"(factor));
    __asm__("local.get %1\nlocal.get %2\ni64x2.extmul_high_i32x4_u\nlocal.set %0" : "=r"(b) : "r"(c), "r"(factor));
    *low = (four)wasm_i32x4_shuffle(a, b, 0, 2, 4, 6);
    *high = (four)wasm_i32x4_shuffle(a, b, 1, 3, 5, 7);
}
#else
static inline void product(four c, uint32_t m, four *low, four *high) {
    const two lower = {0xFFFFFFFFu, 0xFFFFFFFFu};
    two even = ((two)c & lower) * (uint64_t)m, odd = ((two)c >> 32) * (uint64_t)m;
    *low = (four)((even & lower) | odd << 32);
    *high = (four)(even >> 32 | (odd & ~lower));
}
#endif

/* Words of neighbouring blocks: words[w][lane]. */
static void make_blocks(uint64_t key, uint64_t block, uint32_t ordinal, uint32_t words[4][BLOCKS]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    four zero = {0, 0, 0, 0}, c0 = zero + (uint32_t)block + (four){0, 1, 2, 3}, c1 = zero + (uint32_t)(block >> 32);
    four c2 = zero + ordinal, c3 = zero + (uint32_t)FZ_DOMAIN_RADEMACHER;
    for (int round = 0; round < 10; round++) {
        four low0, high0, low1, high1;
        product(c0, 0xD2511F53u, &low0, &high0);
        product(c2, 0xCD9E8D57u, &low1, &high1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(words[0], &c0, 16);
    memcpy(words[1], &c1, 16);
    memcpy(words[2], &c2, 16);
    memcpy(words[3], &c3, 16);
}
#else
static void make_blocks(uint64_t key, uint64_t block, uint32_t ordinal, uint32_t words[4][BLOCKS]) {
    fz_block(key, block, ordinal, FZ_DOMAIN_RADEMACHER, &words[0][0]);
}
#endif

/* The signs of a word to eight numbers that share a byte of it. `bits`: the word, with the bit of each lane so far up
 * that one shift by a constant brings those of a group to the top. */
static inline void add_byte(float *y, fz_u bits, fz_u c, int byte) {
    const fz_u sign = fz_all_bits(FZ_SIGN);
#define GROUP_OF(part) \
    fz_put(y + part, fz_get(y + part) + fz_as_numbers((bits << (32 - 8 * byte - part - FZ_LANES) & sign) ^ c))
#if FZ_LANES == 8
    GROUP_OF(0);
#elif FZ_LANES == 4
    GROUP_OF(0), GROUP_OF(4);
#else
    GROUP_OF(0), GROUP_OF(1), GROUP_OF(2), GROUP_OF(3), GROUP_OF(4), GROUP_OF(5), GROUP_OF(6), GROUP_OF(7);
#endif
#undef GROUP_OF
}

/* y[run][i] += c z, for the coordinates of BLOCKS blocks, the first a multiple of their number; `runs` of them matter. */
static void add_signs(float y[RUNS][RUN], uint32_t runs, uint64_t block, uint32_t ordinal, fz_term term) {
    uint32_t words[4][BLOCKS];
    make_blocks(term.key, block, ordinal, words);
    fz_u c = fz_all_bits(fz_bits(term.coefficient));
    for (uint32_t w = 0; 4 * w < runs; w++)
        for (int lane = 0; lane < BLOCKS; lane++) {
            fz_u bits = fz_all_bits(words[w][lane]) * FZ_TO_THE_TOP;
            FZ_KEEP(bits);
            add_byte(y[4 * w] + 8 * lane, bits, c, 0); /* written out: shifts by constants are quick */
            add_byte(y[4 * w + 1] + 8 * lane, bits, c, 1);
            add_byte(y[4 * w + 2] + 8 * lane, bits, c, 2);
            add_byte(y[4 * w + 3] + 8 * lane, bits, c, 3);
        }
}

/* M ← (β·M) + (β′·G);  x ← x − (η·M) on a piece. */
static void momentum_step(float *x, float *m, const float *g, uint32_t count, const fz_step *step) {
    uint32_t i = 0;
#if FZ_LANES > 1
    fz_v rate = fz_all(step->rate), beta = fz_all(step->beta), rest = fz_all(step->rest);
    for (; i + FZ_LANES <= count; i += FZ_LANES) {
        fz_v kept = beta * fz_get(m + i), added = rest * fz_get(g + i);
        fz_v moved = kept + added;
        fz_put(m + i, moved);
        fz_put(x + i, fz_get(x + i) - rate * moved);
    }
#endif
    for (; i < count; i++) {
        float kept = step->beta * m[i], added = step->rest * g[i];
        m[i] = kept + added;
        float moved = step->rate * m[i];
        x[i] = x[i] - moved;
    }
}

/* How much of a run lies within a tensor. */
static uint32_t inside(uint32_t place, uint32_t count, uint32_t most) {
    return place >= count ? 0 : fz_least(most, count - place);
}

static void advance_signs(float *x, float *m, uint32_t count, uint32_t ordinal, fz_rule rule, const fz_step *steps,
                          uint32_t step_count, const float *from) {
    float y[RUNS][RUN];
    for (uint32_t group = 0; group < (count + GROUP - 1) / GROUP; group++)
        for (uint32_t piece = 0; piece < PIECES; piece++) {
            uint32_t first = group * GROUP + piece * RUN;
            uint64_t block = (uint64_t)group * 32 + piece * BLOCKS;
            if (first >= count) break;
            uint32_t runs = fz_least(RUNS, (count - first + 255) / 256);
            if (rule == FZ_SGD) {
                memset(y, 0, runs * sizeof y[0]);
                for (uint32_t run = 0; run < runs; run++) {
                    uint32_t place = first + 256 * run;
                    memcpy(y[run], from + place, 4 * (size_t)inside(place, count, RUN));
                }
            }
            for (uint32_t s = 0; s < step_count; s++) {
                if (rule != FZ_SGD) memset(y, 0, runs * sizeof y[0]);
                for (uint32_t j = 0; j < steps[s].count; j++) add_signs(y, runs, block, ordinal, steps[s].terms[j]);
                if (rule == FZ_SGD) continue;
                for (uint32_t run = 0; run < runs; run++) {
                    uint32_t place = first + 256 * run;
                    momentum_step(x + place, m + place, y[run], inside(place, count, RUN), steps + s);
                }
            }
            if (rule == FZ_SGD)
                for (uint32_t run = 0; run < runs; run++) {
                    uint32_t place = first + 256 * run;
                    memcpy(x + place, y[run], 4 * (size_t)inside(place, count, RUN));
                }
        }
}

/* Up to TOGETHER terms on a tile: their signs of rows as words, and of columns as sign bits side by side. */
typedef struct {
    uint32_t rows[TOGETHER][4];
    uint32_t columns[TOGETHER][TILE];
    uint32_t coefficients[TOGETHER];
} factors;

static void make_factors(factors *made, const fz_term *terms, uint32_t count, uint32_t ordinal, uint32_t row,
                         uint32_t column, uint32_t width) {
    for (uint32_t j = 0; j < count; j++) {
        uint32_t words[4];
        made->coefficients[j] = fz_bits(terms[j].coefficient);
        fz_block(terms[j].key, row / TILE, ordinal, FZ_DOMAIN_ROWS, made->rows[j]);
        fz_block(terms[j].key & FZ_COLUMN_KEY, column / TILE, ordinal, FZ_DOMAIN_COLUMNS, words);
        for (uint32_t i = 0; i < width; i++) made->columns[j][i] = words[i / 32] << (31 - i % 32) & FZ_SIGN;
    }
}

/* y[r·stride + i] += Σ_j c_j a_j[row + r] b_j[i] of all terms; columns begin at a multiple of TILE. */
static void add_factors(float *y, size_t stride, uint32_t height, uint32_t width, uint32_t row, uint32_t column,
                        uint32_t ordinal, const fz_term *terms, uint32_t count) {
    factors made;
    for (uint32_t first = 0; first < count; first += TOGETHER) {
        uint32_t many = fz_least(TOGETHER, count - first);
        make_factors(&made, terms + first, many, ordinal, row, column, width);
        for (uint32_t r = 0; r < height; r++) {
            uint32_t place = (row + r) % TILE, c[TOGETHER], i = 0;
            float *line = y + r * stride;
            for (uint32_t j = 0; j < many; j++)
                c[j] = made.coefficients[j] ^ (made.rows[j][place / 32] << (31 - place % 32) & FZ_SIGN);
#if FZ_LANES > 1
            if (many == TOGETHER) {
                fz_u c0 = fz_all_bits(c[0]), c1 = fz_all_bits(c[1]), c2 = fz_all_bits(c[2]), c3 = fz_all_bits(c[3]);
                fz_u c4 = fz_all_bits(c[4]), c5 = fz_all_bits(c[5]), c6 = fz_all_bits(c[6]), c7 = fz_all_bits(c[7]);
                for (; i + FZ_LANES <= width; i += FZ_LANES) {
                    fz_v v = fz_get(line + i);
                    v = v + fz_as_numbers(c0 ^ fz_get_bits(made.columns[0] + i));
                    v = v + fz_as_numbers(c1 ^ fz_get_bits(made.columns[1] + i));
                    v = v + fz_as_numbers(c2 ^ fz_get_bits(made.columns[2] + i));
                    v = v + fz_as_numbers(c3 ^ fz_get_bits(made.columns[3] + i));
                    v = v + fz_as_numbers(c4 ^ fz_get_bits(made.columns[4] + i));
                    v = v + fz_as_numbers(c5 ^ fz_get_bits(made.columns[5] + i));
                    v = v + fz_as_numbers(c6 ^ fz_get_bits(made.columns[6] + i));
                    v = v + fz_as_numbers(c7 ^ fz_get_bits(made.columns[7] + i));
                    fz_put(line + i, v);
                }
            }
            for (; i + FZ_LANES <= width; i += FZ_LANES) {
                fz_v v = fz_get(line + i);
                for (uint32_t j = 0; j < many; j++)
                    v = v + fz_as_numbers(fz_all_bits(c[j]) ^ fz_get_bits(made.columns[j] + i));
                fz_put(line + i, v);
            }
#endif
            for (; i < width; i++)
                for (uint32_t j = 0; j < many; j++) line[i] = line[i] + fz_float(c[j] ^ made.columns[j][i]);
        }
    }
}

static void advance_factors(float *x, float *m, uint32_t count, uint32_t columns, uint32_t ordinal, fz_rule rule,
                            const fz_step *steps, uint32_t step_count) {
    uint32_t rows = count / columns, most = rule == FZ_SGD ? TILE : MOMENTUM_ROWS;
    float g[MOMENTUM_ROWS][TILE];
    for (uint32_t row = 0; row < rows; row += most)
        for (uint32_t column = 0; column < columns; column += TILE) {
            uint32_t height = fz_least(most, rows - row), width = fz_least(TILE, columns - column);
            size_t place = (size_t)row * columns + column;
            for (uint32_t s = 0; s < step_count; s++) {
                const fz_step *step = steps + s;
                if (rule == FZ_SGD) {
                    add_factors(x + place, columns, height, width, row, column, ordinal, step->terms, step->count);
                    continue;
                }
                memset(g, 0, sizeof g);
                add_factors(g[0], TILE, height, width, row, column, ordinal, step->terms, step->count);
                for (uint32_t r = 0; r < height; r++)
                    momentum_step(x + place + (size_t)r * columns, m + place + (size_t)r * columns, g[r], width, step);
            }
        }
}

uint32_t fz_count(const fz_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t axis = 0; axis < tensor->axes; axis++) {
        count *= tensor->shape[axis];
        if (count > UINT32_MAX) return UINT32_MAX; /* no float32 numbers of this many fit in the memory of a thin client */
    }
    return (uint32_t)count;
}

uint32_t fz_columns(const fz_tensor *tensor) {
    uint32_t count = fz_count(tensor);
    return tensor->axes < 2 || !count ? 0 : count / tensor->shape[0];
}

fz_status fz_advance(const fz_tensor *tensors, uint32_t count, fz_stream stream, fz_rule rule, const fz_step *steps,
                     uint32_t step_count) {
    if ((stream != FZ_RADEMACHER && stream != FZ_RANK_ONE) || (rule != FZ_SGD && rule != FZ_MOMENTUM)) return FZ_ARGUMENT;
    for (uint32_t i = 0; i < count; i++)
        if (rule == FZ_MOMENTUM && fz_count(tensors + i) && !tensors[i].momentum) return FZ_ARGUMENT;
    for (uint32_t i = 0; i < count; i++) {
        const fz_tensor *t = tensors + i;
        uint32_t columns = stream == FZ_RANK_ONE ? fz_columns(t) : 0;
        if (columns)
            advance_factors(t->values, t->momentum, fz_count(t), columns, i, rule, steps, step_count);
        else
            advance_signs(t->values, t->momentum, fz_count(t), i, rule, steps, step_count, t->values);
    }
    return FZ_OK;
}

void fz_view(const fz_tensor *tensor, uint32_t ordinal, fz_stream stream, fz_term term, float *out) {
    uint32_t count = fz_count(tensor), columns = stream == FZ_RANK_ONE ? fz_columns(tensor) : 0;
    fz_step step;
    memset(&step, 0, sizeof step);
    step.terms = &term;
    step.count = term.coefficient != 0.0f;
    if (columns || !step.count) memcpy(out, tensor->values, 4 * (size_t)count);
    if (columns)
        advance_factors(out, 0, count, columns, ordinal, FZ_SGD, &step, 1);
    else if (step.count)
        advance_signs(out, 0, count, ordinal, FZ_SGD, &step, 1, tensor->values);
}
