/* Start of a Cortex-M, and its output by semihosting (qemu, or a debugger). RAM is painted to see how deep the stack goes. */
#include "check.h"

extern uint32_t fz_data_from[], fz_data_begin[], fz_data_end[], fz_bss_begin[], fz_bss_end[];
extern uint32_t fz_stack_bottom[], fz_stack_top[];
/* Everything between the variables and the bottom of the stack is the memory of the checks. */
#define PAINT 0xA5A5A5A5u

static int semihosting(int operation, const void *argument) {
    register int result __asm__("r0") = operation;
    register const void *given __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(result) : "r"(given) : "memory");
    return result;
}

void fz_put(const char *text) { semihosting(4, text); }

size_t fz_stack(void) {
    uintptr_t word = (uintptr_t)fz_stack_bottom, here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    while (word < here && *(volatile uint32_t *)word == PAINT) word += 4;
    size_t used = (uintptr_t)fz_stack_top - word;
    for (word = (uintptr_t)fz_stack_bottom; word + 64 < here; word += 4) *(volatile uint32_t *)word = PAINT;
    return used;
}

static void put_left(size_t bytes) {
    char text[24] = "memory 0000000\n";
    for (int i = 13; bytes; i--, bytes /= 10) text[i] = (char)('0' + bytes % 10);
    fz_put(text);
}

void fz_reset(void) {
    uint32_t *to = fz_data_begin;
    for (const uint32_t *from = fz_data_from; to < fz_data_end;) *to++ = *from++;
    for (to = fz_bss_begin; to < fz_bss_end;) *to++ = 0;
#ifdef __ARM_FP
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* switches the floating-point unit on */
    __asm__ volatile("dsb\nisb");
#endif
    uint8_t *memory = (uint8_t *)(((uintptr_t)fz_bss_end + 15) & ~(uintptr_t)15);
    size_t size = (size_t)((uintptr_t)fz_stack_bottom - (uintptr_t)memory);
    put_left(size);
    int status = fz_run(memory, size);
    fz_put(status == 0 ? "status 0\n" : status == 2 ? "status 2\n" : "status 1\n");
    semihosting(0x18, (const void *)0x20026); /* the application has ended */
    for (;;) {}
}

static void fault(void) {
    fz_put("fault\n");
    semihosting(0x18, (const void *)0x20026);
    for (;;) {}
}

__attribute__((section(".vectors"), used)) static const void *const VECTORS[16] = {
    fz_stack_top, (const void *)fz_reset, (const void *)fault, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault,
};
