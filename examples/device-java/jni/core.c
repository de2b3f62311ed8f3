/* The core behind fedzero.device.Core: a model, its rows, and the turns of one place.
 *
 * All memory of a device is one block. Nothing of the C library is used but malloc, free, memcpy and memset, so that
 * the library can be linked for Android without its headers.
 */
#include <jni.h>

#include "fedzero_core.h"

void *malloc(size_t size);
void free(void *memory);
void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);

enum { MOST_LAYERS = 16, NAME = 32 };

typedef struct {
    fz_tensor tensors[2 * MOST_LAYERS];
    uint32_t shapes[2 * MOST_LAYERS][2], count, layers;
    char names[2 * MOST_LAYERS][NAME];
    fz_layer sequence[2 * MOST_LAYERS];
    fz_network network;
    fz_plan plan;
    fz_client *client;
    uint8_t root[FZ_ROOT];
    int64_t place;
    uint32_t rows, inputs, batch;
    float *x;
    uint8_t *y;
    uint32_t *places;
    void *scratch;
    size_t scratch_size;
} device;

static device *of(jlong handle) { return (device *)(intptr_t)handle; }

static fz_status values(void *state, const fz_points *points, int64_t round, uint32_t step, double *out) {
    device *own = state;
    int64_t numbers[3] = {round, step, own->place};
    uint64_t key = 0;
    fz_batch batch = {own->x, own->y, own->places, 0};
    fz_status status = fz_key(own->root, "batch", numbers, 3, &key);
    if (status != FZ_OK) return status;
    batch.rows = fz_sample(key, own->rows, own->batch, own->places);
    return fz_network_values(&own->network, &batch, points, own->scratch, own->scratch_size, out);
}

/* Tensors W₀, b₀, W₁, b₁, … and the layers between them; their values are not there yet. */
static size_t shaped(device *own, const jint *widths) {
    size_t numbers = 0;
    for (uint32_t l = 0; l < own->layers; l++) {
        uint32_t in = (uint32_t)widths[l], out = (uint32_t)widths[l + 1];
        fz_layer linear = {FZ_LINEAR, out, 0, 0}, relu = {FZ_RELU, 0, 0, 0};
        own->sequence[2 * l] = linear;
        own->sequence[2 * l + 1] = relu;
        for (uint32_t t = 2 * l; t < 2 * l + 2; t++) {
            own->shapes[t][0] = out;
            own->shapes[t][1] = in;
            own->tensors[t].name = own->names[t];
            own->tensors[t].shape = own->shapes[t];
            own->tensors[t].axes = t % 2 ? 1 : 2;
            numbers += fz_count(own->tensors + t);
        }
    }
    own->network.channels = own->network.height = 1;
    own->network.width = own->inputs = (uint32_t)widths[0];
    own->network.layers = own->sequence;
    own->network.layer_count = 2 * own->layers - 1;
    own->network.rows_at_once = 32;
    return numbers;
}

static void *piece(uint8_t **at, size_t size) {
    void *found = *at;
    *at += (size + 15) & ~(size_t)15;
    return found;
}

static void assign(device *own, int momentum, uint8_t **at) {
    for (uint32_t t = 0; t < own->count; t++) {
        size_t size = 4 * (size_t)fz_count(own->tensors + t);
        own->tensors[t].values = piece(at, size);
        own->tensors[t].momentum = momentum ? piece(at, size) : 0;
    }
}

/* whole: stream, rule, difference, steps, directions, batch, place. real: radius, beta, clip. Returns 0 if the plan is
 * not one that the core can follow, or if there is no memory. */
JNIEXPORT jlong JNICALL Java_fedzero_device_Core_open(JNIEnv *env, jclass type, jintArray widths, jbyteArray root,
                                                      jobjectArray names, jintArray whole, jdoubleArray real,
                                                      jfloatArray x, jbyteArray y) {
    jint width[MOST_LAYERS + 1], w[7];
    jdouble d[3];
    uint32_t rows = (uint32_t)(*env)->GetArrayLength(env, y), layers = (uint32_t)(*env)->GetArrayLength(env, widths) - 1;
    (void)type;
    if (!layers || layers > MOST_LAYERS || !rows) return 0;
    (*env)->GetIntArrayRegion(env, widths, 0, (jsize)layers + 1, width);
    (*env)->GetIntArrayRegion(env, whole, 0, 7, w);
    (*env)->GetDoubleArrayRegion(env, real, 0, 3, d);
    device *own = malloc(sizeof(device) + 16);
    if (!own) return 0;
    memset(own, 0, sizeof(device));
    own->layers = layers;
    own->count = 2 * layers;
    own->rows = rows;
    own->batch = (uint32_t)w[5] < rows ? (uint32_t)w[5] : rows;
    own->place = w[6];
    for (uint32_t t = 0; t < own->count; t++) {
        jbyteArray name = (*env)->GetObjectArrayElement(env, names, (jsize)t);
        jsize length = (*env)->GetArrayLength(env, name);
        if (length < NAME) (*env)->GetByteArrayRegion(env, name, 0, length, (jbyte *)own->names[t]);
    }
    fz_plan plan = {(fz_stream)w[0], (fz_rule)w[1], (fz_difference)w[2], (uint32_t)w[3], (uint32_t)w[4],
                    (uint32_t)w[4], d[0], d[1], d[2]};
    own->plan = plan;
    (*env)->GetByteArrayRegion(env, root, 0, FZ_ROOT, (jbyte *)own->root);

    size_t numbers = shaped(own, width), kinds = plan.rule == FZ_MOMENTUM ? 2 : 1;
    uint8_t *at = (uint8_t *)((((uintptr_t)own) + sizeof(device) + 15) & ~(uintptr_t)15);
    assign(own, kinds == 2, &at); /* addresses of no use yet: the sizes below ask whether there are values */
    size_t client = fz_client_size(&plan, own->tensors, own->count);
    own->scratch_size = fz_network_size(&own->network, own->tensors, own->count, plan.stream, plan.most_directions + 1);
    size_t all = 4 * numbers * kinds + 32 * own->count + client + own->scratch_size + 4 * (size_t)own->inputs * rows +
                 rows + 4 * (size_t)rows + 128;
    device *made = client && own->scratch_size ? malloc(sizeof(device) + all) : 0;
    if (!made) {
        free(own);
        return 0;
    }
    memcpy(made, own, sizeof(device));
    free(own);
    own = made;
    shaped(own, width);
    at = (uint8_t *)((((uintptr_t)own) + sizeof(device) + 15) & ~(uintptr_t)15);
    uint8_t *end = (uint8_t *)own + sizeof(device) + all;
    memset(at, 0, (size_t)(end - at));
    assign(own, kinds == 2, &at);
    void *memory = piece(&at, client);
    own->scratch = piece(&at, own->scratch_size);
    own->x = piece(&at, 4 * (size_t)own->inputs * rows);
    own->places = piece(&at, 4 * (size_t)rows);
    own->y = piece(&at, rows);
    (*env)->GetFloatArrayRegion(env, x, 0, (jsize)(own->inputs * rows), own->x);
    (*env)->GetByteArrayRegion(env, y, 0, (jsize)rows, (jbyte *)own->y);
    if (fz_client_init(memory, client, &own->plan, own->root, own->tensors, own->count, &own->client) != FZ_OK) {
        free(own);
        return 0;
    }
    return (jlong)(intptr_t)own;
}

JNIEXPORT void JNICALL Java_fedzero_device_Core_close(JNIEnv *env, jclass type, jlong handle) {
    (void)env, (void)type;
    free(of(handle));
}

/* The first model: ± scale, by the Rademacher direction of key(`init`); no momentum. */
JNIEXPORT void JNICALL Java_fedzero_device_Core_begin(JNIEnv *env, jclass type, jlong handle, jdoubleArray scales) {
    device *own = of(handle);
    fz_term term = {0, 0};
    (void)type;
    fz_key(own->root, "init", 0, 0, &term.key);
    for (uint32_t t = 0; t < own->count; t++) {
        jdouble scale = 0;
        size_t size = 4 * (size_t)fz_count(own->tensors + t);
        (*env)->GetDoubleArrayRegion(env, scales, (jsize)t, 1, &scale);
        term.coefficient = (float)scale;
        memset(own->tensors[t].values, 0, size);
        if (own->tensors[t].momentum) memset(own->tensors[t].momentum, 0, size);
        fz_view(own->tensors + t, t, FZ_RADEMACHER, term, own->tensors[t].values);
    }
}

/* Numbers of the state: parameters, then the momentum. */
static jsize moved(JNIEnv *env, device *own, jfloatArray state, int in) {
    jsize at = 0;
    for (uint32_t kind = 0; kind < (own->plan.rule == FZ_MOMENTUM ? 2u : 1u); kind++)
        for (uint32_t t = 0; t < own->count; t++) {
            float *values = kind ? own->tensors[t].momentum : own->tensors[t].values;
            jsize count = (jsize)fz_count(own->tensors + t);
            if (in) (*env)->GetFloatArrayRegion(env, state, at, count, values);
            else if (state) (*env)->SetFloatArrayRegion(env, state, at, count, values);
            at += count;
        }
    return at;
}

JNIEXPORT jint JNICALL Java_fedzero_device_Core_length(JNIEnv *env, jclass type, jlong handle) {
    (void)type;
    return moved(env, of(handle), 0, 0);
}

JNIEXPORT void JNICALL Java_fedzero_device_Core_load(JNIEnv *env, jclass type, jlong handle, jfloatArray state) {
    (void)type;
    moved(env, of(handle), state, 1);
}

JNIEXPORT void JNICALL Java_fedzero_device_Core_save(JNIEnv *env, jclass type, jlong handle, jfloatArray state) {
    (void)type;
    moved(env, of(handle), state, 0);
}

JNIEXPORT jint JNICALL Java_fedzero_device_Core_fold(JNIEnv *env, jclass type, jlong handle, jlong round, jdouble rate,
                                                     jfloatArray scalars) {
    device *own = of(handle);
    jfloat *numbers = (*env)->GetFloatArrayElements(env, scalars, 0);
    fz_group group = {round, numbers, (uint32_t)(*env)->GetArrayLength(env, scalars)};
    (void)type;
    fz_status status = numbers ? fz_client_apply(own->client, rate, &group, 1) : FZ_MEMORY;
    if (numbers) (*env)->ReleaseFloatArrayElements(env, scalars, numbers, JNI_ABORT);
    return (jint)status;
}

JNIEXPORT void JNICALL Java_fedzero_device_Core_digest(JNIEnv *env, jclass type, jlong handle, jbyteArray digest) {
    uint8_t found[8];
    (void)type;
    fz_digest(of(handle)->tensors, of(handle)->count, found);
    (*env)->SetByteArrayRegion(env, digest, 0, 8, (const jbyte *)found);
}

/* scalars: K·P numbers, and the loss behind them. */
JNIEXPORT jint JNICALL Java_fedzero_device_Core_turn(JNIEnv *env, jclass type, jlong handle, jlong round, jdouble rate,
                                                     jfloatArray scalars) {
    device *own = of(handle);
    fz_oracle oracle = {values, own};
    double loss = 0;
    jsize count = (*env)->GetArrayLength(env, scalars);
    jfloat *numbers = (*env)->GetFloatArrayElements(env, scalars, 0);
    (void)type;
    if (!numbers) return FZ_MEMORY;
    fz_status status = fz_client_turn(own->client, round, rate, own->plan.most_directions, &oracle, numbers, &loss);
    numbers[count - 1] = (float)loss;
    (*env)->ReleaseFloatArrayElements(env, scalars, numbers, 0);
    return (jint)status;
}
