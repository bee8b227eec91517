#include "api/engine.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "api/image_work.h"
#include "program/error.h"
#include "threads/float_environment.h"
#include "threads/forking.h"
#include "threads/thread_count.h"

namespace bmx {
namespace {

constexpr size_t kMaxFreeWorkspaces = 4;  // kept per engine for later runs
constexpr size_t kPage = 4096, kHugePage = 2 << 20;

// Returns the limit in bytes of the working memory of a run.
int64_t memory_limit() {
    const char* text = std::getenv(kMemoryVariable);
    if (!text) {
        return kMaxMemory;
    }
    int64_t bytes = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), bytes);
    if (error != std::errc() || *end || bytes < 1) {
        throw Error(std::string(kMemoryVariable) + " is '" + text + "': it must be a number of bytes");
    }
    return bytes;
}

// Memory of a run. As far as it fills huge pages the system is asked for these: pixels of a map are far apart, so that
// a convolution that stores a part of their channels touches a page of 4 KB every few pixels.
class Arena {
  public:
    explicit Arena(size_t bytes)
        : alignment_{bytes < kHugePage ? kPage : kHugePage},
          data_(static_cast<uint8_t*>(::operator new(bytes, alignment_, std::nothrow))) {
        if (!data_) {
            throw Error("out of memory: a run needs " + std::to_string(bytes) + " bytes");
        }
#ifdef MADV_HUGEPAGE
        madvise(data_, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a system without them goes on without
#endif
    }
    Arena(Arena&& other) noexcept : alignment_(other.alignment_), data_(std::exchange(other.data_, nullptr)) {}
    ~Arena() { ::operator delete(data_, alignment_); }
    uint8_t* data() const { return data_; }

  private:
    std::align_val_t alignment_;
    uint8_t* data_;
};

}  // namespace

// A part of a batch: each thread computes separate images, or all threads share each image.
struct Engine::Division {
    bool by_images;
    int threads;
    int64_t begin, end;  // images

    int arenas() const { return by_images ? threads : 1; }
    int team() const { return by_images ? 1 : threads; }
};

// Threads compute separate images, which saves waiting for each other, as long as there are images for all of them.
std::vector<Engine::Division> Engine::divide(int64_t batch, int threads) {
    threads = threads_of_run(threads);
    const int64_t separate = threads > 1 ? batch / threads * threads : 0;
    std::vector<Division> divisions;
    if (separate > 0) {
        divisions.push_back({true, threads, 0, separate});
    }
    if (separate < batch) {
        divisions.push_back({false, threads, separate, batch});
    }
    return divisions;
}

// Memory for one run at a time, for a fixed input size.
struct Engine::Workspace {
    std::vector<std::pair<int64_t, int64_t>> maps;
    int team;
    Layout layout;
    std::vector<Arena> arenas;
};

// A workspace leased for the duration of a run: a free one that fits, or a new one.
class Engine::Lease {
  public:
    Lease(const Engine& engine, const InputSizes& sizes, const Division& division) : engine_(engine) {
        {
            std::lock_guard<std::mutex> lock(Forking::instance().mutex());
            for (auto& free : engine.free_) {
                if (free->maps != sizes.maps || free->team != division.team()) {
                    continue;
                }
                workspace_ = std::move(free);
                engine.free_.erase(engine.free_.begin() + (&free - engine.free_.data()));
                break;
            }
        }
        if (!workspace_) {
            workspace_.reset(
                new Workspace{sizes.maps,
                              division.team(),
                              make_layout(engine.plan_, engine.program_.infer(sizes.maps), division.team()),
                              {}});
        }
        const int64_t bytes = static_cast<int64_t>(workspace_->layout.bytes) * division.arenas();
        if (bytes > engine.memory_limit_) {
            throw Error("a run on these inputs needs " + std::to_string(bytes) + " bytes of working memory; at most " +
                        std::to_string(engine.memory_limit_) +
                        " are allowed: give smaller inputs or fewer at a time, or set the environment variable " +
                        kMemoryVariable + " to more bytes");
        }
        while (workspace_->arenas.size() < static_cast<size_t>(division.arenas())) {
            workspace_->arenas.emplace_back(workspace_->layout.bytes);
        }
    }

    ~Lease() {
        std::unique_ptr<Workspace> oldest;  // freed after the mutex is unlocked
        std::lock_guard<std::mutex> lock(Forking::instance().mutex());
        engine_.free_.push_back(std::move(workspace_));
        if (engine_.free_.size() <= kMaxFreeWorkspaces) {
            return;
        }
        oldest = std::move(engine_.free_.front());
        engine_.free_.erase(engine_.free_.begin());
    }

    const Workspace& operator*() const { return *workspace_; }

  private:
    const Engine& engine_;
    std::unique_ptr<Workspace> workspace_;
};

Engine::Engine(const int32_t* words, size_t count, Precision precision)
    : program_(words, count),
      plan_(make_plan(program_, words, chosen_instruction_set(precision))),
      pool_(ThreadPool::shared()),
      memory_limit_(memory_limit()) {
    free_.reserve(kMaxFreeWorkspaces + 1);  // returning a workspace must not throw
}

Engine::~Engine() = default;

void Engine::run_divided(const InputSizes& sizes, const float* const* inputs, float* const* outputs,
                         const Division& division, double* seconds) const {
    const DefaultFloatEnvironment environment;
    const Lease lease(*this, sizes, division);
    const Workspace& workspace = *lease;
    ThreadPool::Lease team(*pool_, division.threads);
    const Images images(program_, workspace.layout.values, sizes.batch, inputs, outputs);
    std::vector<ImageWork> works;
    for (int i = 0; i < division.arenas(); i++) {
        works.emplace_back(plan_, workspace.layout, division.team(), workspace.arenas[i].data(), seconds);
    }
    if (division.by_images) {
        BatchWork work(images, division.begin, division.end, works);
        team.run(work);
        return;
    }
    for (int64_t image = division.begin; image < division.end; image++) {
        works[0].choose(images, image);
        team.run(works[0]);
    }
}

void Engine::run(const InputSizes& sizes, const float* const* inputs, float* const* outputs, int threads) const {
    for (const Division& division : divide(sizes.batch, threads)) {
        run_divided(sizes, inputs, outputs, division, nullptr);
    }
}

std::vector<StepReport> Engine::profile(const InputSizes& sizes, const float* const* inputs, float* const* outputs,
                                        int threads) const {
    std::vector<double> seconds(plan_.steps.size());
    run_divided(sizes, inputs, outputs, {false, threads_of_run(threads), 0, sizes.batch}, seconds.data());
    const std::vector<Value> values = program_.infer(sizes.maps);
    std::vector<StepReport> reports;
    for (size_t i = 0; i < plan_.steps.size(); i++) {
        reports.push_back(report(*plan_.steps[i], values, sizes.batch));
    }
    for (size_t i = 0; i < reports.size(); i++) {
        reports[i].seconds = seconds[i];
    }
    return reports;
}

StepReport Engine::report(const Step& step, const std::vector<Value>& values, int64_t batch) const {
    StepReport report = {step.operations.empty() ? "layout" : "", 0, 0, MacKind::floats};
    for (int i : step.operations) {
        const Operation& operation = program_.operations()[i];
        const Value& result = values[program_.value_of(i)];
        report.name += (report.name.empty() ? "" : "+") + std::string(name_of(operation.op));
        const Attributes& a = operation.attributes;
        if (row_of(operation.op).shape == ShapeRule::product_shape) {
            report.macs += batch * result.elements() * (values[operation.inputs[0]].channels / a.heads);
        }
        if (!operation.convolves()) {
            continue;
        }
        report.macs += batch * result.elements() * (values[operation.inputs[0]].channels / a.groups) * a.taps();
        const Products products = row_of(operation.op).products;
        report.kind = products == Products::binary ? MacKind::binary
                      : products == Products::int8 ? MacKind::int8
                                                   : MacKind::floats;
    }
    if (!step.operations.empty()) {
        const Value& result = values[program_.value_of(step.operations.back())];
        report.name += " " + std::to_string(result.channels);
        if (!result.flat) {
            report.name += "x" + std::to_string(result.height) + "x" + std::to_string(result.width);
        }
    }
    return report;
}

int64_t Engine::working_memory(const InputSizes& sizes, int threads) const {
    int64_t bytes = 0;
    for (const Division& division : divide(sizes.batch, threads)) {
        const Layout layout = make_layout(plan_, program_.infer(sizes.maps), division.team());
        bytes += static_cast<int64_t>(layout.bytes) * division.arenas();
    }
    return bytes;
}

}  // namespace bmx
