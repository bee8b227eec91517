/* Runs a packed network from C: a file of raw float32 numbers in, one number a line out.
 *
 *   gcc run_packed.c $(pkg-config --cflags --libs bmx_melius) -o run_packed
 *   ./run_packed PREFIX-0000.params image.bin
 *
 * The file has one image in the shape that the network was converted with, of pixels that are prepared as in training
 * (channels first): numpy.ndarray.tofile and `bmx-classify --save-input` write such files. The first output is printed,
 * the scores of the classes. */
#include <stdio.h>
#include <stdlib.h>

#include "bmx_melius.h"

static int fail(const char* message) {
    fprintf(stderr, "error: %s\n", message);
    return 1;
}

static size_t elements(const int64_t* shape, int rank) {
    size_t count = 1;
    for (int axis = 0; axis < rank; axis++) {
        count *= (size_t)shape[axis];
    }
    return count;
}

/* Returns the numbers in a file, which the caller frees, or NULL unless it has `count` of them. */
static float* read_numbers(const char* path, size_t count) {
    FILE* file = fopen(path, "rb");
    float* numbers = malloc(count * sizeof *numbers);
    int complete = file && numbers && fread(numbers, sizeof *numbers, count, file) == count;
    if (file) {
        fclose(file);
    }
    if (!complete) {
        free(numbers);
        return NULL;
    }
    return numbers;
}

/* Runs a program with one input; prints its first output. Returns 0, or 1 with a message. */
static int run(const bmx_program* program, const char* path) {
    if (bmx_program_inputs(program) != 1) {
        return fail("this example runs networks with one input");
    }
    int64_t shape[4] = {1, 1, 1, 1};
    int rank = bmx_program_input_shape(program, 0, shape);
    float* image = read_numbers(path, elements(shape, rank));
    if (!image) {
        return fail("the image cannot be read, or has too few numbers");
    }

    size_t count = bmx_program_outputs(program);
    int64_t* shapes = calloc(4 * count, sizeof *shapes);
    int* ranks = calloc(count, sizeof *ranks);
    float** outputs = calloc(count, sizeof *outputs);
    int status = 0;
    if (!shapes || !ranks || !outputs) {
        status = fail("out of memory");
    } else if (bmx_program_infer(program, shape, shapes, ranks)) {
        status = fail(bmx_last_error());
    }
    for (size_t i = 0; !status && i < count; i++) {
        outputs[i] = malloc(elements(shapes + 4 * i, ranks[i]) * sizeof **outputs);
        if (!outputs[i]) {
            status = fail("out of memory");
        }
    }
    const float* input = image;
    if (!status && bmx_program_run(program, shape, &input, outputs, 0)) {
        status = fail(bmx_last_error());
    }
    for (size_t i = 0; !status && i < elements(shapes, ranks[0]); i++) {
        printf("%.9g\n", outputs[0][i]);
    }

    for (size_t i = 0; outputs && i < count; i++) {
        free(outputs[i]);
    }
    free(outputs);
    free(ranks);
    free(shapes);
    free(image);
    return status;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        return fail("usage: run_packed PREFIX-0000.params image.bin");
    }
    bmx_program* program = bmx_program_load(argv[1], BMX_EXACT);
    if (!program) {
        return fail(bmx_last_error());
    }
    int status = run(program, argv[2]);
    bmx_program_destroy(program);
    return status;
}
