/* Bytes of chance, and messages with some bytes changed, for everything that takes bytes, sizes or numbers from others.
 * Compile with sanitizers: each message lies in memory of exactly its size. fuzz CASES SEED
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fedzero_core.h"

static uint64_t state;

static uint64_t next(void) { /* splitmix64 */
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint32_t below(uint32_t most) { return (uint32_t)(next() % most); }

/* Messages of every kind, as in docs/wire.md; others grow from them. */
static const struct { size_t count; uint8_t bytes[64]; } SEEDS[] = {
    {18, {0x94, 1, 1, 0, 0x91, 0x93, 1, 0, 0xC4, 8, 0, 0, 0, 0x3F, 0, 0, 0x80, 0xBE}},
    {19, {0x95, 1, 5, 0, 0x91, 0x93, 1, 0, 0xC4, 8, 0, 0, 0, 0x3F, 0, 0, 0x80, 0xBE, 3}},
    {16, {0x96, 2, 1, 0, 0, 0xC4, 8, 0, 0, 0, 0x3F, 0, 0, 0x80, 0x3F, 0xC0}},
    {16, {0x93, 3, 1, 0x93, 1, 1, 0xC4, 8, 0, 0, 0, 0x3F, 0, 0, 0x80, 0x3F}},
    {13, {0x95, 4, 1, 1, 0xC4, 4, 0, 0, 0, 0x3F, 0x92, 0, 2}},
    {30, {0x96, 1, 0, 0xC4, 8, 0x69, 0x9B, 0x7C, 0x4B, 0x7E, 0x4F, 0x7A, 0xB9, 0xC4, 8, 0, 0, 0xC0, 0x3F, 0, 0, 0, 0xC0,
          0xC4, 4, 0, 0, 0x10, 0x40, 3}},
    {51, {0x94, 1, 8, 0, 0x91, 0x93, 3, 7, 0x92, 0x92, 5, 0xC4, 8, 0, 0, 0, 0x3F, 0, 0, 0, 0xC0, 0x94, 7, 0xC4, 0x10, 0, 0,
          0x80, 0x3F, 0, 0, 0, 0, 0, 0, 0x80, 0x3E, 0, 0, 0x80, 0x40, 0x92, 1, 4, 0xC4, 8, 0, 0, 0, 0x3F, 0}},
};
static const uint8_t HEADS[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x93, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC4, 0xC5, 0xC6, 0xC7,
                                0xC9, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF, 0xD3, 0xD4, 0xD8, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xFF};

static void message(unsigned long *read) {
    uint8_t bytes[192];
    size_t count = below(sizeof bytes);
    uint32_t which = below(8);
    for (size_t i = 0; i < count; i++) bytes[i] = next() & 1 ? HEADS[below(sizeof HEADS)] : (uint8_t)next();
    if (which < sizeof SEEDS / sizeof SEEDS[0]) {
        count = SEEDS[which].count;
        memcpy(bytes, SEEDS[which].bytes, count);
        if (which == 6) bytes[count++] = 0x3E; /* the last of its weights */
        for (uint32_t changes = below(4); changes; changes--) {
            size_t at = below((uint32_t)count);
            if (next() & 1) bytes[at] = next() & 1 ? HEADS[below(sizeof HEADS)] : (uint8_t)next();
            else if (count + 40 < sizeof bytes) {
                memmove(bytes + at + 1, bytes + at, count - at);
                bytes[at] = HEADS[below(sizeof HEADS)];
                count++;
            }
        }
        if (!below(8)) count = below((uint32_t)count + 1);
    }
    uint8_t *own = malloc(count ? count : 1);
    fz_instruction instruction;
    fz_reply reply;
    if (!own) exit(3);
    memcpy(own, bytes, count);
    if (fz_read_instruction(own, count, &instruction) == FZ_OK) {
        float numbers[192];
        (*read)++;
        (void)fz_unpack(instruction.state, numbers);
        for (uint32_t i = 0; i < instruction.update_count; i++) {
            fz_update update;
            if (fz_next_update(&instruction.updates, &update) != FZ_OK) abort();
            if (update.kind != FZ_STEPPED && fz_unpack(update.values, numbers) != FZ_OK) abort();
            for (uint32_t g = 0; g < update.group_count; g++) {
                fz_span scalars;
                int64_t asked;
                if (fz_next_group(&update.groups, &asked, &scalars) != FZ_OK) abort();
                if (fz_unpack(scalars, numbers) != FZ_OK) abort();
            }
        }
        if (instruction.updates.count) abort();
    }
    if (fz_read_reply(own, count, &reply) == FZ_OK) {
        uint8_t out[256];
        size_t size = fz_write_reply(&reply, out, sizeof out);
        fz_reply again;
        (*read)++;
        if (size > sizeof out || fz_read_reply(out, size, &again) != FZ_OK || again.queries != reply.queries) abort();
    }
    fz_span rest = {own, count};
    fz_update update;
    while (rest.count && fz_next_update(&rest, &update) == FZ_OK) {}
    free(own);
}

static double any_number(void) {
    static const double SOME[] = {0, 1, -1, 0.5, 1e-300, 1e300, 5e-324, 1.0 / 3};
    uint64_t bits = next();
    double number;
    memcpy(&number, &bits, 8);
    return next() & 1 ? SOME[below(8)] : number;
}

static fz_status chance(void *unused, uint8_t *bytes, size_t count) {
    (void)unused;
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)next();
    return FZ_OK;
}

/* Sizes and settings of any value: refused, or worked with in memory of exactly the size that was asked for. */
static void settings(unsigned long *read) {
    uint32_t shapes[4][4], places[40];
    float values[4][64], bits[40];
    double scratch[40];
    int32_t whole[40];
    fz_tensor tensors[4];
    fz_layer layers[3];
    uint8_t root[FZ_ROOT] = {0}, labels[2] = {0, 1};
    for (int t = 0; t < 4; t++) {
        tensors[t].name = 0;
        tensors[t].axes = t % 2 ? 1 : (next() & 1 ? 2 : 4);
        for (int axis = 0; axis < 4; axis++) shapes[t][axis] = below(16) ? 1 + below(axis ? 2 : 8) : (uint32_t)next();
        tensors[t].shape = shapes[t];
        tensors[t].values = tensors[t].momentum = values[t];
        for (int i = 0; i < 64; i++) values[t][i] = (float)any_number();
    }
    for (int i = 0; i < 3; i++) {
        layers[i].kind = (fz_kind)below(5);
        layers[i].outputs = next() & 1 ? shapes[2 * (i / 2)][0] : (uint32_t)next();
        layers[i].kernel = below(4) ? below(4) : (uint32_t)next();
        layers[i].padding = below(4) ? below(3) : (uint32_t)next();
    }
    uint32_t sides[3];
    for (int i = 0; i < 3; i++) sides[i] = below(16) ? 1 + below(3) : (uint32_t)next();
    fz_network network = {sides[0], sides[1], sides[2], layers, below(4), 1 + below(3)};
    uint32_t tensor_count = 2 * (1 + below(2));
    if (below(4)) { /* one that fits: a convolution, then a linear layer, or one of them; then one size is changed */
        uint32_t conv = next() & 1, kernel = 1 + below(2), channels = 1 + below(3), side = 2 + below(2), at = conv ? 2 : 0;
        uint32_t out = side - kernel + 1, outputs = 1 + below(2);
        for (int i = 0; i < 3; i++) *(i ? i > 1 ? &network.width : &network.height : &network.channels) = i ? side : channels;
        fz_layer fitting[3] = {{FZ_CONV, outputs, kernel, 0}, {FZ_RELU, 0, 0, 0}, {FZ_LINEAR, 2 + below(2), 0, 0}};
        memcpy(layers, conv ? fitting : fitting + 2, conv ? sizeof fitting : sizeof fitting[0]);
        network.layer_count = conv ? 3 : 1;
        tensors[0].axes = 4;
        for (int axis = 0; axis < 4; axis++) shapes[0][axis] = axis > 1 ? kernel : axis ? channels : outputs;
        shapes[1][0] = outputs;
        tensors[at].axes = 2;
        shapes[at][0] = shapes[at + 1][0] = fitting[2].outputs;
        shapes[at][1] = conv ? out * out * outputs : side * side * channels;
        tensor_count = at + 2;
        if (!below(4)) shapes[below(4)][below(4)]++;
    }
    fz_stream stream = next() & 1 ? FZ_RANK_ONE : FZ_RADEMACHER;
    fz_term terms[3] = {{next(), 0.25f}, {7, (float)any_number()}, {7, -0.25f}};
    size_t size = fz_network_size(&network, tensors, tensor_count, stream, 3);
    if (size && size < 1 << 20) {
        double losses[3];
        float inputs[54] = {0};
        void *memory = malloc(size);
        fz_batch batch = {inputs, labels, 0, 2};
        fz_points points = {tensors, tensor_count, stream, terms, 3};
        if (!memory) exit(3);
        (*read)++;
        if ((uint64_t)network.channels * network.height * network.width <= 27 && fz_network_values(&network, &batch, &points, memory, size, losses) == FZ_MEMORY)
            abort();
        free(memory);
    }
    fz_plan plan = {stream, (fz_rule)below(3), (fz_difference)below(3), below(3), below(4), below(9), any_number(), any_number(), any_number()};
    size_t asked = fz_client_size(&plan, tensors, 1 + below(4));
    if (asked && asked < 1 << 16) {
        void *memory = malloc(asked);
        fz_client *client;
        if (!memory) exit(3);
        if (fz_client_size(&plan, tensors, 4) == asked && fz_client_init(memory, asked, &plan, root, tensors, 4, &client) != FZ_OK) abort();
        free(memory);
    }
    for (int i = 0; i < 40; i++) bits[i] = (float)any_number();
    (void)fz_private(bits, below(40), any_number(), (int32_t)below(300) - 150, (int)(next() & 1), chance, 0, scratch, whole);
    (void)fz_allowance(any_number(), (int32_t)next(), (uint32_t)next());
    fz_clip(bits, below(40), any_number());
    uint32_t most = below(40);
    (void)fz_sample(next(), next() & 1 ? (uint32_t)next() | 64 : most, most, places);
    (void)fz_poisson(next(), below(200), any_number(), below(40), places);
}

int main(int argc, char **argv) {
    unsigned long cases = argc > 1 ? strtoul(argv[1], 0, 10) : 100000, read = 0, fitting = 0;
    state = argc > 2 ? strtoul(argv[2], 0, 10) : 1;
    for (unsigned long i = 0; i < cases; i++) message(&read);
    for (unsigned long i = 0; i < cases / 10; i++) settings(&fitting);
    printf("cases %lu read %lu networks %lu\n", cases, read, fitting);
    return 0;
}
