/* Products of rows with the rows of a weight, in blocks whose sums stay in registers. */
#include "network.h"
#include "vector.h"

enum { ROWS = 2, OUTPUTS = 5 };

#if FZ_LANES > 1
/* y[r][o] ← x_r · w_o for 2 rows and 5 outputs: sums, factors and a product fit in 15 registers. */
static void block(const float *x, size_t stride, const float *w, uint32_t inputs, float y[ROWS][OUTPUTS]) {
    const float *x0 = x, *x1 = x + stride, *w0 = w, *w1 = w + inputs, *w2 = w1 + inputs, *w3 = w2 + inputs, *w4 = w3 + inputs;
    fz_v s00 = {0}, s01 = {0}, s02 = {0}, s03 = {0}, s04 = {0}, s10 = {0}, s11 = {0}, s12 = {0}, s13 = {0}, s14 = {0};
    uint32_t i = 0;
    for (; i + FZ_LANES <= inputs; i += FZ_LANES) {
        fz_v a = fz_get(x0 + i), b = fz_get(x1 + i), v = fz_get(w0 + i);
        s00 += a * v, s10 += b * v;
        v = fz_get(w1 + i);
        s01 += a * v, s11 += b * v;
        v = fz_get(w2 + i);
        s02 += a * v, s12 += b * v;
        v = fz_get(w3 + i);
        s03 += a * v, s13 += b * v;
        v = fz_get(w4 + i);
        s04 += a * v, s14 += b * v;
    }
    y[0][0] = fz_total(s00), y[0][1] = fz_total(s01), y[0][2] = fz_total(s02), y[0][3] = fz_total(s03), y[0][4] = fz_total(s04);
    y[1][0] = fz_total(s10), y[1][1] = fz_total(s11), y[1][2] = fz_total(s12), y[1][3] = fz_total(s13), y[1][4] = fz_total(s14);
    for (; i < inputs; i++)
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t o = 0; o < OUTPUTS; o++) y[r][o] += x[r * stride + i] * w[o * (size_t)inputs + i];
}

/* The same for one output. */
static void strip(const float *x, size_t stride, const float *w, uint32_t inputs, float *y, size_t y_stride) {
    fz_v s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    uint32_t i = 0;
    for (; i + 2 * FZ_LANES <= inputs; i += 2 * FZ_LANES) {
        fz_v a = fz_get(w + i), b = fz_get(w + i + FZ_LANES);
        s0 += fz_get(x + i) * a, s1 += fz_get(x + stride + i) * a;
        s2 += fz_get(x + i + FZ_LANES) * b, s3 += fz_get(x + stride + i + FZ_LANES) * b;
    }
    y[0] = fz_total(s0 + s2), y[y_stride] = fz_total(s1 + s3);
    for (; i < inputs; i++)
        for (uint32_t r = 0; r < ROWS; r++) y[r * y_stride] += x[r * stride + i] * w[i];
}
#endif

static float product(const float *x, const float *w, uint32_t inputs) {
    float sum = 0;
    uint32_t i = 0;
#if FZ_LANES > 1
    fz_v a = {0}, b = {0};
    for (; i + 2 * FZ_LANES <= inputs; i += 2 * FZ_LANES) {
        a += fz_get(x + i) * fz_get(w + i);
        b += fz_get(x + i + FZ_LANES) * fz_get(w + i + FZ_LANES);
    }
    sum = fz_total(a + b);
#endif
    for (; i < inputs; i++) sum += x[i] * w[i];
    return sum;
}

void fz_products(const float *x, size_t stride, uint32_t rows, const float *weights, const float *bias, uint32_t inputs,
                 uint32_t outputs, float *y, size_t y_stride) {
    uint32_t r = 0;
#if FZ_LANES > 1
    float sums[ROWS][OUTPUTS];
    for (; r + ROWS <= rows; r += ROWS) {
        uint32_t o = 0;
        for (; o + OUTPUTS <= outputs; o += OUTPUTS) {
            block(x + r * stride, stride, weights + (size_t)o * inputs, inputs, sums);
            for (uint32_t i = 0; i < ROWS; i++)
                for (uint32_t j = 0; j < OUTPUTS; j++)
                    y[(r + i) * y_stride + o + j] = bias ? sums[i][j] + bias[o + j] : sums[i][j];
        }
        for (; o < outputs; o++) {
            strip(x + r * stride, stride, weights + (size_t)o * inputs, inputs, y + r * y_stride + o, y_stride);
            for (uint32_t i = 0; bias && i < ROWS; i++) y[(r + i) * y_stride + o] += bias[o];
        }
    }
#endif
    for (; r < rows; r++)
        for (uint32_t o = 0; o < outputs; o++) {
            float sum = product(x + r * stride, weights + (size_t)o * inputs, inputs);
            y[r * y_stride + o] = bias ? sum + bias[o] : sum;
        }
}

void fz_moved(const float *base, const float *inner, uint32_t stride, uint32_t rows, uint32_t width,
              const fz_at_point *at, int relu, float *out) {
    for (uint32_t r = 0; r < rows; r++) {
        float c = at->coefficient * inner[(size_t)r * stride];
        const float *from = base + (size_t)r * width;
        float *to = out + (size_t)r * width;
        uint32_t i = 0;
#if FZ_LANES > 1
        for (; i + FZ_LANES <= width; i += FZ_LANES) {
            fz_v v = fz_get(from + i) + c * fz_get(at->row_signs + i) + fz_get(at->offsets + i);
            fz_put(to + i, relu ? fz_positive(v) : v);
        }
#endif
        for (; i < width; i++) {
            float v = from[i] + c * at->row_signs[i] + at->offsets[i];
            to[i] = relu && v < 0 ? 0.0f : v;
        }
    }
}
