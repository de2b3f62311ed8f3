/* memcpy and memset for targets without a C library. Compile with -fno-builtin: else the loops become calls of themselves. */
#include <stddef.h>
#include <stdint.h>

typedef uint32_t __attribute__((may_alias)) word;

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
    uint8_t *a = to;
    const uint8_t *b = from;
    if (!(((uintptr_t)a | (uintptr_t)b) & 3))
        for (; count >= 4; count -= 4, a += 4, b += 4) *(word *)(void *)a = *(const word *)(const void *)b;
    while (count--) *a++ = *b++;
    return to;
}

void *memset(void *to, int byte, size_t count) {
    uint8_t *a = to;
    word all = (uint8_t)byte * 0x01010101u;
    if (!((uintptr_t)a & 3))
        for (; count >= 4; count -= 4, a += 4) *(word *)(void *)a = all;
    while (count--) *a++ = (uint8_t)byte;
    return to;
}
