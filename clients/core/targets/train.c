/* 64-32-10 trained from values alone, in memory that the caller gives: what a board needs, and that it learns. */
#include "check.h"

#include "../src/internal.h"

enum { INPUTS = 64, HIDDEN = 32, CLASSES = 10, ROWS = 100, BATCH = 10 };

typedef struct {
    const fz_network *network;
    void *memory;
    size_t size;
    const uint8_t *root;
} task;

/* Rows of a class share the signs of a key; a second key, of the row, is the noise. */
static uint8_t label_of(uint32_t row) { return (uint8_t)(row % CLASSES); }

static void make_row(uint32_t row, float *inputs) {
    float noise[INPUTS];
    fz_row_signs(1000 + label_of(row), 0, INPUTS, inputs);
    fz_row_signs(2000 + row, 0, INPUTS, noise);
    for (uint32_t i = 0; i < INPUTS; i++) inputs[i] = 0.5f * inputs[i] + 0.5f * noise[i];
}

/* An oracle that reads one row after the other, as from a sensor: nothing but the row is in memory. */
static fz_status values(void *state, const fz_points *points, int64_t round, uint32_t step, double *out) {
    const task *own = state;
    uint32_t places[BATCH];
    int64_t numbers[3] = {round, step, 0};
    uint64_t key = 0;
    double one[2 * FZ_TRAIN_DIRECTIONS];
    float inputs[INPUTS];
    fz_status status = fz_key(own->root, "batch", numbers, 3, &key);
    uint32_t rows = fz_sample(key, ROWS, BATCH, places);
    for (uint32_t j = 0; j < points->count; j++) out[j] = 0;
    for (uint32_t r = 0; status == FZ_OK && r < rows; r++) {
        uint8_t label = label_of(places[r]);
        fz_batch batch = {inputs, &label, 0, 1};
        make_row(places[r], inputs);
        status = fz_network_values(own->network, &batch, points, own->memory, own->size, one);
        for (uint32_t j = 0; j < points->count; j++) out[j] += one[j] / rows;
    }
    return status;
}

int fz_train(void *memory, size_t size, int momentum, uint32_t directions, uint32_t rounds, size_t *used) {
    static const uint32_t shapes[4][2] = {{HIDDEN, INPUTS}, {HIDDEN, 0}, {CLASSES, HIDDEN}, {CLASSES, 0}};
    static const fz_layer layers[3] = {{FZ_LINEAR, HIDDEN, 0, 0}, {FZ_RELU, 0, 0, 0}, {FZ_LINEAR, CLASSES, 0, 0}};
    static const fz_network network = {1, 1, INPUTS, layers, 3, 1};
    fz_plan plan = {FZ_RANK_ONE, momentum ? FZ_MOMENTUM : FZ_SGD, FZ_CENTRAL, 1, 0, 0, 1e-3, 0.9, 0};
    uint8_t root[FZ_ROOT], *at = memory, *end = at + size;
    fz_tensor tensors[4];
    double rate = momentum ? 0.1 : 0.02;
    if (directions > FZ_TRAIN_DIRECTIONS) return -1;
    plan.most_directions = plan.most_terms = directions;
    fz_root(11, root);
    for (uint32_t t = 0; t < 4; t++) {
        tensors[t].name = 0;
        tensors[t].shape = shapes[t];
        tensors[t].axes = 2 - t % 2;
        size_t bytes = fz_aligned(4 * (size_t)fz_count(tensors + t)), all = momentum ? 2 * bytes : bytes;
        if ((size_t)(end - at) < all) return -1;
        memset(at, 0, all);
        tensors[t].values = (float *)(void *)at;
        tensors[t].momentum = momentum ? (float *)(void *)(at + bytes) : 0;
        at += all;
        fz_term scale = {1 + t, t % 2 ? 0.0f : 0.125f};
        fz_view(tensors + t, t, FZ_RADEMACHER, scale, tensors[t].values);
    }
    size_t client_size = fz_client_size(&plan, tensors, 4), 
           scratch = fz_network_size(&network, tensors, 4, plan.stream, directions);
    if (!client_size || !scratch || (size_t)(end - at) < client_size + scratch) return -1;
    fz_client *client = 0;
    if (fz_client_init(at, client_size, &plan, root, tensors, 4, &client) != FZ_OK) return -1;
    task own = {&network, at + client_size, scratch, root};
    fz_oracle oracle = {values, &own};
    for (uint32_t round = 0; round < rounds; round++) {
        float scalars[FZ_TRAIN_DIRECTIONS];
        double loss = 0;
        fz_group group = {round, scalars, directions};
        if (fz_client_turn(client, round, rate, directions, &oracle, scalars, &loss) != FZ_OK) return -1;
        if (fz_client_apply(client, rate, &group, 1) != FZ_OK) return -1;
    }
    *used = (size_t)(at - (uint8_t *)memory) + client_size + scratch;
    int right = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        float inputs[INPUTS];
        fz_batch one = {inputs, 0, 0, 1};
        uint32_t found = 0;
        make_row(r, inputs);
        if (fz_network_classes(&network, &one, tensors, 4, own.memory, scratch, &found) != FZ_OK) return -1;
        right += found == label_of(r);
    }
    return right;
}
