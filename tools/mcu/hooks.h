// What an exported network calls in the test program (run.c): included before its source.
#include <stdint.h>

void trace(const void* words, uint32_t count);
void begin_layer(uint32_t value);

#define BMX_TRACE(value, words, count) trace(words, count)
#define BMX_LAYER(value) begin_layer(value)
