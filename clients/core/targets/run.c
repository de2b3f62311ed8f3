/* The checks and a training, in words, on any target. */
#include "check.h"

static void put_number(long number) {
    char digits[12];
    int first = 11;
    unsigned long left = number < 0 ? (unsigned long)-number : (unsigned long)number;
    digits[11] = 0;
    do {
        digits[--first] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0) digits[--first] = '-';
    fz_put(digits + first);
}

static void line(const char *name, long number) {
    fz_put(name);
    fz_put(" ");
    put_number(number);
    fz_put("\n");
}

static void say(const char *part, uint32_t row) {
    fz_put("does not hold: ");
    line(part, row);
}

int fz_run(void *memory, size_t size) {
    fz_report report;
    size_t used = 0;
    int least = 0;
    (void)fz_stack();
    fz_check(memory, size, say, &report);
    line("cases", report.cases);
    line("failed", report.failed);
    line("skipped", report.skipped);
    line("stack", (long)fz_stack());
    if (report.failed) return report.failed == report.momentum_failed && report.momentum_failed ? 2 : 1;
    for (int momentum = 0; momentum < 2; momentum++) {
        uint32_t directions = momentum ? FZ_TRAIN_DIRECTIONS : 4, rounds = momentum ? 40 : 60;
        int right = fz_train(memory, size, momentum, directions, rounds, &used);
        line(momentum ? "momentum: right" : "plain: right", right);
        if (right < 0) continue; /* the memory of the board is too small */
        line(momentum ? "momentum: bytes" : "plain: bytes", (long)used);
        line(momentum ? "momentum: stack" : "plain: stack", (long)fz_stack());
        if (right < 25) least = 1; /* chance: 10 */
    }
    return least;
}
