/* Differences, coefficients and norms in float64, in the order of docs/ledger.md (Estimates) and of NumPy's sums. */
#include "internal.h"

typedef double (*number)(const void *values, size_t place);

static double plain(const void *values, size_t place) { return ((const double *)values)[place]; }

static double square(const void *values, size_t place) {
    double value = ((const float *)values)[place];
    return value * value;
}

static double wide_square(const void *values, size_t place) {
    double value = ((const double *)values)[place];
    return value * value;
}

/* Sums of up to 128 numbers have eight accumulators; longer ones are halved, at a multiple of eight. */
static double sum_of(number get, const void *values, size_t begin, size_t count) {
    if (count > 128) {
        size_t half = count / 2 - count / 2 % 8;
        double left = sum_of(get, values, begin, half); /* the depth is log₂(count/128) */
        return left + sum_of(get, values, begin + half, count - half);
    }
    double sum = 0;
    size_t i = 0;
    if (count >= 8) {
        double part[8];
        for (size_t j = 0; j < 8; j++) part[j] = get(values, begin + j);
        for (i = 8; i + 8 <= count; i += 8)
            for (size_t j = 0; j < 8; j++) part[j] += get(values, begin + i + j);
        sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    }
    for (; i < count; i++) sum += get(values, begin + i);
    return sum;
}

double fz_sum(const double *values, size_t count) { return sum_of(plain, values, 0, count); }

double fz_norm(const double *values, size_t count) { return fz_sqrt(sum_of(wide_square, values, 0, count)); }

uint32_t fz_point_count(fz_difference difference, uint32_t directions) {
    return difference == FZ_CENTRAL ? 2 * directions : directions + 1;
}

fz_status fz_slopes(const double *values, fz_difference difference, uint32_t directions, double radius, float *slopes,
                    double *loss) {
    if (!(radius > 0) || !directions || (difference != FZ_FORWARD && difference != FZ_CENTRAL)) return FZ_ARGUMENT;
    uint32_t count = fz_point_count(difference, directions);
    for (uint32_t p = 0; p < count; p++)
        if (!fz_is_finite64(values[p])) return FZ_NUMBER;
    for (uint32_t p = 0; p < directions; p++) {
        double slope = difference == FZ_CENTRAL ? (values[2 * p] - values[2 * p + 1]) / (2 * radius)
                                                : (values[p + 1] - values[0]) / radius;
        slopes[p] = (float)slope;
        if (!fz_is_finite(slopes[p])) return FZ_NUMBER;
    }
    *loss = difference == FZ_CENTRAL ? fz_sum(values, count) / count : values[0];
    return FZ_OK;
}

void fz_coefficients(const float *slopes, uint32_t directions, double factor, float *coefficients) {
    double share = factor / directions;
    for (uint32_t p = 0; p < directions; p++) coefficients[p] = (float)(share * (double)slopes[p]);
}

void fz_clip(float *values, uint32_t count, double norm) {
    double length = fz_sqrt(sum_of(square, values, 0, count));
    if (length <= norm || !fz_is_finite64(length)) return; /* an infinite norm is for the server to refuse */
    double share = norm / length;
    for (uint32_t i = 0; i < count; i++) values[i] = (float)((double)values[i] * share);
}
