// Runs a packed network from C++: a file of raw float32 numbers in, one number a line out.
//
//   g++ -std=c++17 run_packed.cc $(pkg-config --cflags --libs bmx_melius) -o run_packed
//   ./run_packed PREFIX-0000.params image.bin
//
// The Python package has the same library, _engine.so:
//
//   package=$(python -c 'import bmx_melius; print(bmx_melius.__path__[0])')
//   g++ -std=c++17 run_packed.cc -I $package/csrc/api $package/_engine.so -Wl,-rpath,$package -o run_packed
//
// The file has one image in the shape that the network was converted with, of pixels that are prepared as in training
// (channels first): numpy.ndarray.tofile and `bmx-classify --save-input` write such files. The first output is printed,
// the scores of the classes.
#include <cstdio>
#include <vector>

#include "bmx_melius.h"

static int fail(const char* message) {
    std::fprintf(stderr, "error: %s\n", message);
    return 1;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        return fail("usage: run_packed PREFIX-0000.params image.bin");
    }
    bmx_program* program = bmx_program_load(argv[1], BMX_EXACT);
    if (!program) {
        return fail(bmx_last_error());
    }
    if (bmx_program_inputs(program) != 1) {
        return fail("this example runs networks with one input");
    }

    int64_t shape[4] = {1, 1, 1, 1};
    bmx_program_input_shape(program, 0, shape);
    std::vector<float> image(shape[0] * shape[1] * shape[2] * shape[3]);
    std::FILE* file = std::fopen(argv[2], "rb");
    if (!file || std::fread(image.data(), sizeof(float), image.size(), file) != image.size()) {
        return fail("the image cannot be read, or has too few numbers");
    }
    std::fclose(file);

    size_t count = bmx_program_outputs(program);
    std::vector<int64_t> shapes(4 * count);
    std::vector<int> ranks(count);
    if (bmx_program_infer(program, shape, shapes.data(), ranks.data())) {
        return fail(bmx_last_error());
    }
    std::vector<std::vector<float>> outputs(count);
    std::vector<float*> pointers;
    for (size_t i = 0; i < count; i++) {
        size_t size = 1;
        for (int axis = 0; axis < ranks[i]; axis++) {
            size *= shapes[4 * i + axis];
        }
        outputs[i].resize(size);
        pointers.push_back(outputs[i].data());
    }
    const float* input = image.data();
    if (bmx_program_run(program, shape, &input, pointers.data(), 0)) {
        return fail(bmx_last_error());
    }
    for (float score : outputs[0]) {
        std::printf("%.9g\n", score);
    }
    bmx_program_destroy(program);
}
