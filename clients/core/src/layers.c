/* The layers of a network, for many inputs. Activations of images are rows of positions, channels last. */
#include "network.h"
#include "vector.h"

/* The patches of one line of output positions: channels, rows, columns of each; noughts outside of the image. */
static void patches(const fz_shape *s, const float *image, int channels_first, uint32_t line, float *out) {
    uint32_t kernel = s->kernel, area = s->height * s->width;
    for (uint32_t place = 0; place < s->out_width; place++)
        for (uint32_t c = 0; c < s->channels; c++)
            for (uint32_t i = 0; i < kernel; i++)
                for (uint32_t j = 0; j < kernel; j++) {
                    uint32_t row = line + i - s->padding, column = place + j - s->padding; /* wraps around outside */
                    size_t at = channels_first ? (size_t)c * area + row * s->width + column
                                               : ((size_t)row * s->width + column) * s->channels + c;
                    *out++ = row < s->height && column < s->width ? image[at] : 0.0f;
                }
}

/* One set of rows through a layer: products, then what the factors add. inner: one number a row. */
static void rows_through(const fz_shape *s, const fz_at_point *at, const float *in, uint32_t rows, float *inner,
                         float *out) {
    fz_products(in, s->columns, rows, at->weights, at->biases, s->columns, s->outputs, out, s->outputs);
    if (!at->row_signs) return;
    fz_products(in, s->columns, rows, at->column_signs, 0, s->columns, 1, inner, 1);
    fz_moved(out, inner, 1, rows, s->outputs, at, 0, out);
}

void fz_affine(const fz_shape *s, const fz_at_point *at, const float *in, uint32_t rows, int first, float *line,
               float *out) {
    if (s->kind == FZ_LINEAR) {
        rows_through(s, at, in, rows, line, out);
        return;
    }
    size_t image = (size_t)s->channels * s->height * s->width;
    float *inner = line + (size_t)s->out_width * s->columns;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t y = 0; y < s->out_height; y++, out += s->out_width * s->outputs) {
            patches(s, in + r * image, first, y, line);
            rows_through(s, at, line, s->out_width, inner, out);
        }
}

void fz_inner(const fz_shape *s, const float *signs, uint32_t count, const float *in, uint32_t rows, float *line,
              float *out) {
    if (s->kind == FZ_LINEAR) {
        fz_products(in, s->columns, rows, signs, 0, s->columns, count, out, count);
        return;
    }
    size_t image = (size_t)s->channels * s->height * s->width;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t y = 0; y < s->out_height; y++, out += s->out_width * count) {
            patches(s, in + r * image, 1, y, line);
            fz_products(line, s->columns, s->out_width, signs, 0, s->columns, count, out, count);
        }
}

void fz_relu(float *values, size_t count) {
    size_t i = 0;
#if FZ_LANES > 1
    for (; i + FZ_LANES <= count; i += FZ_LANES) fz_put(values + i, fz_positive(fz_get(values + i)));
#endif
    for (; i < count; i++)
        if (values[i] < 0) values[i] = 0;
}

static float larger(float a, float b) { return a < b || b != b ? b : a; } /* NaN stays */

void fz_pool(const fz_shape *s, const float *in, uint32_t rows, float *out) {
    size_t line = (size_t)s->width * s->channels;
    for (uint32_t r = 0; r < rows; r++, in += s->height * line)
        for (uint32_t y = 0; y < s->out_height; y++)
            for (uint32_t x = 0; x < s->out_width; x++) {
                const float *a = in + 2 * y * line + 2 * (size_t)x * s->channels;
                for (uint32_t c = 0; c < s->channels; c++, a++)
                    *out++ = larger(larger(a[0], a[s->channels]), larger(a[line], a[line + s->channels]));
            }
}

void fz_channels_first(const fz_shape *s, const float *in, uint32_t rows, float *out) {
    uint32_t area = s->height * s->width;
    for (uint32_t r = 0; r < rows; r++, in += (size_t)area * s->channels)
        for (uint32_t c = 0; c < s->channels; c++)
            for (uint32_t place = 0; place < area; place++) *out++ = in[(size_t)place * s->channels + c];
}

double fz_cross_entropy(float *outputs, const uint8_t *labels, const uint32_t *places, uint32_t rows, uint32_t classes) {
    double total = 0;
    float *row = outputs;
    for (uint32_t r = 0; r < rows; r++, row += classes) {
        float most = row[0];
        for (uint32_t j = 1; j < classes; j++) most = larger(most, row[j]);
        for (uint32_t j = 0; j < classes; j++) row[j] -= most;
        total -= (double)row[labels[places ? places[r] : r]];
    }
    fz_exponentials(outputs, (size_t)rows * classes);
    for (uint32_t r = 0; r < rows; r++, outputs += classes) {
        float sum = 0;
        for (uint32_t j = 0; j < classes; j++) sum += outputs[j];
        total += (double)fz_log(sum);
    }
    return total;
}
