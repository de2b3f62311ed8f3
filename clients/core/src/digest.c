/* Checksum of a tensor (docs/directions.md, Checksum) and the 8-byte digest of a model (docs/ledger.md). */
#include "internal.h"

uint64_t fz_checksum(const float *values, uint32_t count) {
    uint64_t sum = 0, place = 0;
    for (uint32_t i = 0; i < count; i++, place += 0x9E3779B97F4A7C15u) {
        uint64_t h = place + fz_bits(values[i]);
        h = (h ^ h >> 33) * 0xFF51AFD7ED558CCDu;
        h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53u;
        sum += h ^ h >> 33;
    }
    return sum;
}

static void add_text(fz_hash *hash, const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    fz_hash_add(hash, (const uint8_t *)text, length);
}

static void add_number(fz_hash *hash, uint32_t number) {
    char digits[11];
    int first = 10;
    digits[10] = 0;
    do {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    add_text(hash, digits + first);
}

/* A shape as Python writes a tuple: (16, 1, 5, 5), (16,) or (). */
static void add_shape(fz_hash *hash, const fz_tensor *tensor) {
    add_text(hash, "(");
    for (uint32_t axis = 0; axis < tensor->axes; axis++) {
        if (axis) add_text(hash, ", ");
        add_number(hash, tensor->shape[axis]);
    }
    add_text(hash, tensor->axes == 1 ? ",)" : ")");
}

void fz_digest(const fz_tensor *tensors, uint32_t count, uint8_t digest[8]) {
    static const uint8_t nought[1] = {0};
    fz_hash hash;
    fz_hash_begin(&hash, 8, 0, 0, "fedzero-model");
    for (uint32_t i = 0; i < count; i++) {
        uint8_t sum[8];
        add_text(&hash, tensors[i].name ? tensors[i].name : "");
        fz_hash_add(&hash, nought, 1);
        add_text(&hash, "float32");
        fz_hash_add(&hash, nought, 1);
        add_shape(&hash, tensors + i);
        fz_hash_add(&hash, nought, 1);
        fz_store64(sum, fz_checksum(tensors[i].values, fz_count(tensors + i)));
        fz_hash_add(&hash, sum, 8);
    }
    fz_hash_end(&hash, digest);
}
