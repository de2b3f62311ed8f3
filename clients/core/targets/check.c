/* Runs the tables of vectors.h. Whole models lie in the memory that the caller gives, one after the other. */
#include "check.h"

#include "../src/internal.h"
#include "../vectors/vectors.h"

#define ROWS_OF(table) (uint32_t)(sizeof table / sizeof table[0])
enum { MOST_TENSORS = 8, MOST_TERMS = 16 };

typedef struct {
    uint8_t *at, *end;
} arena;

static void *take(arena *from, size_t bytes) {
    uint8_t *begin = from->at;
    bytes = fz_aligned(bytes);
    if ((size_t)(from->end - from->at) < bytes) return 0;
    from->at += bytes;
    return begin;
}

/* Tensors whose shapes are at NUMBERS[shapes], x_i = ((37·i) mod 251 − 125)·unit, momentum +0. */
static int model(arena *from, uint32_t count, uint32_t shapes, float unit, int momentum, fz_tensor *tensors) {
    static const char *const NAMES[MOST_TENSORS] = {"t0.weight", "t1.weight", "t2.weight", "t3.weight",
                                                    "t4.weight", "t5.weight", "t6.weight", "t7.weight"};
    for (uint32_t t = 0; t < count; t++) {
        fz_tensor *own = tensors + t;
        own->name = NAMES[t];
        own->axes = NUMBERS[shapes++];
        own->shape = NUMBERS + shapes;
        shapes += own->axes;
        uint32_t numbers = fz_count(own);
        own->values = take(from, 4 * (size_t)numbers);
        own->momentum = momentum ? take(from, 4 * (size_t)numbers) : 0;
        if (!own->values || (momentum && !own->momentum)) return 0;
        for (uint32_t i = 0; i < numbers; i++) own->values[i] = (float)((int32_t)(37 * (uint64_t)i % 251) - 125) * unit;
        if (momentum) memset(own->momentum, 0, 4 * (size_t)numbers);
    }
    return 1;
}

static int same(const void *a, const void *b, size_t count) {
    const uint8_t *one = a, *other = b;
    for (size_t i = 0; i < count; i++)
        if (one[i] != other[i]) return 0;
    return 1;
}

static int key_holds(uint32_t row) {
    uint8_t root[FZ_ROOT], shifted[FZ_ROOT];
    uint64_t key = 0;
    fz_root(KEYS[row].seed, root);
    if (KEYS[row].secret_length) {
        if (fz_shifted_root(root, KEYS[row].secret, KEYS[row].secret_length, shifted) != FZ_OK) return 0;
        memcpy(root, shifted, FZ_ROOT);
    }
    return same(root, KEYS[row].root, FZ_ROOT) &&
           fz_key(root, KEYS[row].purpose, KEYS[row].numbers, KEYS[row].count, &key) == FZ_OK && key == KEYS[row].key;
}

static int words_hold(uint32_t row) {
    uint32_t words[4];
    fz_block(WORDS[row].key, WORDS[row].block, WORDS[row].ordinal, WORDS[row].domain, words);
    return same(words, WORDS[row].words, 16);
}

static int direction_holds(uint32_t row, arena from) {
    fz_tensor tensor;
    fz_term term;
    tensor.name = 0;
    tensor.axes = DIRECTIONS[row].axes;
    tensor.shape = DIRECTIONS[row].shape;
    tensor.momentum = 0;
    uint32_t count = fz_count(&tensor);
    tensor.values = take(&from, 4 * (size_t)count);
    if (!tensor.values) return -1;
    memset(tensor.values, 0, 4 * (size_t)count);
    term.key = DIRECTIONS[row].key;
    term.coefficient = 1;
    fz_view(&tensor, DIRECTIONS[row].ordinal, (fz_stream)DIRECTIONS[row].stream, term, tensor.values);
    return fz_checksum(tensor.values, count) == DIRECTIONS[row].checksum;
}

static int program_holds(uint32_t row, arena from) {
    fz_tensor tensors[MOST_TENSORS];
    uint32_t keys = PROGRAMS[row].keys, numbers = PROGRAMS[row].numbers, count = PROGRAMS[row].tensors;
    int holds = 1;
    if (!model(&from, count, PROGRAMS[row].shapes, fz_float(PROGRAMS[row].unit), PROGRAMS[row].rule == FZ_MOMENTUM, tensors))
        return -1;
    for (uint32_t s = 0; s < PROGRAMS[row].steps; s++) {
        fz_term terms[MOST_TERMS];
        fz_step step;
        step.terms = terms;
        step.count = NUMBERS[numbers++];
        step.rate = fz_float(NUMBERS[numbers++]);
        step.beta = fz_float(NUMBERS[numbers++]);
        step.rest = fz_float(NUMBERS[numbers++]);
        for (uint32_t j = 0; j < step.count; j++) {
            terms[j].key = WIDE[keys++];
            terms[j].coefficient = fz_float(NUMBERS[numbers++]);
        }
        if (fz_advance(tensors, count, (fz_stream)PROGRAMS[row].stream, (fz_rule)PROGRAMS[row].rule, &step, 1) != FZ_OK)
            return 0;
    }
    for (uint32_t t = 0; t < count; t++) {
        uint32_t own = fz_count(tensors + t);
        holds &= fz_checksum(tensors[t].values, own) == WIDE[PROGRAMS[row].sums + t];
        if (tensors[t].momentum) holds &= fz_checksum(tensors[t].momentum, own) == WIDE[PROGRAMS[row].sums + count + t];
    }
    uint8_t digest[8];
    fz_digest(tensors, count, digest);
    return holds && same(digest, PROGRAMS[row].digest, 8);
}

static int floats_are(const float *values, const uint32_t *bits, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (fz_bits(values[i]) != bits[i]) return 0;
    return 1;
}

static int estimate_holds(uint32_t row, arena from) {
    uint32_t P = ESTIMATES[row].directions, points = fz_point_count((fz_difference)ESTIMATES[row].difference, P);
    const uint64_t *wide = WIDE + ESTIMATES[row].wide;
    const uint32_t *expected = NUMBERS + ESTIMATES[row].numbers;
    double *values = take(&from, 8 * (size_t)points), loss = 0;
    float *slopes = take(&from, 4 * (size_t)P), *coefficients = take(&from, 4 * (size_t)P);
    if (!values || !slopes || !coefficients) return -1;
    for (uint32_t i = 0; i < points; i++) values[i] = fz_double(wide[4 + i]);
    if (fz_slopes(values, (fz_difference)ESTIMATES[row].difference, P, fz_double(wide[0]), slopes, &loss) != FZ_OK) return 0;
    fz_coefficients(slopes, P, fz_double(wide[2]), coefficients);
    if (!floats_are(slopes, expected, P) || !floats_are(coefficients, expected + P, P) || fz_bits64(loss) != wide[1])
        return 0;
    fz_clip(slopes, P, fz_double(wide[3]));
    return floats_are(slopes, expected + 2 * P, P);
}

static int losses_hold(uint32_t row, arena from) {
    fz_tensor tensors[MOST_TENSORS];
    fz_layer layers[8];
    fz_network network;
    fz_batch batch;
    fz_points points;
    fz_term terms[MOST_TERMS];
    double values[MOST_TERMS];
    uint32_t rows = LOSSES[row].rows, count = LOSSES[row].tensors;
    uint32_t size = LOSSES[row].input[0] * LOSSES[row].input[1] * LOSSES[row].input[2];
    if (!model(&from, count, LOSSES[row].shapes, 1.0f / 512, 0, tensors)) return -1;
    uint32_t classes = tensors[count - 1].shape[0];
    float *inputs = take(&from, 4 * (size_t)rows * size);
    uint8_t *labels = take(&from, rows);
    if (!inputs || !labels) return -1;
    for (uint32_t i = 0; i < rows * size; i++) inputs[i] = (float)((int32_t)(29 * i % 127) - 63) / 64;
    for (uint32_t r = 0; r < rows; r++) labels[r] = (uint8_t)(r % classes);
    for (uint32_t i = 0; i < LOSSES[row].layer_count; i++) {
        const uint32_t *given = NUMBERS + LOSSES[row].layers + 4 * i;
        layers[i].kind = (fz_kind)given[0];
        layers[i].outputs = given[1];
        layers[i].kernel = given[2];
        layers[i].padding = given[3];
    }
    network.channels = LOSSES[row].input[0];
    network.height = LOSSES[row].input[1];
    network.width = LOSSES[row].input[2];
    network.layers = layers;
    network.layer_count = LOSSES[row].layer_count;
    network.rows_at_once = 4;
    batch.inputs = inputs;
    batch.labels = labels;
    batch.places = 0;
    batch.rows = rows;
    points.tensors = tensors;
    points.tensor_count = count;
    points.stream = (fz_stream)LOSSES[row].stream;
    points.terms = terms;
    points.count = LOSSES[row].points;
    for (uint32_t j = 0; j < points.count; j++) {
        terms[j].key = WIDE[LOSSES[row].wide + j];
        terms[j].coefficient = fz_float(NUMBERS[LOSSES[row].numbers + j]);
    }
    size_t scratch = fz_network_size(&network, tensors, count, points.stream, points.count);
    void *memory = take(&from, scratch);
    if (!scratch) return 0;
    if (!memory) return -1;
    if (fz_network_values(&network, &batch, &points, memory, scratch, values) != FZ_OK) return 0;
    for (uint32_t j = 0; j < points.count; j++) {
        double apart = values[j] - fz_double(WIDE[LOSSES[row].wide + points.count + j]);
        if (!(apart <= TOLERANCE && apart >= -TOLERANCE)) return 0;
    }
    return 1;
}

static int batch_holds(uint32_t row, arena from) {
    uint32_t drawn = BATCHES[row].drawn, *places = take(&from, 4 * (size_t)drawn + 4);
    if (!places) return -1;
    uint32_t found = BATCHES[row].poisson
                         ? fz_poisson(BATCHES[row].key, BATCHES[row].count, fz_double(BATCHES[row].rate), drawn, places)
                         : fz_sample(BATCHES[row].key, BATCHES[row].count, BATCHES[row].size, places);
    return found == drawn && same(places, NUMBERS + BATCHES[row].places, 4 * (size_t)drawn);
}

static int note(fz_report *report, fz_say say, const char *part, uint32_t row, int holds) {
    report->cases++;
    if (holds < 0) report->skipped++;
    if (holds == 0) {
        report->failed++;
        say(part, row);
    }
    return holds == 0;
}

void fz_check(void *memory, size_t size, fz_say say, fz_report *report) {
    arena whole;
    whole.at = memory;
    whole.end = whole.at + size;
    memset(report, 0, sizeof *report);
    for (uint32_t i = 0; i < ROWS_OF(KEYS); i++) note(report, say, "keys", i, key_holds(i));
    for (uint32_t i = 0; i < ROWS_OF(WORDS); i++) note(report, say, "words", i, words_hold(i));
    for (uint32_t i = 0; i < ROWS_OF(DIRECTIONS); i++) note(report, say, "directions", i, direction_holds(i, whole));
    for (uint32_t i = 0; i < ROWS_OF(PROGRAMS); i++) {
        int failed = note(report, say, "programs", i, program_holds(i, whole));
        report->programs++;
        if (failed && PROGRAMS[i].rule == FZ_MOMENTUM) report->momentum_failed++;
        if (failed && PROGRAMS[i].rule == FZ_SGD) report->plain_failed++;
    }
    for (uint32_t i = 0; i < ROWS_OF(ESTIMATES); i++) note(report, say, "estimates", i, estimate_holds(i, whole));
    for (uint32_t i = 0; i < ROWS_OF(LOSSES); i++) note(report, say, "losses", i, losses_hold(i, whole));
    for (uint32_t i = 0; i < ROWS_OF(BATCHES); i++) note(report, say, "batches", i, batch_holds(i, whole));
}
