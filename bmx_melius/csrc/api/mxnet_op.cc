// The MXNet operator `bmx_melius_packed`, which runs a packed program.
//
// Its inputs are the program's, followed by the words of the program (int32). Its attribute, from which shapes
// are inferred, is described in deployment/program/packed_operator.py. MXNet does not distinguish repeated runs of one
// operator from new operators, so prepared programs and decoded attributes are cached here for the whole process.
#include <mxnet/lib_api.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>

#include "api/bmx_melius.h"
#include "api/lru_cache.h"
#include "program/error.h"
#include "program/shapes.h"
#include "program/structure.h"

namespace {

using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using Attributes = std::unordered_map<std::string, std::string>;
using Shape = std::vector<unsigned int>;

// --- errors ----------------------------------------------------------------------------------------------------------

std::mutex message_mutex;  // locked during a fork
std::stringstream& message = MX_ERROR_MSG;

// MXNet prints all messages that an extension has ever recorded, so one message is reused.
MXReturnValue fail(const std::string& text) {
    std::lock_guard<std::mutex> lock(message_mutex);
    message.str("bmx_melius_packed: " + text);
    return mxnet::ext::MX_FAIL;
}

template <class Body>
MXReturnValue guarded(const Body& body) {
    try {
        body();
        return mxnet::ext::MX_SUCCESS;
    } catch (const std::exception& error) {
        return fail(error.what());
    }
}

// --- caches ----------------------------------------------------------------------------------------------------------

using Structure = std::shared_ptr<const bmx::Program>;  // without arrays

// Cache of structures by their text, because MXNet infers shapes at every imperative call.
class Structures {
  public:
    Structure find(const std::string& text) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (const Entry* found = entries_.find([&](const Entry& entry) { return entry.text == text; })) {
            return found->structure;
        }
        const auto structure = std::make_shared<const bmx::Program>(bmx::read_structure(text));
        entries_.add({text, structure});
        return structure;
    }

  private:
    struct Entry {
        std::string text;
        Structure structure;
    };

    std::mutex mutex_;
    bmx::LruCache<Entry> entries_{32};
};

using Program = std::shared_ptr<const bmx_program>;

// Cache of the most recently used programs. MXNet assigns a version to the contents of each array: an array with the
// same address and version is unchanged, and if another array has been allocated there, its header with the checksum
// differs (or it is a damaged copy of the same program; then the undamaged program is run). Other arrays are compared
// in full.
class Programs {
  public:
    Program find(const int32_t* words, size_t size, size_t version) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto equal = [&](const Entry& entry, size_t length) {
            return entry.words->size() == size && !std::memcmp(entry.words->data(), words, length * sizeof(int32_t));
        };
        const Entry* found = entries_.find([&](const Entry& entry) {
            return entry.address == words && entry.version == version && equal(entry, std::min(size, kHeaderWords));
        });
        if (found) {
            return found->program;
        }
        found = entries_.find([&](const Entry& entry) { return equal(entry, size); });
        Entry entry = found ? *found : prepare(words, size);
        entry.address = words;
        entry.version = version;
        entries_.remove([&](const Entry& old) { return old.address == words; });
        entries_.add(entry);
        return entry.program;
    }

  private:
    static constexpr size_t kHeaderWords = 8;
    struct Entry {
        std::shared_ptr<const std::vector<int32_t>> words;
        Program program;
        const int32_t* address;
        size_t version;
    };

    static Entry prepare(const int32_t* words, size_t size) {
        bmx_program* program = bmx_program_create(words, size, BMX_EXACT);
        if (!program) {
            throw bmx::Error(bmx_last_error());
        }
        Program owned(program, bmx_program_destroy);
        return {std::make_shared<std::vector<int32_t>>(words, words + size), owned, words, 0};
    }

    std::mutex mutex_;
    bmx::LruCache<Entry> entries_{32};
};

struct Caches {
    Structures structures;
    Programs programs;
};

// A child of fork() starts with empty caches: a thread of the parent may have held a lock.
Caches* caches = new Caches;
const int at_fork = pthread_atfork([] { message_mutex.lock(); }, [] { message_mutex.unlock(); },
                                   [] {
                                       message_mutex.unlock();
                                       caches = new Caches;
                                   });

// --- shapes ----------------------------------------------------------------------------------------------------------

Structure structure_of(const Attributes& attributes) {
    const auto found = attributes.find("structure");
    return caches->structures.find(found == attributes.end() ? "" : found->second);
}

// MXNet passes an unknown size as -1, older versions as 0.
bool known(const Shape& shape) {
    return !shape.empty() &&
           std::none_of(shape.begin(), shape.end(), [](unsigned size) { return size == 0 || size == ~0u; });
}

std::string sizes_at_conversion(const bmx::Program& program) {
    std::string text;
    for (const bmx::Value& input : program.inputs()) {
        const bmx::Shape shape = bmx::shape_of(input, 1);
        text += (text.empty() ? "" : ", ") + bmx::to_string({shape.begin() + 1, shape.end()});
    }
    return text;
}

void infer_shapes(const Attributes& attributes, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    const Structure structure = structure_of(attributes);
    inputs->back() = {unsigned(structure->length())};
    std::vector<bmx::Shape> shapes;
    for (size_t i = 0; i + 1 < inputs->size(); i++) {
        const Shape& shape = (*inputs)[i];
        if (!known(shape)) {
            return;  // MXNet calls again when more shapes are known
        }
        shapes.emplace_back(shape.begin(), shape.end());
    }
    const bmx::InputSizes sizes = bmx::check_shapes(*structure, shapes);
    std::vector<bmx::Value> values;
    try {
        values = structure->infer(sizes.maps);
    } catch (const bmx::Error& error) {
        throw bmx::Error(std::string(error.what()) + "; the network was converted with inputs of " +
                         sizes_at_conversion(*structure));
    }
    for (size_t o = 0; o < outputs->size(); o++) {
        const bmx::Shape shape = bmx::shape_of(values[structure->outputs()[o]], sizes.batch);
        (*outputs)[o].assign(shape.begin(), shape.end());
    }
}

MXReturnValue parse_attributes(const Attributes& attributes, int* inputs, int* outputs) {
    return guarded([&] {
        const Structure structure = structure_of(attributes);
        *inputs = int(structure->inputs().size()) + 1;
        *outputs = int(structure->outputs().size());
    });
}

MXReturnValue infer_shape(const Attributes& attributes, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    return guarded([&] { infer_shapes(attributes, inputs, outputs); });
}

constexpr int kUnknown = -1;  // MXNet's value for an unknown type

MXReturnValue infer_type(const Attributes&, std::vector<int>* inputs, std::vector<int>* outputs) {
    for (size_t i = 0; i < inputs->size(); i++) {
        bool words = i + 1 == inputs->size();
        int wanted = words ? mxnet::ext::kInt32 : mxnet::ext::kFloat32;
        if ((*inputs)[i] == mxnet::ext::kUNSET || (*inputs)[i] == kUnknown) {
            (*inputs)[i] = wanted;
        }
        if ((*inputs)[i] != wanted) {
            return fail(words ? "the program must be int32: it has been cast, load the network again"
                              : "input " + std::to_string(i) +
                                    " must be float32: cast it, and leave the network as it is");
        }
    }
    std::fill(outputs->begin(), outputs->end(), int(mxnet::ext::kFloat32));
    return mxnet::ext::MX_SUCCESS;
}

// --- running ---------------------------------------------------------------------------------------------------------

// Shapes in the form of the C interface, four numbers each.
std::vector<int64_t> shapes_of(const std::vector<MXTensor>& tensors, size_t number) {
    std::vector<int64_t> shapes(4 * number);
    for (size_t i = 0; i < number; i++) {
        if (tensors[i].shape.size() > 4) {
            throw bmx::Error("an array of rank " + std::to_string(tensors[i].shape.size()));
        }
        std::copy(tensors[i].shape.begin(), tensors[i].shape.end(), shapes.begin() + 4 * i);
    }
    return shapes;
}

void run(std::vector<MXTensor>& inputs, std::vector<MXTensor>& outputs) {
    MXTensor& words = inputs.back();
    size_t data = inputs.size() - 1;
    Program program = caches->programs.find(words.data<int32_t>(), size_t(words.size()), words.verID);
    if (bmx_program_inputs(program.get()) != data || bmx_program_outputs(program.get()) != outputs.size()) {
        throw bmx::Error("symbol and parameters do not belong together: load both from one conversion");
    }
    std::vector<int64_t> input_shapes = shapes_of(inputs, data), output_shapes(4 * outputs.size());
    std::vector<int> ranks(outputs.size());
    if (bmx_program_infer(program.get(), input_shapes.data(), output_shapes.data(), ranks.data())) {
        throw bmx::Error(bmx_last_error());
    }
    if (output_shapes != shapes_of(outputs, outputs.size())) {
        throw bmx::Error("symbol and parameters do not belong together: load both from one conversion");
    }
    std::vector<const float*> from;
    std::vector<float*> to;
    for (size_t i = 0; i < data; i++) {
        from.push_back(inputs[i].data<float>());
    }
    for (MXTensor& output : outputs) {
        to.push_back(output.data<float>());
    }
    if (bmx_program_run(program.get(), input_shapes.data(), from.data(), to.data(), 0)) {
        throw bmx::Error(bmx_last_error());
    }
}

MXReturnValue forward(const Attributes&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                      const mxnet::ext::OpResource&) {
    return guarded([&] { run(*inputs, *outputs); });
}

// MXNet cannot hybridize an operator without a backward function.
MXReturnValue backward(const Attributes&, std::vector<MXTensor>*, std::vector<MXTensor>*,
                       const mxnet::ext::OpResource&) {
    return fail("a packed network is for inference and has no gradient: train the network that it was converted from");
}

REGISTER_OP(bmx_melius_packed)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu")
    .setParseAttrs(parse_attributes)
    .setInferType(infer_type)
    .setInferShape(infer_shape);

}  // namespace

MXReturnValue initialize(int version) {
    if (version >= 10900) {
        return mxnet::ext::MX_SUCCESS;
    }
    return fail("MXNet 1.9 or newer is needed");
}
