/* The conformance vectors against the core that this is linked with; no C library. */
#ifndef FZ_CHECK_H
#define FZ_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* What came of it. skipped: cases that need more memory than was given. control: the momentum programs that failed, which
 * all do where multiplications and additions were fused. */
typedef struct {
    uint32_t cases, failed, skipped, programs, momentum_failed, plain_failed;
} fz_report;

typedef void (*fz_say)(const char *part, uint32_t row);

/* say: called for each case that failed. memory: aligned to 16 bytes. */
void fz_check(void *memory, size_t size, fz_say say, fz_report *report);

enum { FZ_TRAIN_DIRECTIONS = 10 };

/* Trains 64-32-10 on rows that can be told apart, K = 1, central differences of rank one; memory as above. Returns how many
 * of 100 rows are recognised, or −1 if the memory does not suffice; used: bytes. */
int fz_train(void *memory, size_t size, int momentum, uint32_t directions, uint32_t rounds, size_t *used);

/* Both, in words. Returns 0: all hold; 1: some do not; 2: only momentum programs do not, as with fused operations. */
int fz_run(void *memory, size_t size);

/* Of the target: writes a text; the deepest stack since the last call, in bytes, or 0 where nobody measures it. */
#ifdef __wasm__
__attribute__((import_module("env"), import_name("put")))
#endif
void fz_put(const char *text);
size_t fz_stack(void);

#endif
