/* The choice of a token among the logits of a position. */
#include "simd.h"

#include "kernels.h"

/* The last vector of an array, filled up with -inf. */
INLINE f32x16 load_part(const float *from, int32_t n) {
    f32x16 x = splat(-INFINITY);
    memcpy(&x, from, (size_t)n * sizeof(float));
    return x;
}

INLINE f32x16 load_up_to(const float *x, int32_t i, int32_t n) {
    return n - i >= LANES ? load(x + i) : load_part(x + i, n - i);
}

/* -inf if there is none; NaN does not count. */
static float largest(const float *x, int32_t n) {
    f32x16 peaks = splat(-INFINITY);
    for (int32_t i = 0; i < n; i += LANES)
        peaks = max16(load_up_to(x, i, n), peaks);
    return max_lanes(peaks);
}

/* Sums of some vectors are added to sums of sums, so that small terms are not lost beside a large one. */
INLINE double sum_exponentials(const float *x, int32_t n, float peak, float factor) {
    enum { STRETCH = 64 * LANES };
    double total = 0;
    for (int32_t first = 0; first < n; first += STRETCH) {
        int32_t end = n - first < STRETCH ? n : first + STRETCH;
        f32x16 part = splat(0);
        for (int32_t i = first; i < end; i += LANES)
            part = part + exp16((load_up_to(x, i, n) - peak) * factor);
        total += (double)sum_lanes(part);
    }
    return total;
}

static float log_sum_exp(const float *x, int32_t n) {
    float peak = largest(x, n);
    return isinf(peak) ? peak : peak + natural_log(sum_exponentials(x, n, peak, 1));
}

static void top(const float *x, int32_t n, int32_t k, int64_t *best) {
    int32_t found = 0;
    for (int32_t first = 0; first < n; first += LANES) {
        f32x16 values = load_up_to(x, first, n);
        if (found == k && !__builtin_reduce_or(values > x[best[k - 1]]))
            continue;
        int32_t end = n - first < LANES ? n - first : LANES;
        for (int32_t lane = 0; lane < end; lane++) {
            float value = values[lane];
            if (found == k && !(value > x[best[k - 1]]))
                continue;
            int32_t rank = found < k ? found++ : k - 1;
            for (; rank > 0 && value > x[best[rank - 1]]; rank--)
                best[rank] = best[rank - 1];
            best[rank] = first + lane;
        }
    }
}

/* The first index at which the cumulative distribution exceeds `uniform`. */
static int32_t sample(const float *x, int32_t n, float temperature, double uniform) {
    float peak = largest(x, n), factor = 1 / temperature;
    double threshold = uniform * sum_exponentials(x, n, peak, factor), cumulative = 0;
    int32_t last = 0;
    for (int32_t first = 0; first < n; first += LANES) {
        f32x16 weights = exp16((load_up_to(x, first, n) - peak) * factor);
        for (int32_t lane = 0; lane < LANES && first + lane < n; lane++) {
            cumulative += (double)weights[lane];
            if (weights[lane] > 0) {
                last = first + lane;
                if (cumulative > threshold)
                    return last;
            }
        }
    }
    return last; /* the two sums differ in their last bits */
}
