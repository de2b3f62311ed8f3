/* A client of a seeded method: folds of updates, and the turn of a round (docs/ledger.md, Estimates, Methods). */
#include "internal.h"

struct fz_client {
    fz_plan plan;
    uint8_t root[FZ_ROOT];
    const fz_tensor *tensors;
    uint32_t count;
    fz_tensor *local; /* copies, where K > 1 */
    fz_term *terms, *points;
    uint64_t *keys;
    float *coefficients;
    double *values;
};

static int proper(const fz_plan *plan) {
    int streams = plan->stream == FZ_RADEMACHER || plan->stream == FZ_RANK_ONE;
    int rules = plan->rule == FZ_SGD || (plan->rule == FZ_MOMENTUM && plan->beta >= 0 && plan->beta < 1);
    int differences = plan->difference == FZ_FORWARD || plan->difference == FZ_CENTRAL;
    int sizes = plan->local_steps >= 1 && plan->local_steps <= 1 << 16 && plan->most_directions >= 1 &&
                plan->most_directions <= 1 << 20 && plan->most_terms >= plan->most_directions &&
                plan->most_terms <= 1 << 24;
    int numbers = plan->radius > 0 && fz_is_finite64(plan->radius) && plan->clip >= 0 && fz_is_finite64(plan->clip);
    return streams && rules && differences && sizes && numbers;
}

/* Bytes of the parts of a client, in the order in which they lie in memory. */
typedef struct {
    size_t terms, points, keys, coefficients, values, local, copies, all;
} parts;

static int measure(const fz_plan *plan, const fz_tensor *tensors, uint32_t count, parts *found) {
    uint64_t numbers = 0;
    uint32_t points = fz_point_count(plan->difference, plan->most_directions);
    if (!proper(plan) || !count) return 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t own = fz_count(tensors + i);
        if (own == UINT32_MAX || (own && !tensors[i].values)) return 0;
        if (plan->rule == FZ_MOMENTUM && own && !tensors[i].momentum) return 0;
        numbers += own;
    }
    if (numbers > UINT32_MAX / 8) return 0;
    found->terms = fz_aligned(plan->most_terms * sizeof(fz_term));
    found->points = fz_aligned(points * sizeof(fz_term));
    found->keys = fz_aligned(plan->most_directions * sizeof(uint64_t));
    found->coefficients = fz_aligned(plan->most_directions * sizeof(float));
    found->values = fz_aligned(points * sizeof(double));
    found->local = found->copies = 0;
    if (plan->local_steps > 1) {
        found->local = fz_aligned(count * sizeof(fz_tensor));
        found->copies = fz_aligned((size_t)numbers * sizeof(float) * (plan->rule == FZ_MOMENTUM ? 2 : 1));
    }
    found->all = fz_aligned(sizeof(fz_client)) + found->terms + found->points + found->keys + found->coefficients +
                 found->values + found->local + found->copies;
    return 1;
}

size_t fz_client_size(const fz_plan *plan, const fz_tensor *tensors, uint32_t count) {
    parts found;
    return measure(plan, tensors, count, &found) ? found.all : 0;
}

fz_status fz_client_init(void *memory, size_t size, const fz_plan *plan, const uint8_t root[FZ_ROOT],
                         const fz_tensor *tensors, uint32_t count, fz_client **client) {
    parts found;
    if (!measure(plan, tensors, count, &found)) return FZ_ARGUMENT;
    if (size < found.all || (uintptr_t)memory % 16) return FZ_MEMORY;
    fz_client *made = memory;
    uint8_t *at = (uint8_t *)memory + fz_aligned(sizeof(fz_client));
    made->plan = *plan;
    memcpy(made->root, root, FZ_ROOT);
    made->tensors = tensors;
    made->count = count;
    made->terms = (fz_term *)(void *)at;
    made->points = (fz_term *)(void *)(at += found.terms);
    made->keys = (uint64_t *)(void *)(at += found.points);
    made->coefficients = (float *)(void *)(at += found.keys);
    made->values = (double *)(void *)(at += found.coefficients);
    at += found.values;
    made->local = found.local ? (fz_tensor *)(void *)at : 0;
    float *copy = (float *)(void *)(at + found.local);
    for (uint32_t i = 0; made->local && i < count; i++) {
        made->local[i] = tensors[i];
        made->local[i].values = copy;
        copy += fz_count(tensors + i);
        if (plan->rule != FZ_MOMENTUM) continue;
        made->local[i].momentum = copy;
        copy += fz_count(tensors + i);
    }
    *client = made;
    return FZ_OK;
}

/* Appends the terms factor/P · g_p z_p of one row of scalars. */
static void append(fz_client *client, uint32_t at, int64_t asked, uint32_t step, const float *slopes,
                   uint32_t directions, double factor) {
    double share = factor / directions;
    for (uint32_t p = 0; p < directions; p++) {
        client->terms[at + p].key = fz_direction_key(client->root, asked, step, p, FZ_SHARED);
        client->terms[at + p].coefficient = (float)(share * (double)slopes[p]);
    }
}

static fz_status fold(const fz_client *client, const fz_tensor *tensors, uint32_t terms, double rate) {
    fz_step step;
    step.terms = client->terms;
    step.count = terms;
    step.rate = (float)rate;
    step.beta = (float)client->plan.beta;
    step.rest = (float)(1 - client->plan.beta);
    return fz_advance(tensors, client->count, client->plan.stream, client->plan.rule, &step, 1);
}

static fz_status expect(const fz_client *client, double rate, const fz_group *groups, uint32_t count) {
    uint64_t terms = 0;
    uint32_t steps = client->plan.local_steps;
    if (!fz_is_finite64(rate)) return FZ_NUMBER;
    for (uint32_t g = 0; g < count; g++) {
        if (!groups[g].count || groups[g].count % steps) return FZ_ARGUMENT;
        terms += groups[g].count / steps;
        if (groups[g].count / steps > client->plan.most_terms) return FZ_MEMORY;
        for (uint32_t i = 0; i < groups[g].count; i++)
            if (!fz_is_finite(groups[g].scalars[i])) return FZ_NUMBER;
    }
    return terms > client->plan.most_terms && client->plan.rule != FZ_SGD ? FZ_MEMORY : FZ_OK;
}

fz_status fz_client_apply(fz_client *client, double rate, const fz_group *groups, uint32_t count) {
    int plain = client->plan.rule == FZ_SGD;
    double factor = plain ? -rate : 1.0;
    uint32_t terms = 0;
    fz_status status = expect(client, rate, groups, count);
    for (uint32_t k = 0; status == FZ_OK && k < client->plan.local_steps; k++) {
        for (uint32_t g = 0; status == FZ_OK && g < count; g++) {
            uint32_t directions = groups[g].count / client->plan.local_steps;
            if (terms + directions > client->plan.most_terms) { /* of plain steps: terms are added one by one anyway */
                status = fold(client, client->tensors, terms, rate);
                terms = 0;
            }
            append(client, terms, groups[g].asked, k, groups[g].scalars + (size_t)k * directions, directions, factor);
            terms += directions;
        }
        if (plain || status != FZ_OK) continue;
        status = fold(client, client->tensors, terms, rate);
        terms = 0;
    }
    if (status == FZ_OK && terms) status = fold(client, client->tensors, terms, rate);
    return status;
}

static void copy_model(fz_client *client) {
    for (uint32_t i = 0; i < client->count; i++) {
        size_t bytes = 4 * (size_t)fz_count(client->tensors + i);
        memcpy(client->local[i].values, client->tensors[i].values, bytes);
        if (client->plan.rule == FZ_MOMENTUM) memcpy(client->local[i].momentum, client->tensors[i].momentum, bytes);
    }
}

/* The values at the points of a step, and its slopes. */
static fz_status estimate(fz_client *client, const fz_tensor *tensors, int64_t round, uint32_t step,
                          uint32_t directions, const fz_oracle *oracle, float *slopes, double *loss) {
    const fz_plan *plan = &client->plan;
    float radius = (float)plan->radius;
    fz_points points;
    uint32_t at = 0;
    if (plan->difference == FZ_FORWARD) {
        client->points[at].key = 0;
        client->points[at++].coefficient = 0;
    }
    for (uint32_t p = 0; p < directions; p++) {
        client->keys[p] = fz_direction_key(client->root, round, step, p, FZ_SHARED);
        client->points[at].key = client->keys[p];
        client->points[at++].coefficient = radius;
        if (plan->difference != FZ_CENTRAL) continue;
        client->points[at].key = client->keys[p];
        client->points[at++].coefficient = -radius;
    }
    points.tensors = tensors;
    points.tensor_count = client->count;
    points.stream = plan->stream;
    points.terms = client->points;
    points.count = at;
    fz_status status = oracle->values(oracle->state, &points, round, step, client->values);
    if (status != FZ_OK) return status;
    return fz_slopes(client->values, plan->difference, directions, plan->radius, slopes, loss);
}

fz_status fz_client_turn(fz_client *client, int64_t round, double rate, uint32_t directions, const fz_oracle *oracle,
                         float *scalars, double *loss) {
    const fz_plan *plan = &client->plan;
    const fz_tensor *tensors = client->tensors;
    if (!directions || directions > plan->most_directions) return FZ_ARGUMENT;
    if (!fz_is_finite64(rate)) return FZ_NUMBER;
    for (uint32_t k = 0; k < plan->local_steps; k++) {
        float *slopes = scalars + (size_t)k * directions;
        double here = 0;
        fz_status status = estimate(client, tensors, round, k, directions, oracle, slopes, &here);
        if (status != FZ_OK) return status;
        if (k == 0) *loss = here;
        if (k + 1 == plan->local_steps) break;
        if (k == 0) copy_model(client);
        tensors = client->local;
        fz_coefficients(slopes, directions, plan->rule == FZ_SGD ? -rate : 1.0, client->coefficients);
        for (uint32_t p = 0; p < directions; p++) {
            client->terms[p].key = client->keys[p];
            client->terms[p].coefficient = client->coefficients[p];
        }
        status = fold(client, tensors, directions, rate);
        if (status != FZ_OK) return status;
    }
    if (plan->clip > 0) fz_clip(scalars, plan->local_steps * directions, plan->clip);
    return FZ_OK;
}
