/* A network at many points. The first layer has the same inputs at all of them: of rank one, its products are made once,
 * and a point adds c a (b·x). Later layers have other inputs at each point and are paid for in full.
 */
#include "network.h"

static int shape_is(const fz_tensor *tensor, uint32_t axes, uint32_t a, uint32_t b, uint32_t c) {
    if (tensor->axes != axes || tensor->shape[0] != a) return 0;
    if (axes == 2) return tensor->shape[1] == b;
    return axes == 1 || (tensor->shape[1] == b && tensor->shape[2] == c && tensor->shape[3] == c);
}

/* The shape of a layer behind `before`; 0 if it does not fit. */
static int shape_of(const fz_layer *layer, const fz_tensor *tensors, uint32_t count, fz_shape *s, uint32_t *tensor) {
    int affine = layer->kind == FZ_LINEAR || layer->kind == FZ_CONV;
    uint64_t numbers = (uint64_t)s->channels * s->height * s->width;
    s->kind = layer->kind;
    s->outputs = s->channels;
    s->out_height = s->height;
    s->out_width = s->width;
    s->kernel = layer->kernel;
    s->padding = layer->padding;
    s->tensor = *tensor;
    s->columns = 0;
    if (numbers > 1 << 24 || (affine && (layer->outputs < 1 || layer->outputs > 1 << 20))) return 0;
    if (affine) {
        if (count < 2 || *tensor > count - 2) return 0;
        *tensor += 2;
        s->outputs = layer->outputs;
    }
    const fz_tensor *weight = tensors + s->tensor;
    switch (layer->kind) {
    case FZ_LINEAR:
        s->columns = (uint32_t)numbers;
        s->out_height = s->out_width = 1;
        return shape_is(weight, 2, s->outputs, s->columns, 0) && shape_is(weight + 1, 1, s->outputs, 0, 0);
    case FZ_CONV:
        if (s->kernel < 1 || s->kernel > 64 || s->padding >= s->kernel) return 0;
        if (s->height + 2 * s->padding < s->kernel || s->width + 2 * s->padding < s->kernel) return 0;
        s->columns = s->channels * s->kernel * s->kernel;
        s->out_height = s->height + 2 * s->padding - s->kernel + 1;
        s->out_width = s->width + 2 * s->padding - s->kernel + 1;
        if ((uint64_t)s->out_height * s->out_width * s->outputs > 1 << 24) return 0;
        return shape_is(weight, 4, s->outputs, s->channels, s->kernel) && shape_is(weight + 1, 1, s->outputs, 0, 0);
    case FZ_RELU:
        return 1;
    case FZ_POOL:
        s->out_height = s->height / 2;
        s->out_width = s->width / 2;
        return s->out_height && s->out_width;
    default:
        return 0;
    }
}

static size_t grown(size_t *at, uint64_t numbers) {
    size_t begin = *at;
    *at += fz_aligned(4 * (size_t)numbers) / 4;
    return begin;
}

int fz_lay_out(const fz_network *network, const fz_tensor *tensors, uint32_t count, fz_stream stream, uint32_t points,
               fz_layout *l) {
    fz_shape s;
    uint32_t tensor = 0;
    uint64_t widest = 0, line = 0, columns = 0, outputs = 0, weights = 0;
    if (!network->channels || !network->height || !network->width || !network->rows_at_once || points > 1 << 20) return 0;
    if (network->channels > 1 << 24 || network->height > 1 << 16 || network->width > 1 << 24) return 0;
    if (!network->layer_count || network->layer_count > FZ_MOST_LAYERS || network->rows_at_once > 1 << 20) return 0;
    if (network->layers[0].kind != FZ_LINEAR && network->layers[0].kind != FZ_CONV) return 0;
    memset(&s, 0, sizeof s);
    s.channels = network->channels;
    s.height = network->height;
    s.width = network->width;
    for (uint32_t i = 0; i < network->layer_count; i++) {
        if (!shape_of(network->layers + i, tensors, count, &s, &tensor)) return 0;
        uint64_t own = (uint64_t)s.outputs * s.out_height * s.out_width, in = (uint64_t)s.channels * s.height * s.width;
        uint64_t patch = s.kind == FZ_CONV ? (uint64_t)s.out_width * (s.columns + 1) : 0;
        if (i && s.kind == FZ_LINEAR && in > widest) widest = in; /* turned to channels first */
        widest = own > widest ? own : widest;
        line = patch > line ? patch : line;
        columns = s.columns > columns ? s.columns : columns;
        if (s.columns) {
            uint64_t size = (uint64_t)s.columns * s.outputs;
            outputs = s.outputs > outputs ? s.outputs : outputs;
            weights = size > weights ? size : weights;
        }
        l->shapes[i] = s;
        s.channels = s.outputs;
        s.height = s.out_height;
        s.width = s.out_width;
    }
    if (tensor != count || s.height != 1 || s.width != 1 || s.channels < 2 || s.channels > 256) return 0;
    const fz_shape *first = l->shapes;
    uint64_t rows = network->rows_at_once, positions = rows * first->out_height * first->out_width;
    uint64_t in = (uint64_t)network->channels * network->height * network->width;
    int factors = stream == FZ_RANK_ONE;
    if (rows * (widest + in + line) + positions * (first->outputs + (uint64_t)points) > 1 << 28 ||
        (uint64_t)points * first->columns > 1 << 28)
        return 0;
    l->layers = network->layer_count;
    l->rows = network->rows_at_once;
    l->classes = s.channels;
    l->directions = points;
    l->all = 0;
    l->gathered = grown(&l->all, rows * in);
    l->one = grown(&l->all, rows * widest);
    l->other = grown(&l->all, rows * widest);
    l->line = grown(&l->all, line > rows ? line : rows);
    l->base = grown(&l->all, factors ? positions * first->outputs : 0);
    l->inner = grown(&l->all, factors ? positions * points : 0);
    l->signs = grown(&l->all, factors ? (uint64_t)points * first->columns : 0);
    l->row_signs = grown(&l->all, factors ? outputs : 0);
    l->column_signs = grown(&l->all, factors ? columns : 0);
    l->offsets = grown(&l->all, factors ? outputs : 0);
    l->weights = grown(&l->all, factors ? 0 : weights);
    l->biases = grown(&l->all, factors ? 0 : outputs);
    return 1;
}

size_t fz_network_size(const fz_network *network, const fz_tensor *tensors, uint32_t count, fz_stream stream,
                       uint32_t points) {
    fz_layout layout;
    return fz_lay_out(network, tensors, count, stream, points, &layout) ? 4 * layout.all : 0;
}

/* A batch in parts of at most `rows_at_once` rows, and what is made of a part. */
typedef struct {
    const fz_layout *layout;
    const fz_points *points;
    float *scratch;
    const float *in; /* of this part */
    uint32_t rows;
} part;

/* The rows of a part side by side. */
static const float *gather(const fz_layout *l, const fz_batch *batch, uint32_t begin, uint32_t rows, float *scratch) {
    const fz_shape *first = l->shapes;
    size_t width = (size_t)first->channels * first->height * first->width;
    if (!batch->places) return batch->inputs + begin * width;
    for (uint32_t r = 0; r < rows; r++)
        memcpy(scratch + l->gathered + r * width, batch->inputs + batch->places[begin + r] * width, 4 * width);
    return scratch + l->gathered;
}

/* A layer's parameters at a point. */
static fz_at_point at_point(const part *p, const fz_shape *s, fz_term term) {
    const fz_tensor *weight = p->points->tensors + s->tensor, *bias = weight + 1;
    const fz_layout *l = p->layout;
    fz_at_point at;
    at.weights = weight->values;
    at.biases = bias->values;
    at.row_signs = at.column_signs = at.offsets = 0;
    at.coefficient = term.coefficient;
    if (term.coefficient == 0.0f) return at;
    if (p->points->stream != FZ_RANK_ONE) {
        fz_view(weight, s->tensor, p->points->stream, term, p->scratch + l->weights);
        fz_view(bias, s->tensor + 1, p->points->stream, term, p->scratch + l->biases);
        at.weights = p->scratch + l->weights;
        at.biases = p->scratch + l->biases;
        return at;
    }
    fz_tensor noughts = *bias;
    float *offsets = p->scratch + l->offsets;
    fz_row_signs(term.key, s->tensor, s->outputs, p->scratch + l->row_signs);
    fz_column_signs(term.key, s->tensor, s->columns, p->scratch + l->column_signs);
    memset(offsets, 0, 4 * (size_t)s->outputs);
    noughts.values = offsets;
    fz_view(&noughts, s->tensor + 1, FZ_RANK_ONE, term, offsets);
    at.row_signs = p->scratch + l->row_signs;
    at.column_signs = p->scratch + l->column_signs;
    at.offsets = offsets;
    return at;
}

/* Layers `from` … of a part whose activations are in scratch[one]; the outputs are where the result points. */
static float *rest(const part *p, uint32_t from, const fz_term term, float *now, float *next) {
    const fz_layout *l = p->layout;
    for (uint32_t i = from; i < l->layers; i++) {
        const fz_shape *s = l->shapes + i;
        float *swap = now;
        if (s->kind == FZ_RELU) {
            fz_relu(now, (size_t)p->rows * s->channels * s->height * s->width);
            continue;
        }
        if (s->kind == FZ_POOL)
            fz_pool(s, now, p->rows, next);
        else {
            fz_at_point at = at_point(p, s, term);
            if (s->kind == FZ_LINEAR && s->height * s->width > 1) {
                fz_channels_first(s, now, p->rows, next);
                now = next;
                next = swap;
                swap = now;
            }
            fz_affine(s, &at, now, p->rows, 0, p->scratch + l->line, next);
        }
        now = next;
        next = swap;
    }
    return now;
}

/* Products of the first layer that all points share: at x, and b·x of every direction. */
static void share(const part *p) {
    const fz_layout *l = p->layout;
    const fz_shape *first = l->shapes;
    fz_term none;
    memset(&none, 0, sizeof none);
    fz_at_point at = at_point(p, first, none);
    fz_affine(first, &at, p->in, p->rows, 1, p->scratch + l->line, p->scratch + l->base);
    uint32_t count = 0;
    float *signs = p->scratch + l->signs;
    for (uint32_t j = 0; j < p->points->count; j++) {
        const fz_term *term = p->points->terms + j;
        if (j && term->key == term[-1].key && term[-1].coefficient != 0.0f) continue;
        fz_column_signs(term->key, first->tensor, first->columns, signs + (size_t)count++ * first->columns);
    }
    fz_inner(first, signs, count, p->in, p->rows, p->scratch + l->line, p->scratch + l->inner);
}

/* How many different directions there are beside each other: the two points of a central difference share one. */
static uint32_t directions(const fz_points *points) {
    uint32_t count = 0;
    for (uint32_t j = 0; j < points->count; j++)
        count += !(j && points->terms[j].key == points->terms[j - 1].key && points->terms[j - 1].coefficient != 0.0f);
    return count;
}

/* The outputs of a part at point j; of rank one `inner` is the column of its direction. */
static float *outputs(const part *p, uint32_t j, uint32_t inner, uint32_t stride) {
    const fz_layout *l = p->layout;
    const fz_shape *first = l->shapes;
    const fz_term term = p->points->terms[j];
    float *one = p->scratch + l->one, *other = p->scratch + l->other;
    fz_at_point at = at_point(p, first, term);
    uint32_t positions = p->rows * first->out_height * first->out_width;
    int relu = l->layers > 1 && l->shapes[1].kind == FZ_RELU;
    if (p->points->stream != FZ_RANK_ONE) {
        fz_affine(first, &at, p->in, p->rows, 1, p->scratch + l->line, one);
        return rest(p, 1, term, one, other);
    }
    if (at.row_signs) {
        fz_moved(p->scratch + l->base, p->scratch + l->inner + inner, stride, positions, first->outputs, &at, relu, one);
        return rest(p, relu ? 2 : 1, term, one, other);
    }
    memcpy(one, p->scratch + l->base, 4 * (size_t)positions * first->outputs);
    return rest(p, 1, term, one, other);
}

static fz_status expect(const fz_network *network, const fz_batch *batch, const fz_points *points, const void *memory,
                        size_t size, fz_layout *l) {
    if (!batch->rows || !fz_lay_out(network, points->tensors, points->tensor_count, points->stream,
                                    directions(points), l))
        return FZ_ARGUMENT;
    if (size < 4 * l->all || (uintptr_t)memory % 16) return FZ_MEMORY;
    for (uint32_t r = 0; r < batch->rows; r++)
        if (batch->labels && batch->labels[batch->places ? batch->places[r] : r] >= l->classes) return FZ_ARGUMENT;
    return FZ_OK;
}

fz_status fz_network_values(const fz_network *network, const fz_batch *batch, const fz_points *points, void *memory,
                            size_t size, double *values) {
    fz_layout l;
    part p;
    fz_status status = expect(network, batch, points, memory, size, &l);
    if (status != FZ_OK) return status;
    if (!batch->labels) return FZ_ARGUMENT;
    p.layout = &l;
    p.points = points;
    p.scratch = memory;
    for (uint32_t j = 0; j < points->count; j++) values[j] = 0;
    for (uint32_t begin = 0; begin < batch->rows; begin += l.rows) {
        uint32_t inner = 0;
        p.rows = fz_least(l.rows, batch->rows - begin);
        p.in = gather(&l, batch, begin, p.rows, p.scratch);
        if (points->stream == FZ_RANK_ONE) share(&p);
        for (uint32_t j = 0; j < points->count; j++) {
            const fz_term *term = points->terms + j;
            if (j && !(term->key == term[-1].key && term[-1].coefficient != 0.0f)) inner++;
            float *found = outputs(&p, j, inner, l.directions);
            values[j] += fz_cross_entropy(found, batch->labels + (batch->places ? 0 : begin),
                                          batch->places ? batch->places + begin : 0, p.rows, l.classes);
        }
    }
    for (uint32_t j = 0; j < points->count; j++) values[j] /= batch->rows;
    return FZ_OK;
}

fz_status fz_network_classes(const fz_network *network, const fz_batch *batch, const fz_tensor *tensors, uint32_t count,
                             void *memory, size_t size, uint32_t *classes) {
    fz_layout l;
    part p;
    fz_term none;
    fz_points points;
    fz_batch unlabelled = *batch;
    memset(&none, 0, sizeof none);
    points.tensors = tensors;
    points.tensor_count = count;
    points.stream = FZ_RANK_ONE; /* needs no copy of a weight */
    points.terms = &none;
    points.count = 1;
    unlabelled.labels = 0;
    fz_status status = expect(network, &unlabelled, &points, memory, size, &l);
    if (status != FZ_OK) return status;
    p.layout = &l;
    p.points = &points;
    p.scratch = memory;
    for (uint32_t begin = 0; begin < batch->rows; begin += l.rows) {
        p.rows = fz_least(l.rows, batch->rows - begin);
        p.in = gather(&l, batch, begin, p.rows, p.scratch);
        share(&p);
        const float *found = outputs(&p, 0, 0, 1);
        for (uint32_t r = 0; r < p.rows; r++, found += l.classes) {
            uint32_t best = 0;
            for (uint32_t j = 1; j < l.classes; j++)
                if (found[j] > found[best]) best = j;
            classes[begin + r] = best;
        }
    }
    return FZ_OK;
}
