// Start of a program on Cortex-M: vectors and memory. A program with interrupts adds their vectors.
#include <stddef.h>
#include <stdint.h>

extern uint32_t begin_of_data[], end_of_data[], begin_of_bss[], end_of_bss[], end_of_stack[];
extern const uint32_t data_in_flash[];

int main(void);
void fault(void);
void reset(void);

// A program may define another one.
__attribute__((weak)) void fault(void) {
    for (;;) {
    }
}

void reset(void) {
#ifdef __ARM_FP
    *(volatile uint32_t*)0xe000ed88 |= 0xf << 20;  // CPACR: switches the floating-point unit on
    __asm__ volatile("dsb\nisb" ::: "memory");
#endif
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

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))end_of_stack, reset, fault, fault, fault, fault, fault};
