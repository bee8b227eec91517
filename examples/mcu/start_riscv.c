// Start of a program on RISC-V in machine mode: stack, handler of exceptions and memory.
#include <stddef.h>
#include <stdint.h>

extern uint32_t begin_of_data[], end_of_data[], begin_of_bss[], end_of_bss[];
extern const uint32_t data_in_flash[];

int main(void);
void fault(void);
void reset(void);
void prepare(void);

// A program may define another one.
__attribute__((weak)) void fault(void) {
    for (;;) {
    }
}

// The handler of exceptions, whose address must be a multiple of 4.
__attribute__((naked, used, aligned(4))) static void trap(void) { __asm__ volatile("j fault"); }

__attribute__((section(".vectors"), naked, used)) void reset(void) {
    __asm__ volatile(
        ".option push\n"
        ".option arch, +zicsr\n"
        "la sp, end_of_stack\n"
        "la t0, trap\n"
        "csrw mtvec, t0\n"
#ifdef __riscv_flen
        "li t0, 0x2000\n"  // mstatus.FS: switches the floating-point unit on
        "csrs mstatus, t0\n"
#endif
        "j prepare\n"
        ".option pop");
}

__attribute__((used)) void prepare(void) {
    // Volatile, so that the loops do not become calls of memcpy and memset.
    const volatile uint32_t* from = data_in_flash;
    for (volatile uint32_t* word = begin_of_data; word < end_of_data; ++word) {
        *word = *from++;
    }
    for (volatile uint32_t* word = begin_of_bss; word < end_of_bss; ++word) {
        *word = 0;
    }
    main();
    for (;;) {
    }
}
