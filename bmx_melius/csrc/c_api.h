/* The C interface of the engine: run a packed network without MXNet.
 *
 * Functions that can fail return NULL or a status other than 0; bmx_last_error() then says why (one line; of this
 * thread). A program may be used by several threads at once. */
#ifndef BMX_MELIUS_C_API_H_
#define BMX_MELIUS_C_API_H_
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bmx_program bmx_program;

const char* bmx_last_error(void);
const char* bmx_version(void);

/* The instruction set in use ("reference", "avx2", "avx512", "amx") and all that this build and this CPU have,
 * separated by spaces, the best one last. The environment variable BMX_MELIUS_ISA chooses one by name; it is read once,
 * at first use. bmx_isa returns NULL when it names one that is not there. */
const char* bmx_isa(void);
const char* bmx_available_isas(void);

/* The words are copied. */
bmx_program* bmx_program_create(const int32_t* words, size_t count);
/* Read PREFIX-0000.params as written by convert, which must hold one packed program. */
bmx_program* bmx_program_load(const char* path);
void bmx_program_destroy(bmx_program* program);

size_t bmx_program_inputs(const bmx_program* program);
size_t bmx_program_outputs(const bmx_program* program);
/* Shape of an input as at conversion: rank (2 or 4) numbers written to shape, the batch 1. Returns the rank. */
int bmx_program_input_shape(const bmx_program* program, size_t input, int64_t shape[4]);

/* Shapes are 4 numbers for each input or output (unused ones 0), the batch first; ranks one number each. */
int bmx_program_infer(const bmx_program* program, const int64_t* input_shapes, int64_t* output_shapes,
                      int* output_ranks);

/* Runs on contiguous float32 arrays. threads: 0 for as many as OpenMP offers. A run that would take more working memory
 * than 4 GiB, or than the environment variable BMX_MELIUS_MEMORY_LIMIT had bytes when the program was created, fails.
 */
int bmx_program_run(const bmx_program* program, const int64_t* input_shapes, const float* const* inputs,
                    float* const* outputs, int threads);

/* Bytes of working memory that a run on these shapes allocates beside weights, inputs and outputs. */
int64_t bmx_program_working_memory(const bmx_program* program, const int64_t* input_shapes, int threads);

/* Times each step: runs once and calls back for each step in order with its name (which operations it covers), seconds
 * and multiplications (multiply-accumulates, padded positions counted; binary tells which kind). */
typedef void (*bmx_step_callback)(void* context, const char* name, double seconds, int64_t macs, int binary);
int bmx_program_profile(const bmx_program* program, const int64_t* input_shapes, const float* const* inputs,
                        float* const* outputs, int threads, bmx_step_callback callback, void* context);

/* Multiply-accumulates a second of the instruction set's inner loop in registers, one thread: xor, popcount and add (or
 * float fused multiply-add), the machine's peak that a network is compared with. Runs for about the given seconds. */
double bmx_peak_binary(double seconds);
double bmx_peak_float(double seconds);

#ifdef __cplusplus
}
#endif
#endif
