/* The checks as a WebAssembly module: `run` returns the status, `put` is called with the address of a text. */
#include "check.h"

static unsigned char memory[1 << 20] __attribute__((aligned(16)));

size_t fz_stack(void) { return 0; }

__attribute__((visibility("default"))) int run(void) { return fz_run(memory, sizeof memory); }
