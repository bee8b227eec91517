// Semihosting: the debugger or emulator that runs a program prints for it and ends it. On a board without debugger
// these calls stop the processor: replace them by calls of its serial port.
#ifndef SEMIHOSTING_H
#define SEMIHOSTING_H

#include <stdint.h>

enum { kHostOpen = 0x01, kHostPrint = 0x04, kHostWrite = 0x05, kHostRead = 0x06, kHostExit = 0x18 };
enum { kHostSucceeded = 0x20026, kHostFailed = 0x20023 };  // reasons of an exit

static inline uint32_t host(uint32_t operation, const void* arguments) {
#ifdef __riscv
    register uint32_t result __asm__("a0") = operation;
    register const void* pointer __asm__("a1") = arguments;
    __asm__ volatile(
        ".balign 16\n.option push\n.option norvc\nslli zero, zero, 0x1f\nebreak\nsrai zero, zero, 7\n.option pop"
        : "+r"(result)
        : "r"(pointer)
        : "memory");
#else
    register uint32_t result __asm__("r0") = operation;
    register const void* pointer __asm__("r1") = arguments;
    __asm__ volatile("bkpt 0xab" : "+r"(result) : "r"(pointer) : "memory");
#endif
    return result;
}

static inline void host_print(const char* text) { host(kHostPrint, text); }

__attribute__((noreturn)) static inline void host_exit(uint32_t reason) {
    host(kHostExit, (const void*)reason);
    for (;;) {
    }
}

#endif
