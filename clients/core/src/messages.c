/* The inner messages of docs/ledger.md, read strictly: types, lengths and forms are checked before anything is used, no
 * byte is read beyond the end, and nothing is nested but where the format says so. What stands behind the last known
 * field of an array is passed over, as the format demands.
 */
#include "internal.h"

typedef struct {
    const uint8_t *at, *end;
    int bad;
} reader;

static const uint8_t *take(reader *from, uint64_t count) {
    const uint8_t *begin = from->at;
    if (from->bad || (uint64_t)(from->end - from->at) < count) {
        from->bad = 1;
        return 0;
    }
    from->at += (size_t)count;
    return begin;
}

static uint64_t big_endian(reader *from, int bytes) {
    const uint8_t *begin = take(from, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = 0; begin && i < bytes; i++) value = value << 8 | begin[i];
    return value;
}

static uint8_t head(reader *from) { return (uint8_t)big_endian(from, 1); }

static uint64_t refuse(reader *from) {
    from->bad = 1;
    return 0;
}

/* A number in 1, 2, 4 or 8 bytes that does not fit in fewer. */
static uint64_t shortest(reader *from, int bytes, uint64_t least) {
    uint64_t value = big_endian(from, bytes);
    return value < least ? refuse(from) : value;
}

static int64_t natural(reader *from) {
    uint8_t first = head(from);
    uint64_t value = first;
    if (first == 0xCC) value = shortest(from, 1, 1 << 7);
    else if (first == 0xCD) value = shortest(from, 2, 1 << 8);
    else if (first == 0xCE) value = shortest(from, 4, 1 << 16);
    else if (first == 0xCF) value = shortest(from, 8, 1ull << 32);
    else if (first > 0x7F) value = refuse(from);
    return value > INT64_MAX ? (int64_t)refuse(from) : (int64_t)value;
}

/* The number of elements of an array. Each takes a byte at least, so no count is larger than what is left. */
static uint32_t array(reader *from) {
    uint8_t first = head(from);
    uint64_t count = first & 15u;
    if (first == 0xDC) count = shortest(from, 2, 1 << 4);
    else if (first == 0xDD) count = shortest(from, 4, 1 << 16);
    else if (first >> 4 != 9) count = refuse(from);
    return !from->bad && count <= (uint64_t)(from->end - from->at) ? (uint32_t)count : (uint32_t)refuse(from);
}

static fz_span binary(reader *from) {
    fz_span found = {0, 0};
    uint8_t first = head(from);
    uint64_t count = 0;
    if (first == 0xC4) count = big_endian(from, 1);
    else if (first == 0xC5) count = shortest(from, 2, 1 << 8);
    else if (first == 0xC6) count = shortest(from, 4, 1 << 16);
    else (void)refuse(from);
    found.bytes = take(from, count);
    found.count = found.bytes ? (size_t)count : 0;
    return found;
}

static int is_nil(reader *from) {
    if (from->bad || from->at == from->end || *from->at != 0xC0) return 0;
    from->at++;
    return 1;
}

/* Passes over any values, nested ones too: `left` of them are still to come. */
static void pass(reader *from, uint64_t left) {
    static const uint8_t SIZES[32] = {0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8,  /* C0 … CF */
                                      1, 2, 4, 8, 1, 2, 4, 8, 16, 1, 2, 4, 2, 4, 2, 4}; /* D0 … DF */
    for (; left && !from->bad; left--) {
        uint8_t first = head(from);
        if (first < 0x80 || first >= 0xE0) continue;
        uint64_t more = 0, size = 0;
        if (first < 0x90) more = 2 * (uint64_t)(first & 15);
        else if (first < 0xA0) more = first & 15;
        else if (first < 0xC0) size = first & 31;
        else {
            uint8_t bytes = SIZES[first - 0xC0];
            if (first == 0xC1) (void)refuse(from);
            if ((first >= 0xC4 && first <= 0xC9) || (first >= 0xD9 && first <= 0xDB)) {
                size = big_endian(from, bytes);
                size += first >= 0xC7 && first <= 0xC9; /* the type of an extension */
            } else if (first >= 0xD4 && first <= 0xD8) size = (uint64_t)bytes + 1;
            else if (first == 0xDC || first == 0xDD) more = big_endian(from, bytes);
            else if (first >= 0xDE) more = 2 * big_endian(from, bytes);
            else size = bytes;
        }
        (void)take(from, size);
        left += more;
        if (left - 1 > (uint64_t)(from->end - from->at)) (void)refuse(from);
    }
}

static int finite(fz_span packed) {
    if (packed.count % 4) return 0;
    for (size_t i = 0; i < packed.count; i += 4)
        if (!fz_is_finite(fz_float(fz_load32(packed.bytes + i)))) return 0;
    return 1;
}

/* Numbers of clients; returns how many. rising: each once, in order. */
static uint32_t clients(reader *from, int rising) {
    uint32_t count = array(from);
    int64_t before = -1;
    for (uint32_t i = 0; i < count && !from->bad; i++) {
        int64_t client = natural(from);
        if (rising && client <= before) (void)refuse(from);
        before = client;
    }
    return count;
}

static int64_t group(reader *from, fz_span *scalars) {
    uint32_t fields = array(from), named = 0;
    fz_span weights = {0, 0};
    if (fields < 2) return (int64_t)refuse(from);
    int64_t asked = natural(from);
    *scalars = binary(from);
    if (!scalars->count || !finite(*scalars)) (void)refuse(from);
    if (fields > 2) named = clients(from, 1);
    if (fields > 3) weights = binary(from);
    if (fields > 4) (void)clients(from, 1);
    if (fields > 5) pass(from, fields - 5);
    if (!finite(weights) || (weights.count && weights.count != 4 * (size_t)named)) (void)refuse(from);
    return asked;
}

static void update(reader *from, fz_update *found) {
    uint32_t fields = array(from);
    memset(found, 0, sizeof *found);
    if (fields < 3) {
        (void)refuse(from);
        return;
    }
    int64_t tag = natural(from);
    found->round = natural(from);
    if (tag == FZ_STEPPED) {
        int64_t before = -1;
        found->kind = FZ_STEPPED;
        found->group_count = array(from);
        found->groups.bytes = from->at;
        if (!found->group_count) (void)refuse(from);
        for (uint32_t g = 0; g < found->group_count && !from->bad; g++) {
            fz_span scalars;
            int64_t asked = group(from, &scalars);
            if (asked <= before || asked > found->round) (void)refuse(from);
            before = asked;
        }
        found->groups.count = (size_t)(from->at - found->groups.bytes);
        if (fields > 3) pass(from, fields - 3);
        return;
    }
    if (tag != FZ_SEEDED && tag != FZ_DENSE) (void)refuse(from);
    found->kind = tag == FZ_SEEDED ? FZ_SEEDED : FZ_DENSE;
    found->values = binary(from);
    if (!finite(found->values)) (void)refuse(from);
    uint32_t known = 3;
    for (; known < fields && known < (tag == FZ_SEEDED ? 5u : 4u); known++) (void)clients(from, 0);
    pass(from, fields - known);
}

static reader reader_of(const uint8_t *bytes, size_t count) {
    reader from;
    from.at = bytes;
    from.end = bytes + count;
    from.bad = 0;
    return from;
}

static void updates(reader *from, uint32_t count, fz_instruction *found) {
    fz_update one;
    found->update_count = count;
    found->updates.bytes = from->at;
    for (uint32_t i = 0; i < count && !from->bad; i++) update(from, &one);
    found->updates.count = (size_t)(from->at - found->updates.bytes);
}

fz_status fz_read_instruction(const uint8_t *bytes, size_t count, fz_instruction *found) {
    static const uint8_t LEAST[5] = {0, 4, 5, 3, 4}, MOST[5] = {0, 5, 6, 3, 5};
    reader from = reader_of(bytes, count);
    uint32_t fields = array(&from), read = 3;
    int64_t tag = natural(&from);
    memset(found, 0, sizeof *found);
    found->counted = -1;
    if (from.bad || tag < 1 || tag > 4 || fields < LEAST[tag]) return FZ_MESSAGE;
    found->kind = (fz_instruction_kind)tag;
    found->round = natural(&from);
    if (tag == FZ_CLOSE) updates(&from, 1, found);
    else found->exchange = natural(&from);
    if (tag == FZ_WORK) {
        updates(&from, array(&from), found);
        read = 4;
    }
    if (tag == FZ_SNAPSHOT) {
        found->steps = -1;
        if (from.at < from.end && *from.at >= 0xC4 && *from.at <= 0xC6) found->numbers = binary(&from);
        else found->steps = natural(&from);
        found->state = binary(&from);
        read = 5;
    }
    if (tag == FZ_CONTINUE) {
        found->values = binary(&from);
        read = 4;
        if (fields > read++) (void)clients(&from, 0);
    }
    if ((tag == FZ_WORK || tag == FZ_SNAPSHOT) && fields > read++ && !is_nil(&from)) found->counted = natural(&from);
    if (fields > MOST[tag]) pass(&from, fields - MOST[tag]);
    return from.bad || from.at != from.end ? FZ_MESSAGE : FZ_OK;
}

fz_status fz_next_update(fz_span *left, fz_update *found) {
    reader from = reader_of(left->bytes, left->count);
    update(&from, found);
    if (from.bad) return FZ_MESSAGE;
    left->count -= (size_t)(from.at - left->bytes);
    left->bytes = from.at;
    return FZ_OK;
}

fz_status fz_next_group(fz_span *left, int64_t *asked, fz_span *scalars) {
    reader from = reader_of(left->bytes, left->count);
    *asked = group(&from, scalars);
    if (from.bad) return FZ_MESSAGE;
    left->count -= (size_t)(from.at - left->bytes);
    left->bytes = from.at;
    return FZ_OK;
}

fz_status fz_unpack(fz_span packed, float *out) {
    if (!finite(packed)) return packed.count % 4 ? FZ_MESSAGE : FZ_NUMBER;
    for (size_t i = 0; i < packed.count / 4; i++) out[i] = fz_float(fz_load32(packed.bytes + 4 * i));
    return FZ_OK;
}

fz_status fz_read_reply(const uint8_t *bytes, size_t count, fz_reply *found) {
    reader from = reader_of(bytes, count);
    uint32_t fields = array(&from);
    if (from.bad || fields < 6) return FZ_MESSAGE;
    found->round = natural(&from);
    found->exchange = natural(&from);
    fz_span digest = binary(&from);
    found->values = binary(&from);
    found->loss = binary(&from);
    found->queries = natural(&from);
    if (fields > 6) (void)binary(&from);
    if (fields > 7) pass(&from, fields - 7);
    if (from.bad || from.at != from.end || digest.count != 8) return FZ_MESSAGE;
    memcpy(found->digest, digest.bytes, 8);
    return FZ_OK;
}

typedef struct {
    uint8_t *out;
    size_t count;
} writer;

static void put(writer *to, const uint8_t *bytes, size_t count) {
    if (to->out && count) memcpy(to->out + to->count, bytes, count);
    to->count += count;
}

/* A head byte and a number of 1, 2, 4 or 8 bytes, big-endian. */
static void put_number(writer *to, uint8_t first, uint64_t value, int bytes) {
    uint8_t own[9];
    own[0] = first;
    for (int i = 0; i < bytes; i++) own[1 + i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
    put(to, own, 1 + (size_t)bytes);
}

static void put_natural(writer *to, int64_t number) {
    uint64_t value = (uint64_t)number;
    if (value < 0x80) put_number(to, (uint8_t)value, 0, 0);
    else if (value < 1 << 8) put_number(to, 0xCC, value, 1);
    else if (value < 1 << 16) put_number(to, 0xCD, value, 2);
    else if (value < 1ull << 32) put_number(to, 0xCE, value, 4);
    else put_number(to, 0xCF, value, 8);
}

static void put_binary(writer *to, const uint8_t *bytes, size_t count) {
    if (count < 1 << 8) put_number(to, 0xC4, count, 1);
    else if (count < 1 << 16) put_number(to, 0xC5, count, 2);
    else put_number(to, 0xC6, count, 4);
    put(to, bytes, count);
}

size_t fz_write_reply(const fz_reply *reply, uint8_t *out, size_t room) {
    writer to = {0, 0};
    for (int pass = 0; pass < 2; pass++) { /* measured, then written */
        to.count = 0;
        put_number(&to, 0x96, 0, 0);
        put_natural(&to, reply->round);
        put_natural(&to, reply->exchange);
        put_binary(&to, reply->digest, 8);
        put_binary(&to, reply->values.bytes, reply->values.count);
        put_binary(&to, reply->loss.bytes, reply->loss.count);
        put_natural(&to, reply->queries);
        if (!out || to.count > room) break;
        to.out = out;
    }
    return to.count;
}
