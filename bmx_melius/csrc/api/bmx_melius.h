/* C interface of the engine, which runs packed networks without Python and MXNet. It is usable from C99 and C++.
 *
 * Ownership. A bmx_program belongs to the caller, from bmx_program_create or bmx_program_load to bmx_program_destroy,
 * which accepts NULL, and so does a bmx_classifier. Arguments are read, and outputs written, only during a call:
 * nothing that is passed has to remain valid afterwards. Text that is returned belongs to the library; it remains valid
 * as long as the library is loaded, except the results of bmx_last_error() and bmx_classifier_class_name(). NULL is an
 * error, except in bmx_program_destroy and bmx_classifier_destroy and as the context of a callback.
 *
 * Errors. A function that fails returns NULL, or the status that its comment names. Then bmx_last_error() returns the
 * reason, one line of text, which is valid until the next failure in the same thread. Success does not clear it. No
 * function throws an exception, ends the process or prints. After a failed run the outputs are undefined, and the
 * program can be run again. What cannot be checked: the sizes of arrays that are passed, and whether a program or
 * classifier has been destroyed.
 *
 * Stack. The calling thread needs a stack of 256 KiB; with less, for example 64 KiB, a run may crash.
 *
 * Threads. All functions can be called by several threads concurrently, also with the same program or classifier, which
 * is never changed; errors are separate for each thread. Only bmx_program_destroy and bmx_classifier_destroy require
 * that no other call uses it.
 *
 * Versions. Until version 1.0, programs must be compiled again for each minor version; the name of the shared library
 * contains it. Packed files of earlier versions remain readable. */
#ifndef BMX_MELIUS_H_
#define BMX_MELIUS_H_
#include <stddef.h>
#include <stdint.h>

/* Version of this header. */
#define BMX_VERSION_MAJOR 0
#define BMX_VERSION_MINOR 9
#define BMX_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* A packed network, ready to run. */
typedef struct bmx_program bmx_program;
/* A packed network that classifies images, with the preprocessing of images and the names of its classes. */
typedef struct bmx_classifier bmx_classifier;

/* Return the reason of the last failure of the calling thread, or an empty text. */
const char* bmx_last_error(void);

/* Return the version of the library, "MAJOR.MINOR.PATCH". */
const char* bmx_version(void);

/* Return the instruction set in use ("reference", "avx2", "avxvnni", "avx512", "amx", "neon", "dotprod", "i8mm",
 * "wasm"), and all that this build and this CPU support, separated by spaces, the best one last. The environment
 * variable BMX_MELIUS_ISA selects one by name; it is read once, at first use. bmx_isa returns NULL if it names one that
 * is not available. */
const char* bmx_isa(void);
const char* bmx_available_isas(void);

/* Precision of float layers. BMX_EXACT: a run gives the same bits with every instruction set, number of threads and
 * batch. BMX_FAST: with AMX, float layers are computed in another order with tiles, with errors of the same size.
 * BMX_BF16: with AVX512_BF16, inputs and weights of most float convolutions are rounded to bfloat16, which changes
 * signs; elsewhere as BMX_EXACT. Binary layers are exact with all of them. */
enum { BMX_EXACT = 0, BMX_FAST = 1, BMX_BF16 = 2 };

/* Create a program from its words, which are copied. The versions of the format that are read are listed in
 * deployment/program/program.py: programs of earlier releases give the same results. */
bmx_program* bmx_program_create(const int32_t* words, size_t count, int precision);
/* Load a program from PREFIX-0000.params as written by convert, which must contain exactly one packed program. */
bmx_program* bmx_program_load(const char* path, int precision);
/* The same from the content of such a file, for example of an asset of an application, which is not kept. */
bmx_program* bmx_program_load_memory(const void* content, size_t bytes, int precision);
void bmx_program_destroy(bmx_program* program);

/* Return the number of inputs or outputs, or 0 on failure. */
size_t bmx_program_inputs(const bmx_program* program);
size_t bmx_program_outputs(const bmx_program* program);
/* Write the shape that an input had at conversion, with a batch of 1, to `shape`. Return its rank: 4, or 2, for which
 * only the first two numbers are written; 0 if there is no such input. */
int bmx_program_input_shape(const bmx_program* program, size_t input, int64_t shape[4]);

/* Infer the shapes and ranks of the outputs. Shapes are 4 numbers for each input or output, of which an input or output
 * of rank 2 uses the first two; the others are ignored in inputs and 0 in outputs. The first one is the batch, which is
 * at least 1 and the same for all inputs. Return 0, or 1 on failure. */
int bmx_program_infer(const bmx_program* program, const int64_t* input_shapes, int64_t* output_shapes,
                      int* output_ranks);

/* Return the default number of threads of a run: the number of cores available to the process (by its affinity and the
 * CPU quota of its control group, version 2), or the environment variable OMP_NUM_THREADS if that is less. It is
 * constant during the lifetime of a process. Return 1 on failure. */
int bmx_default_threads(void);

/* Run the program on contiguous float32 arrays of finite numbers, which must not overlap. Results for NaN and
 * infinities are undefined and need not be NaN. Ids of an embedding, such as the tokens of a text, are float32, too, in
 * which they are exact; one beyond its table is that of the first or last row. threads: 1 to 1024, or 0 for the
 * default. Concurrent runs use separate threads, which sleep while idle and exit when the last program is destroyed. A
 * child of fork() computes with one thread. A run that needs more working memory than 4 GiB, or than the value in bytes
 * that the environment variable BMX_MELIUS_MEMORY_LIMIT had when the program was created, fails. Return 0, or 1 on
 * failure. */
int bmx_program_run(const bmx_program* program, const int64_t* input_shapes, const float* const* inputs,
                    float* const* outputs, int threads);

/* Return the bytes of working memory that a run on these shapes allocates, excluding weights, inputs and outputs, or -1
 * on failure. */
int64_t bmx_program_working_memory(const bmx_program* program, const int64_t* input_shapes, int threads);

/* Run once and time each step. The callback is called for each step in order, with a name that lists its operations,
 * its time in seconds, its multiply-accumulates (padded positions included) and their kind: of floats, of bits, or of
 * 8-bit integers. The name is valid during the callback. Return 0, or 1 on failure. */
enum { BMX_MACS_FLOAT = 0, BMX_MACS_BINARY = 1, BMX_MACS_INT8 = 2 };
typedef void (*bmx_step_callback)(void* context, const char* name, double seconds, int64_t macs, int kind);
int bmx_program_profile(const bmx_program* program, const int64_t* input_shapes, const float* const* inputs,
                        float* const* outputs, int threads, bmx_step_callback callback, void* context);

/* Load a classifier from the files that convert wrote with a description of the preprocessing: PREFIX-symbol.json and
 * PREFIX-0000.params. (Files of versions before 0.2 have the description in PREFIX-summary.json.) precision: see
 * above. */
bmx_classifier* bmx_classifier_load(const char* prefix, int precision);
/* The same from the contents of the first two files, which are not kept. */
bmx_classifier* bmx_classifier_load_memory(const void* symbol, size_t symbol_bytes, const void* parameters,
                                           size_t parameter_bytes, int precision);
void bmx_classifier_destroy(bmx_classifier* classifier);

/* Return the number of classes, or 0 on failure. */
size_t bmx_classifier_classes(const bmx_classifier* classifier);
/* Return the name of a class, 0 <= number < classes: UTF-8 without control characters, valid until the classifier is
 * destroyed. Return NULL on failure; for a valid classifier and number, NULL means that the files have no names. */
const char* bmx_classifier_class_name(const bmx_classifier* classifier, size_t number);

/* Classify an image: decoded pixels of 8 bits, (height, width, channels) without gaps between rows, at most 2^27
 * pixels. They have the channels of the network; 3 (RGB) and 1 (gray) are converted to each other as it needs. They are
 * resized, cropped and normalized as in training. Write the numbers and probabilities of the `top` most probable
 * classes, at least 1, the most probable one first, or of all classes if there are fewer. threads: as in
 * bmx_program_run. Return how many were written, or 0 on failure. Numbers and names equal
 * Session.classify in Python; probabilities differ only by rounding. */
size_t bmx_classifier_classify(const bmx_classifier* classifier, const uint8_t* pixels, int64_t height, int64_t width,
                               int64_t channels, int threads, size_t top, size_t* numbers, double* probabilities);

/* Write the shape of the network's input for one image, (1, channels, size, size). Return 0, or 1 on failure. */
int bmx_classifier_input_shape(const bmx_classifier* classifier, int64_t shape[4]);
/* Write the input of the network for an image, which bmx_classifier_classify computes as well: float32 of this shape.
 * Return 0, or 1 on failure. */
int bmx_classifier_preprocess(const bmx_classifier* classifier, const uint8_t* pixels, int64_t height, int64_t width,
                              int64_t channels, float* input);

/* Measure the peak multiply-accumulates per second of one thread for each method that the instruction set in use has,
 * such as xor, popcount and add, float fused multiply-add, or dot products of bytes: with operands in registers, and
 * with operands from the first-level cache. Takes about twice the given number of seconds, which is positive, for each
 * method, for which the callback is called. kind: see above. Return 0, or 1 on failure. */
typedef void (*bmx_peak_callback)(void* context, const char* method, int kind, double in_registers, double in_cache);
int bmx_measure_peaks(double seconds, bmx_peak_callback callback, void* context);

#ifdef __cplusplus
}
#endif
#endif
