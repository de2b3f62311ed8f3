/* BLAKE2b, keyed and personalised, sequential (RFC 7693; the personalisation is bytes 48–63 of the parameter block). */
#include "internal.h"

static const uint64_t IV[8] = {
    0x6A09E667F3BCC908u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u,
};

/* Rows of message words, two words a byte. */
static const uint8_t ORDER[10][8] = {
    {0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF}, {0xEA, 0x48, 0x9F, 0xD6, 0x1C, 0x02, 0xB7, 0x53},
    {0xB8, 0xC0, 0x52, 0xFD, 0xAE, 0x36, 0x71, 0x94}, {0x79, 0x31, 0xDC, 0xBE, 0x26, 0x5A, 0x40, 0xF8},
    {0x90, 0x57, 0x24, 0xAF, 0xE1, 0xBC, 0x68, 0x3D}, {0x2C, 0x6A, 0x0B, 0x83, 0x4D, 0x75, 0xFE, 0x19},
    {0xC5, 0x1F, 0xED, 0x4A, 0x07, 0x63, 0x92, 0x8B}, {0xDB, 0x7E, 0xC1, 0x39, 0x50, 0xF4, 0x86, 0x2A},
    {0x6F, 0xE9, 0xB3, 0x08, 0xC2, 0xD7, 0x14, 0xA5}, {0xA2, 0x84, 0x76, 0x15, 0xFB, 0x9E, 0x3C, 0xD0},
};

static uint64_t turned(uint64_t x, int places) { return x >> places | x << (64 - places); }

static void mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = turned(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = turned(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 63);
}

static void compress(fz_hash *hash, int last) {
    uint64_t v[16], m[16];
    for (int i = 0; i < 16; i++) m[i] = fz_load64(hash->block + 8 * i);
    for (int i = 0; i < 8; i++) {
        v[i] = hash->state[i];
        v[i + 8] = IV[i];
    }
    v[12] ^= hash->count;
    if (last) v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *order = ORDER[round % 10];
        for (int i = 0; i < 8; i++) { /* four columns, then four diagonals */
            int turn = i < 4 ? 0 : 1, column = i & 3;
            mix(v, column, 4 + ((column + turn) & 3), 8 + ((column + 2 * turn) & 3), 12 + ((column + 3 * turn) & 3),
                m[order[i] >> 4], m[order[i] & 15]);
        }
    }
    for (int i = 0; i < 8; i++) hash->state[i] ^= v[i] ^ v[i + 8];
}

void fz_hash_begin(fz_hash *hash, uint32_t length, const uint8_t *key, uint32_t key_length, const char *person) {
    uint8_t parameters[64];
    memset(parameters, 0, sizeof parameters);
    parameters[0] = (uint8_t)length;
    parameters[1] = (uint8_t)key_length;
    parameters[2] = parameters[3] = 1;
    for (int i = 0; i < 16 && person[i]; i++) parameters[48 + i] = (uint8_t)person[i];
    for (int i = 0; i < 8; i++) hash->state[i] = IV[i] ^ fz_load64(parameters + 8 * i);
    memset(hash->block, 0, 128);
    hash->count = 0;
    hash->length = length;
    hash->filled = 0;
    if (key_length) { /* the key is a block of its own */
        memcpy(hash->block, key, key_length);
        hash->filled = 128;
    }
}

void fz_hash_add(fz_hash *hash, const uint8_t *bytes, size_t count) {
    while (count) {
        if (hash->filled == 128) { /* only when more follows: the last block is marked */
            hash->count += 128;
            compress(hash, 0);
            hash->filled = 0;
        }
        size_t part = 128 - hash->filled;
        part = part < count ? part : count;
        memcpy(hash->block + hash->filled, bytes, part);
        hash->filled += (uint32_t)part;
        bytes += part;
        count -= part;
    }
}

void fz_hash_end(fz_hash *hash, uint8_t *out) {
    hash->count += hash->filled;
    memset(hash->block + hash->filled, 0, 128 - hash->filled);
    compress(hash, 1);
    for (uint32_t i = 0; i < hash->length; i++) out[i] = (uint8_t)(hash->state[i / 8] >> (8 * (i % 8)));
}

void fz_blake2b(uint8_t *out, uint32_t length, const uint8_t *key, uint32_t key_length, const char *person,
                const uint8_t *message, size_t count) {
    fz_hash hash;
    fz_hash_begin(&hash, length, key, key_length, person);
    fz_hash_add(&hash, message, count);
    fz_hash_end(&hash, out);
}
