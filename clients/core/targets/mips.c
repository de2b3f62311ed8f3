/* A program of big-endian Linux without a C library: the calls write and exit of the kernel. */
#include "check.h"

static unsigned char memory[1 << 20] __attribute__((aligned(16)));

static long call(long number, long a, long b, long c) {
    register long v0 __asm__("$2") = number;
    register long a0 __asm__("$4") = a;
    register long a1 __asm__("$5") = b;
    register long a2 __asm__("$6") = c;
    register long a3 __asm__("$7");
    __asm__ volatile("syscall"
                     : "+r"(v0), "=r"(a3)
                     : "r"(a0), "r"(a1), "r"(a2)
                     : "$1", "$3", "$8", "$9", "$10", "$11", "$12", "$13", "$14", "$15", "$24", "$25", "hi", "lo", "memory");
    return v0;
}

void fz_put(const char *text) {
    long length = 0;
    while (text[length]) length++;
    call(4004, 1, (long)text, length);
}

size_t fz_stack(void) { return 0; }

__attribute__((used)) static void begin(void) {
    call(4001, fz_run(memory, sizeof memory), 0, 0);
    for (;;) {}
}

/* The stack that Linux gives is aligned to 16 bytes; its first words are for the arguments of a call. */
__asm__(".globl __start\n.set noreorder\n__start:\n    move $fp, $zero\n    addiu $sp, $sp, -32\n    bal begin\n    nop\n.set reorder\n");
