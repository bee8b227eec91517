// Test program for a microcontroller in QEMU: runs an exported network on images from a file of the host, by
// semihosting.
//
// images.bin contains the inputs. Written are outputs.bin, the outputs, and bits.bin, the words of each layer of bits
// of each image. On the console are the bytes of the stack that a run needs, the ticks of a timer in one run, and the
// ticks in the layer of each value.
#include <stddef.h>
#include <stdint.h>

#include "hooks.h"
#include "semihosting.h"

// On the command line: NETWORK_HEADER, NETWORK_RUN, INPUT_SIZE, INPUT_TYPE, OUTPUT_SIZE, OUTPUT_TYPE, and LAYERS, as
// many as the network has: the smallest processors have no memory for more.
#include NETWORK_HEADER

extern uint32_t end_of_bss[];

void fault(void);

enum { kReadBinary = 1, kWriteBinary = 5 };  // modes of files

static void require(int condition, const char* message) {
    if (!condition) {
        host_print(message);
        host_exit(kHostFailed);
    }
}

static uint32_t open(const char* name, uint32_t length, uint32_t mode) {
    const uint32_t arguments[] = {(uint32_t)name, mode, length};
    const uint32_t file = host(kHostOpen, arguments);
    require(file != 0xffffffffu, "a file cannot be opened\n");
    return file;
}

// Returns whether all bytes were read or written.
static int transfer(uint32_t operation, uint32_t file, const void* data, uint32_t bytes) {
    const uint32_t arguments[] = {file, (uint32_t)data, bytes};
    return host(operation, arguments) == 0;
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
    host_print(name);
    host_print(digit);
}

#ifdef __riscv
static void start_timer(void) {}
// Returns the number of instructions so far.
static uint32_t ticks(void) {
    uint32_t count;
    __asm__ volatile(".option push\n.option arch, +zicsr\ncsrr %0, minstret\n.option pop" : "=r"(count));
    return count;
}
#else
#define TIMER_CONTROL (*(volatile uint32_t*)0xe000e010)
#define TIMER_RELOAD (*(volatile uint32_t*)0xe000e014)
#define TIMER_VALUE (*(volatile uint32_t*)0xe000e018)
static void start_timer(void) {
    TIMER_RELOAD = 0xffffff;
    TIMER_CONTROL = 5;  // the processor's clock
    TIMER_VALUE = 0;
}
static uint32_t ticks(void) { return (0u - TIMER_VALUE) & 0xffffffu; }  // it counts down
#endif

static inline volatile uint32_t* stack_pointer(void) {
    register uint32_t* stack __asm__("sp");
    return stack;
}

static uint32_t bits_file;
static int traces;

void trace(const void* words, uint32_t count) {
    if (traces) {
        require(transfer(kHostWrite, bits_file, words, 4 * count), "bits cannot be written\n");
    }
}

static uint32_t layer_value[LAYERS], layer_begin[LAYERS], layers;

void begin_layer(uint32_t value) {
    if (!traces) {
        require(layers < LAYERS, "there are more layers than LAYERS\n");
        layer_value[layers] = value;
        layer_begin[layers++] = ticks();
    }
}

static const uint32_t kPaint = 0xb0a710adu;
static INPUT_TYPE input[INPUT_SIZE];
static OUTPUT_TYPE output[OUTPUT_SIZE];

// Runs the network once; prints the bytes of the stack below this function that it changed, and ticks.
__attribute__((noinline)) static void measure(void) {
    volatile uint32_t *top = stack_pointer(), *bottom = end_of_bss;
    for (volatile uint32_t* word = bottom; word < top; ++word) {
        *word = kPaint;
    }
    start_timer();
    const uint32_t begin = ticks();
    NETWORK_RUN(input, output);
    const uint32_t end = ticks();
    while (*bottom == kPaint) {
        ++bottom;
    }
    print_number("stack ", (uint32_t)(top - bottom) * 4);
    print_number("ticks ", end - begin);
    host_print("\n");
    for (uint32_t i = 0; i < layers; ++i) {
        print_number("layer ", layer_value[i]);
        print_number("ticks ", (i + 1 < layers ? layer_begin[i + 1] : end) - layer_begin[i]);
        host_print("\n");
    }
}

int main(void) {
    const uint32_t images = open("images.bin", 10, kReadBinary), outputs = open("outputs.bin", 11, kWriteBinary);
    bits_file = open("bits.bin", 8, kWriteBinary);
    for (int is_first = 1; transfer(kHostRead, images, input, sizeof input); is_first = 0) {
        if (is_first) {
            measure();
        }
        traces = 1;
        NETWORK_RUN(input, output);
        traces = 0;
        require(transfer(kHostWrite, outputs, output, sizeof output), "outputs cannot be written\n");
    }
    host_exit(kHostSucceeded);
}

void fault(void) {
    host_print("a fault of the processor\n");
    host_exit(kHostFailed);
}
