/* The arithmetic of a thin client of fedzero: C99, freestanding but for memcpy and memset.
 *
 * The specification is docs/directions.md (keys, streams, folds, checksum) and docs/ledger.md (estimates, methods,
 * digest of a model, messages). README.md beside this folder says which part of them is here.
 *
 * There are no global variables and no allocation. What needs memory says how much first (`…_size`), and is given it
 * by the caller, aligned to 16 bytes. Functions that can fail return a status; on failure they have changed nothing
 * but their results, unless they say otherwise. Floating-point arithmetic has to be that of IEEE 754, rounded to
 * nearest, with subnormal numbers, and without fused operations: compile with -ffp-contract=off and never with
 * -ffast-math.
 */
#ifndef FEDZERO_CORE_H
#define FEDZERO_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FZ_API
#ifdef __wasm__
#define FZ_API __attribute__((visibility("default")))
#else
#define FZ_API
#endif
#endif

typedef enum {
    FZ_OK = 0,
    FZ_ARGUMENT = 1, /* a size, shape or setting that is not valid */
    FZ_MEMORY = 2,   /* the memory given is too small or not aligned */
    FZ_NUMBER = 3,   /* a number is NaN or infinite */
    FZ_MESSAGE = 4,  /* bytes that are no message */
    FZ_ENTROPY = 5,  /* privacy without a source of entropy, or the source failed */
    FZ_ORACLE = 6    /* the function could not be evaluated */
} fz_status;

/* ---- Keys ------------------------------------------------------------------------------------------------------ */

#define FZ_ROOT 32     /* bytes of a root */
#define FZ_SHARED (-1) /* the client in the key of a direction that the whole cohort shares */

/* The root of a run, from the seed of its recipe. */
FZ_API void fz_root(int64_t seed, uint8_t root[FZ_ROOT]);

/* Private seed shift: the root of the directions, from a root and a secret of 1 to 64 bytes. */
FZ_API fz_status fz_shifted_root(const uint8_t root[FZ_ROOT], const uint8_t *secret, size_t length,
                                 uint8_t shifted[FZ_ROOT]);

/* The key for a purpose of 1 to 16 characters and up to 8 numbers. */
FZ_API fz_status fz_key(const uint8_t root[FZ_ROOT], const char *purpose, const int64_t *numbers, uint32_t count,
                        uint64_t *key);

/* The key of a direction. */
FZ_API uint64_t fz_direction_key(const uint8_t root[FZ_ROOT], int64_t round, int64_t step, int64_t direction,
                                 int64_t client);

/* ---- Directions ------------------------------------------------------------------------------------------------ */

typedef enum { FZ_RADEMACHER = 2, FZ_RANK_ONE = 4 } fz_stream;

/* Four words of Philox4x32-10. */
FZ_API void fz_block(uint64_t key, uint64_t block, uint32_t ordinal, uint32_t domain, uint32_t words[4]);

/* Signs ±1 of a factor of rank one: of rows (a) or of columns (b). */
FZ_API void fz_row_signs(uint64_t key, uint32_t ordinal, uint32_t count, float *signs);
FZ_API void fz_column_signs(uint64_t key, uint32_t ordinal, uint32_t count, float *signs);

/* ---- Parameters ------------------------------------------------------------------------------------------------ */

/* A tensor of float32 numbers, row-major. A model is an array of them; the place of a tensor in it is its ordinal. */
typedef struct {
    const char *name;      /* for fz_digest; else it may be NULL */
    const uint32_t *shape; /* `axes` sizes */
    uint32_t axes;
    float *values;
    float *momentum; /* as many numbers, begun at +0; NULL if the rule is FZ_SGD */
} fz_tensor;

/* Coordinates; columns as a matrix (first axis × rest), 0 for a vector. */
FZ_API uint32_t fz_count(const fz_tensor *tensor);
FZ_API uint32_t fz_columns(const fz_tensor *tensor);

typedef struct {
    uint64_t key;
    float coefficient;
} fz_term;

typedef enum {
    FZ_SGD = 0,     /* x ← x + c₁z₁ + c₂z₂ + … */
    FZ_MOMENTUM = 1 /* G ← c₁z₁ + …;  M ← (β·M) + (β′·G);  x ← x − (η·M) */
} fz_rule;

typedef struct {
    const fz_term *terms;
    uint32_t count;
    float rate, beta, rest; /* η, β, β′; not read by FZ_SGD */
} fz_step;

/* Run steps on a model, in order. */
FZ_API fz_status fz_advance(const fz_tensor *tensors, uint32_t count, fz_stream stream, fz_rule rule,
                            const fz_step *steps, uint32_t step_count);

/* out ← x + c z, for one tensor; a coefficient of 0 copies x. */
FZ_API void fz_view(const fz_tensor *tensor, uint32_t ordinal, fz_stream stream, fz_term term, float *out);

/* Σ_i mix(i, bits of x_i) mod 2⁶⁴. */
FZ_API uint64_t fz_checksum(const float *values, uint32_t count);

/* The 8-byte digest of a model. Names are those of the module, in UTF-8. */
FZ_API void fz_digest(const fz_tensor *tensors, uint32_t count, uint8_t digest[8]);

/* ---- Estimates ------------------------------------------------------------------------------------------------- */

typedef enum { FZ_FORWARD = 0, FZ_CENTRAL = 1 } fz_difference;

/* Points that P directions need: P + 1 (forward: x itself is the first) or 2P (central: x + μz₁, x − μz₁, …). */
FZ_API uint32_t fz_point_count(fz_difference difference, uint32_t directions);

/* Slopes g_1 … g_P (float64, rounded once) and the loss, from the values at the points. */
FZ_API fz_status fz_slopes(const double *values, fz_difference difference, uint32_t directions, double radius,
                           float *slopes, double *loss);

/* The coefficients of (factor/P) Σ_p g_p z_p: float64, rounded once. */
FZ_API void fz_coefficients(const float *slopes, uint32_t directions, double factor, float *coefficients);

/* v ← v · min(1, norm/‖v‖). */
FZ_API void fz_clip(float *values, uint32_t count, double norm);

/* ---- A client -------------------------------------------------------------------------------------------------- */

/* Points around a model: x + coefficient · z(key); a coefficient of 0 stands for x itself. */
typedef struct {
    const fz_tensor *tensors;
    uint32_t tensor_count;
    fz_stream stream;
    const fz_term *terms;
    uint32_t count;
} fz_points;

/* Anybody's function: writes its values at all points, on the data of a local step. Whatever it needs is in `state`. */
typedef struct {
    fz_status (*values)(void *state, const fz_points *points, int64_t round, uint32_t step, double *values);
    void *state;
} fz_oracle;

typedef struct {
    fz_stream stream;
    fz_rule rule;
    fz_difference difference;
    uint32_t local_steps;     /* K */
    uint32_t most_directions; /* the most directions of a step, P */
    uint32_t most_terms;      /* the most terms of a step: P, for stepped updates times the groups */
    double radius;            /* μ */
    double beta;              /* β of FZ_MOMENTUM */
    double clip;              /* the longest report; 0: not clipped */
} fz_plan;

/* The scalars of an update that answer the questions of one round: K·P numbers, P that of the round. */
typedef struct {
    int64_t asked;
    const float *scalars;
    uint32_t count;
} fz_group;

typedef struct fz_client fz_client;

/* Bytes of a client; 0 if the plan or a tensor is not valid. With K > 1 it has a copy of the model. */
FZ_API size_t fz_client_size(const fz_plan *plan, const fz_tensor *tensors, uint32_t count);

/* Makes a client in `memory`. Tensors, names and shapes must stay where they are. root: of the directions. */
FZ_API fz_status fz_client_init(void *memory, size_t size, const fz_plan *plan, const uint8_t root[FZ_ROOT],
                                const fz_tensor *tensors, uint32_t count, fz_client **client);

/* Folds the update of a round; a seeded one is a single group whose `asked` is the round. */
FZ_API fz_status fz_client_apply(fz_client *client, double rate, const fz_group *groups, uint32_t count);

/* The turn of a round with P directions: K·P scalars, clipped if the plan says so, and the loss of the first step. The
 * model is as before. */
FZ_API fz_status fz_client_turn(fz_client *client, int64_t round, double rate, uint32_t directions,
                                const fz_oracle *oracle, float *scalars, double *loss);

/* ---- Draws (README.md, Draws) ---------------------------------------------------------------------------------- */

/* `size` of 0 … count − 1 without replacement, ascending; all of them if size ≥ count. Returns how many. */
FZ_API uint32_t fz_sample(uint64_t key, uint32_t count, uint32_t size, uint32_t *places);

/* Each of 0 … count − 1 with probability `rate` by a coin of its own, ascending. places has room for `most`; returns
 * how many were drawn, of which only the first `most` are written. */
FZ_API uint32_t fz_poisson(uint64_t key, uint32_t count, double rate, uint32_t most, uint32_t *places);

/* ---- Networks -------------------------------------------------------------------------------------------------- */

typedef enum {
    FZ_LINEAR = 0, /* tensors: weight (outputs, inputs), bias (outputs) */
    FZ_CONV = 1,   /* tensors: weight (outputs, channels, kernel, kernel), bias (outputs) */
    FZ_RELU = 2,
    FZ_POOL = 3 /* 2×2 maxima */
} fz_kind;

typedef struct {
    fz_kind kind;
    uint32_t outputs;         /* of FZ_LINEAR and FZ_CONV */
    uint32_t kernel, padding; /* of FZ_CONV */
} fz_layer;

/* A sequence of layers with the mean softmax cross-entropy. Its tensors are those of the layers in order. */
typedef struct {
    uint32_t channels, height, width; /* of an input; a row of numbers has one channel and height 1 */
    const fz_layer *layers;
    uint32_t layer_count;
    uint32_t rows_at_once; /* more need more memory and less time */
} fz_network;

/* Rows with labels. places: which rows to take; NULL: all. */
typedef struct {
    const float *inputs;
    const uint8_t *labels;
    const uint32_t *places;
    uint32_t rows;
} fz_batch;

/* Bytes of scratch memory for points along so many directions; 0 if the network and the tensors do not fit each other.
 * x itself counts as a direction (forward differences). */
FZ_API size_t fz_network_size(const fz_network *network, const fz_tensor *tensors, uint32_t count, fz_stream stream,
                              uint32_t directions);

/* The mean loss of a batch at every point. Points of rank one are evaluated as factors: y = W x + c a (b·x). */
FZ_API fz_status fz_network_values(const fz_network *network, const fz_batch *batch, const fz_points *points,
                                   void *memory, size_t size, double *values);

/* The class with the largest output, for every row of a batch, at x. Scratch memory as for one direction of rank one. */
FZ_API fz_status fz_network_classes(const fz_network *network, const fz_batch *batch, const fz_tensor *tensors,
                                    uint32_t count, void *memory, size_t size, uint32_t *classes);

/* ---- Messages (docs/ledger.md, Messages, Updates) ---------------------------------------------------------------- */

/* Bytes within a message that was read; nothing is copied. */
typedef struct {
    const uint8_t *bytes;
    size_t count;
} fz_span;

typedef enum { FZ_WORK = 1, FZ_SNAPSHOT = 2, FZ_CLOSE = 3, FZ_CONTINUE = 4 } fz_instruction_kind;

typedef struct {
    fz_instruction_kind kind;
    int64_t round, exchange; /* exchange: 0 in FZ_CLOSE */
    int64_t counted;         /* −1: none */
    uint32_t update_count;   /* of FZ_WORK; 1 in FZ_CLOSE */
    fz_span updates;         /* back to back, for fz_next_update */
    int64_t steps;           /* of FZ_SNAPSHOT; −1: they are in `numbers` */
    fz_span numbers;
    fz_span state;  /* of FZ_SNAPSHOT: packed float32 numbers, little-endian */
    fz_span values; /* of FZ_CONTINUE */
} fz_instruction;

typedef enum { FZ_SEEDED = 1, FZ_DENSE = 2, FZ_STEPPED = 3 } fz_update_kind;

typedef struct {
    fz_update_kind kind;
    int64_t round;
    fz_span values; /* of FZ_SEEDED the scalars, of FZ_DENSE the numbers: packed and finite */
    uint32_t group_count;
    fz_span groups; /* of FZ_STEPPED, for fz_next_group */
} fz_update;

/* An instruction, checked to its end, updates included. Forms of integers and lengths have to be the shortest. */
FZ_API fz_status fz_read_instruction(const uint8_t *bytes, size_t count, fz_instruction *found);

/* The next of the updates of an instruction, and of the groups of an update; both spans move on. */
FZ_API fz_status fz_next_update(fz_span *updates, fz_update *found);
FZ_API fz_status fz_next_group(fz_span *groups, int64_t *asked, fz_span *scalars);

/* Packed numbers as float32; out has room for count / 4. */
FZ_API fz_status fz_unpack(fz_span packed, float *out);

typedef struct {
    int64_t round, exchange;
    uint8_t digest[8];
    fz_span values; /* packed, or as a link codes them */
    fz_span loss;   /* 4 bytes, or none where a link hides it */
    int64_t queries;
} fz_reply;

/* The bytes of a reply; returns how many there are, of which none are written if `room` is less. */
FZ_API size_t fz_write_reply(const fz_reply *reply, uint8_t *out, size_t room);
FZ_API fz_status fz_read_reply(const uint8_t *bytes, size_t count, fz_reply *found);

/* ---- Privacy (docs/privacy.md) ------------------------------------------------------------------------------------ */

/* Writes random bytes that nobody else knows; anything but FZ_OK: it could not. */
typedef fz_status (*fz_entropy)(void *state, uint8_t *bytes, size_t count);

/* The client's half of [privacy] where a client is the unit: a vector is shortened to the norm `clip`, or gets it if
 * `normalise`, is multiplied by 2^exponent and rounded at random to integers whose squared norm is at most the allowance
 * of the grid. A vector with a number that is NaN or infinite counts as zero. scratch: count numbers. Without a source
 * of entropy: FZ_ENTROPY, and nothing is written. */
FZ_API fz_status fz_private(const float *values, uint32_t count, double clip, int32_t exponent, int normalise,
                            fz_entropy entropy, void *state, double *scratch, int32_t *whole);

/* The largest squared norm of a vector of integers, L; 0 if there is no such grid. */
FZ_API uint64_t fz_allowance(double clip, int32_t exponent, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
