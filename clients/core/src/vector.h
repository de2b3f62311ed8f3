/* Vectors of FZ_LANES float32 numbers, by the vector types of GCC and Clang; one number where there are none.
 *
 * Every operation works on each lane as the plain one does, so the bits do not depend on FZ_LANES.
 */
#ifndef FZ_VECTOR_H
#define FZ_VECTOR_H

#include "internal.h"

#ifndef FZ_LANES
#if !defined(__GNUC__)
#define FZ_LANES 1
#elif defined(__AVX2__)
#define FZ_LANES 8
#elif defined(__SSE2__) || defined(__wasm_simd128__) || defined(__ARM_NEON)
#define FZ_LANES 4
#else
#define FZ_LANES 1
#endif
#endif

#if FZ_LANES > 1

typedef float fz_v __attribute__((vector_size(4 * FZ_LANES)));
typedef uint32_t fz_u __attribute__((vector_size(4 * FZ_LANES)));
/* The same in memory: not aligned, and free to alias numbers of the element type. */
typedef float fz_v_memory __attribute__((vector_size(4 * FZ_LANES), aligned(4), may_alias));
typedef uint32_t fz_u_memory __attribute__((vector_size(4 * FZ_LANES), aligned(4), may_alias));

static inline fz_v fz_get(const float *from) { return *(const fz_v_memory *)from; }
static inline void fz_put(float *to, fz_v value) { *(fz_v_memory *)to = value; }
static inline fz_u fz_get_bits(const uint32_t *from) { return *(const fz_u_memory *)from; }
static inline fz_v fz_all(float value) { return value - (fz_v){0}; } /* x − 0 is x, also for −0 */
static inline fz_u fz_all_bits(uint32_t value) { return value | (fz_u){0}; }
static inline fz_v fz_as_numbers(fz_u bits) { return (fz_v)bits; }
static inline fz_u fz_as_bits(fz_v numbers) { return (fz_u)numbers; }

/* Hides how a vector was made: of a product and a shift a compiler makes shifts by another number in each lane, which
 * WebAssembly and SSE do not have. */
#if defined(__wasm__)
#define FZ_KEEP(vector) __asm__("" : "+r"(vector))
#elif defined(__SSE2__) && !defined(__AVX2__)
#define FZ_KEEP(vector) __asm__("" : "+x"(vector))
#else
#define FZ_KEEP(vector) (void)(vector)
#endif

#if FZ_LANES == 8
#define FZ_TO_THE_TOP ((fz_u){128, 64, 32, 16, 8, 4, 2, 1})
#else
#define FZ_TO_THE_TOP ((fz_u){8, 4, 2, 1})
#endif

static inline float fz_total(fz_v v) {
    float sum = 0;
#if FZ_LANES == 8
    sum = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#else
    sum = (v[0] + v[2]) + (v[1] + v[3]);
#endif
    return sum;
}

/* All bits where v < limit, else none. */
static inline fz_u fz_below(fz_v v, float limit) { return (fz_u)(v < fz_all(limit)); }

/* max(0, v); NaN stays NaN. */
static inline fz_v fz_positive(fz_v v) { return (fz_v)((fz_u)v & ~(fz_u)(v < (fz_v){0})); }

#else

typedef float fz_v;
typedef uint32_t fz_u;
#define FZ_KEEP(vector) (void)(vector)
static inline fz_v fz_get(const float *from) { return *from; }
static inline void fz_put(float *to, fz_v value) { *to = value; }
static inline fz_u fz_get_bits(const uint32_t *from) { return *from; }
static inline fz_v fz_all(float value) { return value; }
static inline fz_u fz_all_bits(uint32_t value) { return value; }
static inline fz_v fz_as_numbers(fz_u bits) { return fz_float(bits); }
static inline fz_u fz_as_bits(fz_v numbers) { return fz_bits(numbers); }
#define FZ_TO_THE_TOP 1u
static inline float fz_total(fz_v v) { return v; }
static inline fz_u fz_below(fz_v v, float limit) { return v < limit ? ~0u : 0; }
static inline fz_v fz_positive(fz_v v) { return v < 0 ? 0 : v; }

#endif
#endif
