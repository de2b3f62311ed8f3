/* Batches: a draw without replacement, and a Poisson draw (README.md, Draws). */
#include "internal.h"

typedef struct {
    uint64_t key;
    uint32_t next, words[4];
} source;

static uint32_t word(source *from) {
    if (from->next % 4 == 0) fz_block(from->key, from->next / 4, 0, FZ_DOMAIN_SAMPLE, from->words);
    return from->words[from->next++ % 4];
}

/* A number below `most`, each with the same probability (Lemire's method). */
static uint32_t below(source *from, uint32_t most) {
    uint32_t refused = (uint32_t)(-most) % most;
    uint64_t product;
    do product = (uint64_t)word(from) * most;
    while ((uint32_t)product < refused);
    return (uint32_t)(product >> 32);
}

/* Where a place is, or belongs, among those taken so far. */
static uint32_t found_at(const uint32_t *places, uint32_t taken, uint32_t place) {
    uint32_t low = 0, high = taken;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (places[middle] < place) low = middle + 1;
        else high = middle;
    }
    return low;
}

uint32_t fz_sample(uint64_t key, uint32_t count, uint32_t size, uint32_t *places) {
    source from;
    if (size >= count) {
        for (uint32_t i = 0; i < count; i++) places[i] = i;
        return count;
    }
    from.key = key;
    from.next = 0;
    for (uint32_t taken = 0; taken < size; taken++) { /* Floyd's algorithm; the places stay sorted */
        uint32_t last = count - size + taken, place = below(&from, last + 1), at = found_at(places, taken, place);
        if (at < taken && places[at] == place) {
            place = last;
            at = taken;
        }
        for (uint32_t i = taken; i > at; i--) places[i] = places[i - 1];
        places[at] = place;
    }
    return size;
}

uint32_t fz_poisson(uint64_t key, uint32_t count, double rate, uint32_t most, uint32_t *places) {
    uint32_t drawn = 0, words[4] = {0, 0, 0, 0};
    if (!(rate > 0)) return 0;
    uint64_t limit = rate < 1 ? (uint64_t)(rate * 18446744073709551616.0) : 0;
    for (uint32_t unit = 0; unit < count; unit++) {
        if (unit % 2 == 0) fz_block(key, unit / 2, 0, FZ_DOMAIN_COINS, words);
        uint64_t coin = words[2 * (unit % 2)] | (uint64_t)words[2 * (unit % 2) + 1] << 32;
        if (rate < 1 && coin >= limit) continue;
        if (drawn < most) places[drawn] = unit;
        drawn++;
    }
    return drawn;
}
