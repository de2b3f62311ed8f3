/* Keys: every random number of a run is a function of one root and a few integers (docs/directions.md, Keys). */
#include "internal.h"

enum { MOST_NUMBERS = 8 };

void fz_root(int64_t seed, uint8_t root[FZ_ROOT]) {
    uint8_t message[8];
    fz_store64(message, (uint64_t)seed);
    fz_blake2b(root, FZ_ROOT, 0, 0, "fedzero-root", message, 8);
}

fz_status fz_shifted_root(const uint8_t root[FZ_ROOT], const uint8_t *secret, size_t length, uint8_t shifted[FZ_ROOT]) {
    if (length < 1 || length > 64) return FZ_ARGUMENT;
    fz_blake2b(shifted, FZ_ROOT, secret, (uint32_t)length, "fedzero-shift", root, FZ_ROOT);
    return FZ_OK;
}

fz_status fz_key(const uint8_t root[FZ_ROOT], const char *purpose, const int64_t *numbers, uint32_t count,
                 uint64_t *key) {
    uint8_t message[8 * MOST_NUMBERS], out[8];
    uint32_t length = 0;
    while (length <= 16 && purpose[length]) length++;
    if (length < 1 || length > 16 || count > MOST_NUMBERS) return FZ_ARGUMENT;
    for (uint32_t i = 0; i < count; i++) fz_store64(message + 8 * i, (uint64_t)numbers[i]);
    fz_blake2b(out, 8, root, FZ_ROOT, purpose, message, 8 * (size_t)count);
    *key = fz_load64(out);
    return FZ_OK;
}

uint64_t fz_direction_key(const uint8_t root[FZ_ROOT], int64_t round, int64_t step, int64_t direction, int64_t client) {
    int64_t numbers[4];
    uint64_t key = 0;
    numbers[0] = round;
    numbers[1] = step;
    numbers[2] = direction;
    numbers[3] = client;
    (void)fz_key(root, "direction", numbers, 4, &key);
    return key;
}
