/* The checks as a program of a system with a C library. */
#include <stdio.h>

#include "check.h"

static unsigned char memory[1 << 20] __attribute__((aligned(16)));

void fz_put(const char *text) { fputs(text, stdout); }
size_t fz_stack(void) { return 0; }
int main(void) { return fz_run(memory, sizeof memory); }
