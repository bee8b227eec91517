// Firmware that classifies a digit by an exported network, and prints the class by semihosting.
#include "digits.h"
#include "semihosting.h"

// A handwritten 3 from the test images of the digits.
static const uint8_t kPixels[DIGITS_INPUT_SIZE] = {
    0, 0,   112, 239, 207, 16,  0,   0,  //
    0, 128, 207, 96,  239, 64,  0,   0,  //
    0, 32,  16,  207, 207, 0,   0,   0,  //
    0, 0,   32,  239, 175, 16,  0,   0,  //
    0, 0,   0,   16,  191, 191, 16,  0,  //
    0, 0,   0,   0,   16,  159, 128, 0,  //
    0, 0,   128, 64,  80,  223, 143, 0,  //
    0, 0,   112, 207, 207, 143, 0,   0,  //
};

#ifdef DIGITS_OUTPUT_SCALE  // a network of 8-bit integers, which reads the pixels
static int16_t output[DIGITS_OUTPUT_SIZE];
static void run(const uint8_t* pixels) { digits_run(pixels, output); }
#else
static float input[DIGITS_INPUT_SIZE], output[DIGITS_OUTPUT_SIZE];
static void run(const uint8_t* pixels) {
    digits_normalize(pixels, input);
    digits_run(input, output);
}
#endif

// Returns the class of an image.
static int classify(const uint8_t* pixels) {
    run(pixels);
    int best = 0;
    for (int i = 1; i < DIGITS_OUTPUT_SIZE; ++i) {
        best = output[i] > output[best] ? i : best;
    }
    return best;
}

// Ends the program, which would otherwise wait for a debugger (start_cortex_m.c, start_riscv.c).
void fault(void) {
    host_print("a fault of the processor\n");
    host_exit(kHostFailed);
}

int main(void) {
    static char text[] = "class 0\n";
    text[6] = (char)('0' + classify(kPixels));
    host_print(text);
    host_exit(kHostSucceeded);
}
