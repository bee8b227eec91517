// The MXNet operator `bmx_melius_packed`, which runs a packed program. The only file that depends on MXNet.
//
// Its inputs are those of the program, followed by the words of the program (int32). The attributes are described in
// deployment/program/packed_operator.py. MXNet does not distinguish repeated runs of one operator from new operators,
// so prepared programs are cached here for the whole process and looked up by their words.
#include <mxnet/lib_api.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <sstream>

#include "api/c_api.h"

namespace {

using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using Attributes = std::unordered_map<std::string, std::string>;
using Shape = std::vector<unsigned int>;

// --- errors ----------------------------------------------------------------------------------------------------------

// MXNet prints all messages that an extension has ever recorded, so one message is reused.
MXReturnValue fail(const std::string& text) {
    static std::mutex mutex;
    static std::stringstream& message = MX_ERROR_MSG;
    std::lock_guard<std::mutex> lock(mutex);
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

[[noreturn]] void refuse(const std::string& text) { throw std::runtime_error(text); }

// --- attributes and shapes -------------------------------------------------------------------------------------------

constexpr int64_t kLimit = int64_t(1) << 60;  // the sum of two such numbers does not overflow

std::vector<int64_t> numbers(const Attributes& attributes, const char* name, size_t count) {
    auto found = attributes.find(name);
    if (found == attributes.end()) {
        refuse(std::string("the attribute ") + name + " is missing: convert the network again");
    }
    std::istringstream text(found->second);
    std::vector<int64_t> values;
    bool bounded = true;
    for (int64_t value; text >> value; values.push_back(value)) {
        bounded &= std::abs(value / 2) < kLimit;
    }
    if (!text.eof() || values.size() != count || !bounded) {
        refuse(std::string("the attribute ") + name + " is damaged");
    }
    return values;
}

int count(const Attributes& attributes, const char* name, int most = 1 << 20) {
    int64_t value = numbers(attributes, name, 1)[0];
    if (value < 1 || value > most) {
        refuse(std::string("the attribute ") + name + " is damaged");
    }
    return int(value);
}

std::string text_of(const Shape& shape) {
    std::ostringstream text;
    text << '(';
    for (size_t axis = 0; axis < shape.size(); axis++) {
        text << (axis ? ", " : "") << shape[axis];
    }
    text << ')';
    return text.str();
}

// MXNet passes an unknown size as -1, older versions as 0.
bool known(const Shape& shape) {
    return !shape.empty() &&
           std::none_of(shape.begin(), shape.end(), [](unsigned size) { return size == 0 || size == ~0u; });
}

int64_t resize(const int64_t* formula, int64_t size) {
    int64_t shift = formula[0], step = formula[1], offset = formula[2];
    if (step <= 0) {
        return offset;
    }
    int64_t sum = size + shift;
    return (sum >= 0 ? sum / step : -((step - 1 - sum) / step)) + offset;
}

unsigned int dimension(int64_t size) {
    if (size < 1 || size > INT32_MAX) {
        refuse("the network cannot run on a map of this size: a window does not fit");
    }
    return unsigned(size);
}

void infer_shapes(const Attributes& attributes, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    size_t data = inputs->size() - 1;
    inputs->back() = {unsigned(count(attributes, "program_words", INT32_MAX))};
    std::vector<int64_t> channels = numbers(attributes, "input_channels", data);
    for (size_t i = 0; i < data; i++) {
        const Shape& shape = (*inputs)[i];
        if (!known(shape)) {
            return;  // MXNet calls again when more shapes are known
        }
        size_t rank = channels[i] < 0 ? 2 : 4;
        if (shape.size() != rank || shape[1] != std::abs(channels[i])) {
            std::string needed =
                "(batch, " + std::to_string(std::abs(channels[i])) + (rank == 2 ? ")" : ", height, width)");
            refuse("input " + std::to_string(i) + " must have the shape " + needed + ", not " + text_of(shape));
        }
        if (shape[0] != inputs->front()[0]) {
            refuse("the inputs have different batches");
        }
    }
    std::vector<int64_t> formulas = numbers(attributes, "output_shapes", 9 * outputs->size());
    for (size_t o = 0; o < outputs->size(); o++) {
        const int64_t* formula = &formulas[9 * o];
        if (formula[2] < 0 || formula[2] >= int64_t(data)) {
            refuse("the attribute output_shapes is damaged");
        }
        const Shape& source = (*inputs)[formula[2]];
        unsigned height = dimension(resize(formula + 3, source.size() == 4 ? source[2] : 1));
        unsigned width = dimension(resize(formula + 6, source.size() == 4 ? source[3] : 1));
        if (formula[0]) {
            (*outputs)[o] = {source[0], dimension(formula[1])};
        } else {
            (*outputs)[o] = {source[0], dimension(formula[1]), height, width};
        }
    }
}

MXReturnValue parse_attributes(const Attributes& attributes, int* inputs, int* outputs) {
    return guarded([&] {
        *inputs = count(attributes, "num_inputs") + 1;
        *outputs = count(attributes, "num_outputs");
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

// --- prepared programs -----------------------------------------------------------------------------------------------

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
        auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
            return entry.address == words && entry.version == version && equal(entry, std::min(size, kHeaderWords));
        });
        if (found != entries_.end()) {
            entries_.splice(entries_.begin(), entries_, found);
            return found->program;
        }
        found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return equal(entry, size); });
        Entry entry = found != entries_.end() ? *found : prepare(words, size);
        entry.address = words;
        entry.version = version;
        entries_.remove_if([&](const Entry& old) { return old.address == words; });
        entries_.push_front(entry);
        if (entries_.size() > kMost) {
            entries_.pop_back();
        }
        return entry.program;
    }

  private:
    static constexpr size_t kHeaderWords = 8, kMost = 32;
    struct Entry {
        std::shared_ptr<const std::vector<int32_t>> words;
        Program program;
        const int32_t* address;
        size_t version;
    };

    static Entry prepare(const int32_t* words, size_t size) {
        bmx_program* program = bmx_program_create(words, size);
        if (!program) {
            refuse(bmx_last_error());
        }
        Program owned(program, bmx_program_destroy);
        return {std::make_shared<std::vector<int32_t>>(words, words + size), owned, words, 0};
    }

    std::mutex mutex_;
    std::list<Entry> entries_;  // most recently used first
};

// A child of fork() starts with an empty cache: a thread of the parent may have held the lock.
Programs* programs = new Programs;
const int at_fork = pthread_atfork(nullptr, nullptr, [] { programs = new Programs; });

// --- running ---------------------------------------------------------------------------------------------------------

// Shapes in the form of the C interface, four numbers each.
std::vector<int64_t> shapes_of(const std::vector<MXTensor>& tensors, size_t number) {
    std::vector<int64_t> shapes(4 * number);
    for (size_t i = 0; i < number; i++) {
        if (tensors[i].shape.size() > 4) {
            refuse("an array of rank " + std::to_string(tensors[i].shape.size()));
        }
        std::copy(tensors[i].shape.begin(), tensors[i].shape.end(), shapes.begin() + 4 * i);
    }
    return shapes;
}

void run(std::vector<MXTensor>& inputs, std::vector<MXTensor>& outputs) {
    MXTensor& words = inputs.back();
    size_t data = inputs.size() - 1;
    Program program = programs->find(words.data<int32_t>(), size_t(words.size()), words.verID);
    if (bmx_program_inputs(program.get()) != data || bmx_program_outputs(program.get()) != outputs.size()) {
        refuse("symbol and parameters do not belong together: load both from one conversion");
    }
    std::vector<int64_t> input_shapes = shapes_of(inputs, data), output_shapes(4 * outputs.size());
    std::vector<int> ranks(outputs.size());
    if (bmx_program_infer(program.get(), input_shapes.data(), output_shapes.data(), ranks.data())) {
        refuse(bmx_last_error());
    }
    if (output_shapes != shapes_of(outputs, outputs.size())) {
        refuse("symbol and parameters do not belong together: load both from one conversion");
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
        refuse(bmx_last_error());
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
