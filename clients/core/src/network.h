/* What the files of the network share. */
#ifndef FZ_NETWORK_H
#define FZ_NETWORK_H

#include "internal.h"

enum { FZ_MOST_LAYERS = 16 };

/* What goes into a layer and comes out of it, for one input. */
typedef struct {
    fz_kind kind;
    uint32_t channels, height, width;             /* of its input */
    uint32_t outputs, out_height, out_width;      /* of its output */
    uint32_t columns, kernel, padding, tensor;    /* columns: numbers that one output depends on */
} fz_shape;

/* Shapes of all layers, and where the parts of the scratch memory begin, in numbers. */
typedef struct {
    fz_shape shapes[FZ_MOST_LAYERS];
    uint32_t layers, rows, classes, directions;
    size_t gathered, base, inner, signs, one, other, line, row_signs, column_signs, offsets, weights, biases, all;
} fz_layout;

int fz_lay_out(const fz_network *network, const fz_tensor *tensors, uint32_t count, fz_stream stream, uint32_t points,
               fz_layout *layout);

/* The weight and the bias of a layer at a point: numbers, or the numbers at x and factors. */
typedef struct {
    const float *weights, *biases;
    const float *row_signs, *column_signs, *offsets; /* NULL: no factors; offsets: c z of the bias */
    float coefficient;
} fz_at_point;

/* out ← the layer's products of `rows` inputs, channels last; line: scratch for the patches of a line of positions. */
void fz_affine(const fz_shape *shape, const fz_at_point *at, const float *in, uint32_t rows, int first, float *line,
               float *out);

/* The inner products b·patch of all positions with the signs of `count` directions. */
void fz_inner(const fz_shape *shape, const float *signs, uint32_t count, const float *in, uint32_t rows, float *line,
              float *out);

/* out ← base + (c·inner)·a + offsets for rows of `width` numbers, and its positive part if `relu`. */
void fz_moved(const float *base, const float *inner, uint32_t stride, uint32_t rows, uint32_t width,
              const fz_at_point *at, int relu, float *out);

void fz_relu(float *values, size_t count);
void fz_pool(const fz_shape *shape, const float *in, uint32_t rows, float *out);
/* Channels last to channels first, as the columns of a linear layer are. */
void fz_channels_first(const fz_shape *shape, const float *in, uint32_t rows, float *out);

/* Σ over rows of the cross-entropy of each, log Σ exp(y_j − max y) − (y of the label − max y). Writes over the outputs. */
double fz_cross_entropy(float *outputs, const uint8_t *labels, const uint32_t *places, uint32_t rows, uint32_t classes);

#endif
