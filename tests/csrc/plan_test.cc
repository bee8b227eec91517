// Tests of the planning passes: fusion, views, placement and layout.
//
//     plan_test [FILE...]
//
// Checks the passes on small programs, and the plans of the programs whose words are in FILEs. Prints a line for each
// FILE with what the export to C decides too (print_decisions).
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>

#include "plan_checks.h"
#include "program_builder.h"

namespace {

using bmx::Op;
using bmx::StepKind;
using Kinds = std::vector<StepKind>;

std::vector<void (*)()> tests;

// Defines a function without arguments that `main` calls.
#define TEST(name)                                              \
    void name();                                                \
    const bool name##_is_known = (tests.push_back(name), true); \
    void name()

Kinds kinds_of(const Planned& p) {
    Kinds kinds;
    for (const bmx::Group& group : p.fusion.groups) {
        kinds.push_back(group.kind);
    }
    return kinds;
}

// Returns the group that computes a value.
const bmx::Group& producer(const Planned& p, int value) {
    CHECK(p.fusion.producer[value] >= 0);
    return p.fusion.groups[p.fusion.producer[value]];
}

std::vector<Op> ops_of(const Planned& p, int value) {
    std::vector<Op> ops;
    for (int i : producer(p, value).operations) {
        ops.push_back(p.program.operations()[i].op);
    }
    return ops;
}

bool share_a_buffer(const Planned& p, int a, int b) { return p.placement.buffer_of[a] == p.placement.buffer_of[b]; }

Planned plan(const char* name, const ProgramBuilder& builder, const std::vector<int>& outputs) {
    case_name = name;
    Planned planned(builder.words(outputs));
    check_plan(planned);
    return planned;
}

// --- fusion

TEST(first_convolutions_are_one_step) {
    ProgramBuilder b;
    const int image = b.input(3, 16, 16);
    const int first = b.relu(b.affine(b.conv(image, 8, 3)));
    const int last = b.max_pool(b.relu(b.conv(first, 8, 3)));
    const Planned p = plan("stem", b, {last});
    CHECK((kinds_of(p) == Kinds{StepKind::stem, StepKind::output}));
    CHECK((ops_of(p, last) == std::vector<Op>{Op::conv, Op::affine, Op::relu, Op::conv, Op::relu, Op::max_pool}));
}

TEST(a_transition_is_one_step) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8);
    const int y = b.affine(b.conv(b.shuffle(b.relu(b.max_pool(b.affine(x))), 4), 32, 1, 4));
    const Planned p = plan("transition", b, {y});
    CHECK((kinds_of(p) == Kinds{StepKind::input, StepKind::conv, StepKind::output}));
    CHECK(producer(p, y).operations.size() == 6);
}

TEST(what_has_two_readers_is_not_fused) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8), normalized = b.affine(x), rectified = b.relu(normalized);
    const int mean = b.global_avg_pool(normalized);
    const Planned p = plan("two readers", b, {rectified, mean});
    CHECK((kinds_of(p) ==
           Kinds{StepKind::input, StepKind::pool, StepKind::pool, StepKind::mean, StepKind::output, StepKind::output}));
    CHECK(producer(p, normalized).operations.size() == 1);
}

TEST(two_poolings_are_two_steps) {
    ProgramBuilder b;
    const int once = b.max_pool(b.input(64, 8, 8)), twice = b.max_pool(once);
    const Planned p = plan("two poolings", b, {twice});
    CHECK((ops_of(p, once) == std::vector<Op>{Op::max_pool}));
    CHECK((ops_of(p, twice) == std::vector<Op>{Op::max_pool}));
}

TEST(an_output_is_not_fused) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8), normalized = b.affine(x), mean = b.global_avg_pool(normalized);
    const Planned p = plan("output", b, {normalized, mean});
    CHECK((ops_of(p, normalized) == std::vector<Op>{Op::affine}));
    CHECK((ops_of(p, mean) == std::vector<Op>{Op::global_avg_pool}));
}

TEST(a_convolution_compares_and_adds) {
    ProgramBuilder b;
    const int x = b.relu(b.input(64, 8, 8));
    const int z = b.binary_conv(b.threshold(x), 64), y = b.add(z, x);
    const Planned p = plan("residual", b, {y});
    CHECK((kinds_of(p) ==
           Kinds{StepKind::input, StepKind::pool, StepKind::pack, StepKind::binary_conv, StepKind::output}));
    CHECK((ops_of(p, y) == std::vector<Op>{Op::threshold, Op::binary_conv, Op::add}));
}

TEST(what_follows_a_float_convolution_is_part_of_it) {
    ProgramBuilder b;
    const int x = b.relu(b.input(64, 8, 8));
    const int y = b.relu(b.add(b.affine(b.conv(b.relu(b.conv(x, 64, 3)), 64, 3)), x));
    const Planned p = plan("float residual", b, {b.max_pool(y)});
    CHECK((kinds_of(p) ==
           Kinds{StepKind::input, StepKind::pool, StepKind::conv, StepKind::conv, StepKind::pool, StepKind::output}));
    CHECK((ops_of(p, y) == std::vector<Op>{Op::conv, Op::affine, Op::add, Op::relu}));
    CHECK(producer(p, y).elementwise == 2);
}

TEST(a_depthwise_convolution_ends_the_first_layers) {
    ProgramBuilder b;
    const int x = b.relu(b.conv(b.input(3, 16, 16), 8, 3)), y = b.relu(b.conv(x, 8, 3, 8));
    const Planned p = plan("depthwise", b, {y});
    CHECK((kinds_of(p) == Kinds{StepKind::stem, StepKind::conv, StepKind::output}));
    CHECK(bmx::is_depthwise(p.program, producer(p, y).operations[0]));
    CHECK(!bmx::is_depthwise(p.program, producer(p, x).operations[0]));
}

TEST(an_input_that_is_only_compared_is_packed_at_once) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8), y = b.binary_conv(b.threshold(x), 64);
    const Planned p = plan("packed input", b, {y});
    CHECK((kinds_of(p) == Kinds{StepKind::input_pack, StepKind::binary_conv, StepKind::output}));
}

TEST(elementwise_operations_after_a_convolution_are_part_of_it) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8);
    const int y = b.add(b.prelu(b.affine(b.binary_conv(b.threshold(x), 64))), x);
    const int z = b.binary_conv(b.threshold(y), 64);
    const Planned p = plan("residual with prelu", b, {b.add(y, z)});
    CHECK((kinds_of(p) ==
           Kinds{StepKind::input, StepKind::pack, StepKind::binary_conv, StepKind::binary_conv, StepKind::output}));
    CHECK((ops_of(p, y) == std::vector<Op>{Op::threshold, Op::binary_conv, Op::affine, Op::prelu, Op::add}));
    CHECK(producer(p, y).sums == bmx::DataType::i16 && producer(p, y).type == bmx::DataType::f32);
}

TEST(elementwise_operations_are_one_step_and_pack) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8), y = b.prelu(b.affine(b.add(x, x))), z = b.binary_conv(b.threshold(y), 64);
    const Planned p = plan("elementwise", b, {b.max_pool(z), y});
    CHECK((ops_of(p, y) == std::vector<Op>{Op::add, Op::affine, Op::prelu}));
    const Kinds kinds = kinds_of(p);
    CHECK(std::count(kinds.begin(), kinds.end(), StepKind::pack) == 0);
}

TEST(integers_after_a_convolution_are_rescaled_and_added_in_its_step) {
    ProgramBuilder b;
    const int x = b.rescale(b.input(64, 8, 8), 16000);
    const int y = b.add(b.rescale(b.binary_conv(b.threshold(x), 64), 16000), b.rescale(x, 16000));
    const int z = b.add(b.rescale(y, 16000), b.rescale(b.binary_conv(b.threshold(y), 64), 16000));
    const Planned p = plan("residual of integers", b, {z});
    CHECK((kinds_of(p) == Kinds{StepKind::input, StepKind::elementwise, StepKind::binary_conv, StepKind::binary_conv,
                                StepKind::output}));
    for (int sum : {y, z}) {
        CHECK((ops_of(p, sum) == std::vector<Op>{Op::threshold, Op::binary_conv, Op::rescale, Op::rescale, Op::add}));
        CHECK(producer(p, sum).type == bmx::DataType::i16 && producer(p, sum).reads.size() == 2);
    }
}

TEST(the_second_of_two_convolutions_adds_their_integers) {
    ProgramBuilder b;
    const int x = b.rescale(b.input(64, 8, 8), 100);
    const int first = b.rescale(b.binary_conv(b.threshold(x), 64), 16000);
    const int second = b.rescale(b.binary_conv(b.threshold(x), 64), 16000), sum = b.add(first, second);
    const Planned p = plan("two convolutions", b, {sum});
    CHECK((ops_of(p, first) == std::vector<Op>{Op::threshold, Op::binary_conv, Op::rescale}));
    CHECK((ops_of(p, sum) == std::vector<Op>{Op::threshold, Op::binary_conv, Op::rescale, Op::add}));
}

TEST(sums_that_exceed_16_bits_are_no_chain_of_integers) {
    ProgramBuilder b;
    const int x = b.rescale(b.input(64, 8, 8), 32000);
    const int rescaled = b.rescale(b.binary_conv(b.threshold(x), 64), 32000), sum = b.add(rescaled, x);
    const Planned p = plan("large sums", b, {sum});
    CHECK((ops_of(p, rescaled) == std::vector<Op>{Op::threshold, Op::binary_conv, Op::rescale}));
    CHECK((ops_of(p, sum) == std::vector<Op>{Op::add}) && producer(p, sum).type == bmx::DataType::f32);
}

TEST(an_operand_that_is_computed_later_ends_a_chain) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8), y = b.prelu(x), gate = b.sigmoid(b.global_avg_pool(b.max_pool(x)));
    const int z = b.prelu(b.multiply(y, gate));
    const Planned p = plan("gate", b, {z});
    CHECK((ops_of(p, y) == std::vector<Op>{Op::prelu}));
    CHECK((ops_of(p, z) == std::vector<Op>{Op::multiply, Op::prelu}));
}

TEST(the_mean_of_channels_ends_a_chain) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8), mean = b.channel_mean(b.relu(x)), y = b.multiply(x, mean);
    const Planned p = plan("mean of channels", b, {y});
    CHECK((ops_of(p, mean) == std::vector<Op>{Op::relu, Op::channel_mean}));
}

// --- views

TEST(concat_and_slice_make_no_step) {
    ProgramBuilder b;
    const int x = b.input(32, 4, 4), y = b.relu(x);
    const int joined = b.concat({x, y, x}), cut = b.slice(joined, 16, 80), z = b.global_avg_pool(cut);
    const Planned p = plan("views", b, {z});
    CHECK((kinds_of(p) == Kinds{StepKind::input, StepKind::pool, StepKind::mean, StepKind::output}));
    const bmx::Source source = p.placement.source(producer(p, z).reads[0]);
    CHECK(source.slabs.size() == 3);
    CHECK(source.slabs[0].buffer == p.placement.buffer_of[x] && source.slabs[0].begin == 16 &&
          source.slabs[0].channels == 16);
    CHECK(source.slabs[1].buffer == p.placement.buffer_of[y] && source.slabs[1].channels == 32);
    CHECK(source.slabs[2].buffer == p.placement.buffer_of[x] && source.slabs[2].begin == 0 &&
          source.slabs[2].channels == 16);
}

TEST(neighbouring_slices_are_one_slab) {
    ProgramBuilder b;
    const int x = b.input(32, 4, 4);
    const int joined = b.concat({b.slice(x, 0, 8), b.slice(x, 8, 20), b.slice(x, 20, 32)});
    const Planned p = plan("neighbours", b, {joined});
    CHECK(p.views.parts[joined].size() == 1);
}

TEST(views_that_break_words_of_bits_are_copied) {
    ProgramBuilder b;
    const int x = b.input(48, 4, 4), joined = b.concat({b.relu(x), x}), y = b.binary_conv(b.threshold(joined), 8);
    const Planned p = plan("broken words", b, {y});
    CHECK(producer(p, joined).kind == StepKind::copy);
    ProgramBuilder whole;
    const int u = whole.input(64, 4, 4), v = whole.concat({whole.relu(u), u});
    const Planned q = plan("whole words", whole, {whole.binary_conv(whole.threshold(v), 8)});
    CHECK(q.fusion.producer[v] < 0);
}

// Returns the number of parts that all steps read, which determines the overhead of planning and running them.
size_t parts_read(const Planned& p) {
    size_t parts = 0;
    for (const bmx::Group& group : p.fusion.groups) {
        for (const bmx::Operand& operand : group.reads) {
            parts += operand.parts.size();
        }
    }
    return parts;
}

// Returns the channels of an input in reverse order, each of which is a part.
int reversed_input(ProgramBuilder& b, int channels) {
    const int x = b.input(channels);
    std::vector<int> slices;
    for (int i = channels; i > 0; i--) {
        slices.push_back(b.slice(x, i - 1, i));
    }
    return b.concat(slices);
}

TEST(few_parts_are_read_in_all) {
    constexpr int kSlices = 256, kConcats = 50, kOperands = 2048;
    ProgramBuilder b;
    const int reversed = reversed_input(b, kSlices);
    std::vector<int> concats;
    for (int i = 0; i < kConcats; i++) {
        concats.push_back(b.concat(std::vector<int>(kOperands, reversed)));
    }
    const Planned p = plan("concats of concats", b, concats);
    CHECK(parts_read(p) < kConcats * kOperands + (1 << 16));
}

TEST(views_that_are_read_too_often_are_copied) {
    constexpr int kParts = 200, kReaders = 1000;
    ProgramBuilder b;
    const int reversed = reversed_input(b, kParts);
    std::vector<int> outputs;
    for (int i = 0; i < kReaders; i++) {
        outputs.push_back(b.global_avg_pool(reversed));
    }
    const Planned p = plan("many readers", b, outputs);
    CHECK(producer(p, reversed).kind == StepKind::copy && parts_read(p) < kReaders * 3);
}

TEST(steps_that_no_output_needs_are_left_out) {
    ProgramBuilder b;
    const int x = b.input(64, 8, 8);
    b.binary_conv(b.threshold(x), 64);
    const Planned p = plan("unread convolution", b, {b.relu(x)});
    bmx::Fusion fusion = p.fusion;
    bmx::eliminate_dead_groups(fusion);
    CHECK(fusion.groups.size() < p.fusion.groups.size());
    for (const bmx::Group& group : fusion.groups) {
        CHECK(group.kind != StepKind::binary_conv && group.kind != StepKind::input_pack);
    }
}

// --- placement

TEST(sums_lie_where_their_summand_lay) {
    ProgramBuilder b;
    const int x = b.relu(b.input(64, 8, 8)), y = b.add(b.binary_conv(b.threshold(x), 64), x);
    CHECK(share_a_buffer(plan("in place", b, {y}), x, y));
    CHECK(!share_a_buffer(plan("summand is an output", b, {y, x}), x, y));
    const int later = b.relu(b.concat({x, y}));
    CHECK(!share_a_buffer(plan("summand is read later", b, {later}), x, y));
}

TEST(sums_with_a_slice_lie_where_the_slice_lay) {
    ProgramBuilder b;
    const int x = b.binary_conv(b.threshold(b.input(64, 8, 8)), 64), y = b.binary_conv(b.threshold(x), 64);
    const int joined = b.concat({x, y});
    const int sum = b.add(b.slice(joined, 64, 128), b.binary_conv(b.threshold(joined), 64));
    const int result = b.concat({b.slice(joined, 0, 64), sum});
    const Planned p = plan("improvement block", b, {result});
    CHECK(share_a_buffer(p, y, sum));
    CHECK(ops_of(p, sum).size() == 3);
}

TEST(bits_for_several_convolutions_lie_side_by_side) {
    ProgramBuilder b;
    const int x = b.relu(b.input(64, 8, 8));
    const int y = b.binary_conv(b.threshold(x), 64), z = b.binary_conv(b.threshold(x), 32);
    const Planned p = plan("two comparisons", b, {y, z});
    const auto& first = p.placement.packed[p.fusion.producer[y]];
    const auto& second = p.placement.packed[p.fusion.producer[z]];
    CHECK(first.size() == 1 && second.size() == 1);
    CHECK(first[0].bits.buffer == second[0].bits.buffer && first[0].bits.first == 0 && second[0].bits.first == 2);
    CHECK(p.placement.buffers[first[0].bits.buffer].channels == 4);
    const Kinds kinds = kinds_of(p);
    CHECK(std::count(kinds.begin(), kinds.end(), StepKind::pack) == 1);
}

// --- layout

size_t chain_bytes(int operations) {
    ProgramBuilder b;
    int x = b.input(64, 4, 4);
    for (int i = 0; i < operations; i++) {
        x = b.relu(x);
    }
    case_name = "chain of " + std::to_string(operations);
    return check_plan(Planned(b.words({x}))).bytes;
}

TEST(memory_of_a_chain_does_not_grow_with_its_length) { CHECK(chain_bytes(10000) == chain_bytes(10)); }

// The peak of the bytes that buffers need at the same time.
size_t bytes_needed(const Planned& p) {
    std::vector<int64_t> change(p.fusion.groups.size() + 1);
    for (size_t i = 0; i < p.placement.buffers.size(); i++) {
        const bmx::Buffer& buffer = p.placement.buffers[i];
        const bmx::Value& map = p.program.values()[buffer.value];
        const int64_t bytes = map.height * map.width * buffer.channels * bmx::size_of(buffer.type);
        change[p.placement.live_ranges[i].first] += bytes;
        change[p.placement.live_ranges[i].last + 1] -= bytes;
    }
    int64_t held = 0, peak = 0;
    for (int64_t bytes : change) {
        held += bytes;
        peak = std::max(peak, held);
    }
    return static_cast<size_t>(peak);
}

TEST(maps_of_all_sizes_share_memory_in_a_long_program) {
    ProgramBuilder b;
    const int x = b.input(64, 4, 4);
    std::vector<int> values;
    int last = x;
    for (int i = 0; i < 3000; i++) {
        values.push_back(b.relu(b.slice(x, 0, 1 + i % 64)));
        last = b.global_avg_pool(values[i / 2]);  // with increasing live ranges
    }
    case_name = "many sizes";
    const Planned p(b.words({last}));
    CHECK(check_plan(p).bytes < bytes_needed(p) * 5 / 4);
}

// Rows are expanded side by side, each thread's followed by what kernels may read beyond a map.
TEST(scratch_of_a_binary_convolution_holds_a_map_and_what_kernels_read_ahead) {
    constexpr int height = 8, width = 4, units = 2, pad = 1;
    ProgramBuilder b;
    const int x = b.input(32 * units, height, width);
    case_name = "scratch";
    const Planned p(b.words({b.binary_conv(b.threshold(x), 16)}));
    const bmx::InstructionSet& set = bmx::instruction_sets().front();
    const bmx::Plan plan = bmx::make_plan(p.program, p.words.data(), set);
    for (int threads : {1, 2}) {
        size_t scratch = 0;
        for (const auto& step : plan.steps) {
            scratch = std::max(scratch, step->scratch_bytes(p.program.values(), threads));
        }
        const size_t pixel = units * set.binary->unit_bytes;
        const size_t rows = height / threads + 2 * pad, row = (pad + width) * pixel;
        CHECK(scratch >= threads * (rows * row + pad * pixel + bmx::kReadAhead));
        CHECK(scratch % (64 * threads) == 0);  // aligned for each thread
    }
}

// Prints what the export to C decides too, a word for each operation of which there is something to print: its number,
// then v for a view, s for a convolution of a stem, b for a bias or scale that is part of the scaling after it, and
// the range of binary sums.
void print_decisions(const Planned& p) {
    std::vector<std::string> found(p.program.operations().size());
    for (const bmx::Group& group : p.fusion.groups) {
        for (size_t k = 0; k < group.operations.size(); k++) {
            const bmx::Operation& o = p.program.operations()[group.operations[k]];
            const bool is_scaled =
                k + 1 < group.operations.size() && p.program.operations()[group.operations[k + 1]].op == Op::affine;
            if (bmx::row_of(o.op).products == bmx::Products::floats) {
                const bool is_fused = o.attributes.has_bias || bmx::row_of(o.op).weight_levels;
                found[group.operations[k]] +=
                    std::string(group.kind == StepKind::stem ? "s" : "") + (is_scaled && is_fused ? "b" : "");
            }
        }
    }
    for (int i = 0; i < static_cast<int>(found.size()); i++) {
        const bmx::Range& range = p.facts.ranges[p.program.value_of(i)];
        if (bmx::is_view(p.program, i)) {
            found[i] += "v";
        } else if (p.program.operations()[i].op == Op::binary_conv) {
            const auto text = [](double bound) { return std::to_string(static_cast<int64_t>(bound)); };
            found[i] += range.integers ? text(range.low) + ".." + text(range.high) : "halves";
        }
        if (!found[i].empty()) {
            std::cout << i << ':' << found[i] << ' ';
        }
    }
    std::cout << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
    for (const auto& test : tests) {
        test();
    }
    for (int i = 1; i < argc; i++) {
        case_name = argv[i];
        std::ifstream file(argv[i], std::ios::binary);
        const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        std::vector<int32_t> words(bytes.size() / sizeof(int32_t));
        std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(words.data()));
        const Planned planned(words);
        check_plan(planned);
        print_decisions(planned);
    }
}
