// Program for a Cortex-M board in QEMU: runs an exported network on images from a file of the host, by semihosting.
//
// images.bin contains the inputs. Written are outputs.bin, the outputs, and bits.bin, the words of each layer of bits
// of each image. The last line on the console has the bytes of the stack that a run needs, and the ticks of the system
// timer (40 instructions each) of one run.
#include <stddef.h>
#include <stdint.h>

#include NETWORK_HEADER

extern uint32_t begin_of_bss[], end_of_bss[], begin_of_stack[], end_of_stack[];

int main(void);
void reset(void);
void trace(const void* words, uint32_t count);

enum { kOpen = 0x01, kWrite0 = 0x04, kWrite = 0x05, kRead = 0x06, kExit = 0x18 };  // operations of semihosting
enum { kReadBinary = 1, kWriteBinary = 5 };                                        // modes of files
enum { kSucceeded = 0x20026, kFailed = 0x20023 };                                  // reasons of an exit

static uint32_t host(uint32_t operation, const void* arguments) {
    register uint32_t r0 __asm__("r0") = operation;
    register const void* r1 __asm__("r1") = arguments;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void leave(uint32_t reason) {
    host(kExit, (const void*)reason);
    for (;;) {
    }
}

static void require(int condition, const char* message) {
    if (!condition) {
        host(kWrite0, message);
        leave(kFailed);
    }
}

static uint32_t open(const char* name, uint32_t length, uint32_t mode) {
    const uint32_t arguments[] = {(uint32_t)name, mode, length};
    const uint32_t file = host(kOpen, arguments);
    require(file != 0xffffffffu, "a file cannot be opened\n");
    return file;
}

// Returns whether all bytes were read or written.
static int transfer(uint32_t operation, uint32_t file, const void* data, uint32_t bytes) {
    const uint32_t arguments[] = {file, (uint32_t)data, bytes};
    return host(operation, arguments) == 0;
}

static uint32_t bits_file;
static int traces;

void trace(const void* words, uint32_t count) {
    if (traces) {
        require(transfer(kWrite, bits_file, words, 4 * count), "bits cannot be written\n");
    }
}

static void print_number(const char* name, uint32_t number) {
    char text[12];
    char* digit = text + sizeof text;
    *--digit = 0;
    *--digit = ' ';
    do {
        *--digit = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    host(kWrite0, name);
    host(kWrite0, digit);
}

#define TIMER_CONTROL (*(volatile uint32_t*)0xe000e010)
#define TIMER_RELOAD (*(volatile uint32_t*)0xe000e014)
#define TIMER_VALUE (*(volatile uint32_t*)0xe000e018)
#define COPROCESSORS (*(volatile uint32_t*)0xe000ed88)

static const uint32_t kPaint = 0xb0a710adu;
enum { kPainted = 4096 };  // words

static float input[INPUT_SIZE], output[OUTPUT_SIZE];

// Runs the network once; prints the bytes of the stack below this function that it changed.
__attribute__((noinline)) static void measure(void) {
    volatile uint32_t* top = __builtin_frame_address(0);
    volatile uint32_t* bottom = top - kPainted;
    register uint32_t* stack __asm__("sp");
    top = stack;
    for (volatile uint32_t* word = bottom; word < top; ++word) {
        *word = kPaint;
    }
    TIMER_VALUE = 0;
    NETWORK_RUN(input, output);
    const uint32_t ticks = 0x1000000u - TIMER_VALUE;
    while (*bottom == kPaint) {
        ++bottom;
    }
    print_number("stack ", (uint32_t)(top - bottom) * 4);
    print_number("ticks ", ticks);
    host(kWrite0, "\n");
}

int main(void) {
    const uint32_t images = open("images.bin", 10, kReadBinary), outputs = open("outputs.bin", 11, kWriteBinary);
    bits_file = open("bits.bin", 8, kWriteBinary);
    TIMER_RELOAD = 0xffffff;
    TIMER_CONTROL = 5;  // the processor's clock
    for (int is_first = 1; transfer(kRead, images, input, sizeof input); is_first = 0) {
        if (is_first) {
            measure();
        }
        traces = 1;
        NETWORK_RUN(input, output);
        traces = 0;
        require(transfer(kWrite, outputs, output, sizeof output), "outputs cannot be written\n");
    }
    leave(kSucceeded);
    return 0;
}

void reset(void) {
#if defined(__ARM_FP)
    COPROCESSORS |= 0xf << 20;  // switches the floating-point unit on
    __asm__ volatile("dsb\nisb" ::: "memory");
#endif
    for (volatile uint32_t* word = begin_of_bss; word < end_of_bss; ++word) {
        *word = 0;
    }
    main();
}

static void fail(void) {
    host(kWrite0, "a fault of the processor\n");
    leave(kFailed);
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void))end_of_stack, reset, fail, fail, fail, fail, fail};
