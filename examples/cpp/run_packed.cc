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
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "bmx_melius.h"

using Program = std::unique_ptr<bmx_program, decltype(&bmx_program_destroy)>;

// Throws what the library says about the last failure of this thread.
static void require(bool succeeded) {
    if (!succeeded) {
        throw std::runtime_error(bmx_last_error());
    }
}

static size_t elements(const int64_t* shape, int rank) {
    return std::accumulate(shape, shape + rank, size_t{1}, [](size_t product, int64_t size) { return product * size; });
}

static std::vector<float> read_numbers(const char* path, size_t count) {
    std::vector<float> numbers(count);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), std::fclose);
    if (!file || std::fread(numbers.data(), sizeof(float), count, file.get()) != count) {
        throw std::runtime_error("the image cannot be read, or has too few numbers");
    }
    return numbers;
}

// Runs a program with one input; returns its first output.
static std::vector<float> run(const bmx_program* program, const char* path) {
    if (bmx_program_inputs(program) != 1) {
        throw std::runtime_error("this example runs networks with one input");
    }
    int64_t shape[4];
    const int rank = bmx_program_input_shape(program, 0, shape);
    const std::vector<float> image = read_numbers(path, elements(shape, rank));

    const size_t count = bmx_program_outputs(program);
    std::vector<int64_t> shapes(4 * count);
    std::vector<int> ranks(count);
    require(bmx_program_infer(program, shape, shapes.data(), ranks.data()) == 0);
    std::vector<std::vector<float>> outputs;
    std::vector<float*> pointers;
    for (size_t i = 0; i < count; i++) {
        outputs.emplace_back(elements(&shapes[4 * i], ranks[i]));
        pointers.push_back(outputs.back().data());
    }
    const float* input = image.data();
    require(bmx_program_run(program, shape, &input, pointers.data(), 0) == 0);
    return outputs[0];
}

int main(int argc, char** argv) {
    try {
        if (argc != 3) {
            throw std::runtime_error("usage: run_packed PREFIX-0000.params image.bin");
        }
        const Program program(bmx_program_load(argv[1], BMX_EXACT), bmx_program_destroy);
        require(program != nullptr);
        for (float score : run(program.get(), argv[2])) {
            std::printf("%.9g\n", score);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
