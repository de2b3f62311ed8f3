/* Products of rows with the rows of a weight, in blocks whose sums stay in registers. */
#include "vector.h"

enum { ROWS = 4, OUTPUTS = 3 };

#if FZ_LANES > 1
/* y[r][o] ← x_r · w_o for 4 rows and 3 outputs: 12 vectors of sums, 7 loads for 12 products. */
static void block(const float *x, size_t stride, const float *w, uint32_t inputs, float y[ROWS][OUTPUTS]) {
    const float *x0 = x, *x1 = x + stride, *x2 = x + 2 * stride, *x3 = x + 3 * stride;
    const float *w0 = w, *w1 = w + inputs, *w2 = w + 2 * (size_t)inputs;
    fz_v s00 = {0}, s01 = {0}, s02 = {0}, s10 = {0}, s11 = {0}, s12 = {0};
    fz_v s20 = {0}, s21 = {0}, s22 = {0}, s30 = {0}, s31 = {0}, s32 = {0};
    uint32_t i = 0;
    for (; i + FZ_LANES <= inputs; i += FZ_LANES) {
        fz_v a = fz_get(w0 + i), b = fz_get(w1 + i), c = fz_get(w2 + i), v = fz_get(x0 + i);
        s00 += v * a, s01 += v * b, s02 += v * c;
        v = fz_get(x1 + i);
        s10 += v * a, s11 += v * b, s12 += v * c;
        v = fz_get(x2 + i);
        s20 += v * a, s21 += v * b, s22 += v * c;
        v = fz_get(x3 + i);
        s30 += v * a, s31 += v * b, s32 += v * c;
    }
    y[0][0] = fz_total(s00), y[0][1] = fz_total(s01), y[0][2] = fz_total(s02);
    y[1][0] = fz_total(s10), y[1][1] = fz_total(s11), y[1][2] = fz_total(s12);
    y[2][0] = fz_total(s20), y[2][1] = fz_total(s21), y[2][2] = fz_total(s22);
    y[3][0] = fz_total(s30), y[3][1] = fz_total(s31), y[3][2] = fz_total(s32);
    for (; i < inputs; i++)
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t o = 0; o < OUTPUTS; o++) y[r][o] += x[r * stride + i] * w[o * (size_t)inputs + i];
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
        for (; o < outputs; o++)
            for (uint32_t i = 0; i < ROWS; i++) {
                float sum = product(x + (r + i) * stride, weights + (size_t)o * inputs, inputs);
                y[(r + i) * y_stride + o] = bias ? sum + bias[o] : sum;
            }
    }
#endif
    for (; r < rows; r++)
        for (uint32_t o = 0; o < outputs; o++) {
            float sum = product(x + r * stride, weights + (size_t)o * inputs, inputs);
            y[r * y_stride + o] = bias ? sum + bias[o] : sum;
        }
}
