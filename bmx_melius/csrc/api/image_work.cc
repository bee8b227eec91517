#include "api/image_work.h"

#include <chrono>

namespace bmx {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Images::Images(const Program& program, const std::vector<Value>& values, int64_t batch, const float* const* inputs,
               float* const* outputs)
    : inputs_each_(program.inputs().size()), outputs_each_(program.outputs().size()) {
    inputs_.reserve(batch * inputs_each_);
    outputs_.reserve(batch * outputs_each_);
    for (int64_t image = 0; image < batch; image++) {
        for (size_t i = 0; i < inputs_each_; i++) {
            inputs_.push_back(inputs[i] + image * values[i].elements());
        }
        for (size_t i = 0; i < outputs_each_; i++) {
            outputs_.push_back(outputs[i] + image * values[program.outputs()[i]].elements());
        }
    }
}

ImageWork::ImageWork(const Plan& plan, const Layout& layout, int threads, uint8_t* arena, double* seconds)
    : steps_(plan.steps),
      layout_(layout),
      memory_{&layout.values, &plan.buffers, &layout.buffers, arena, nullptr, nullptr, nullptr},
      threads_(threads),
      seconds_(seconds) {
    for (size_t step = 0; step < steps_.size(); step++) {
        const int phases = steps_[step]->phases(layout.values, threads);
        for (int phase = 0; phase < phases; phase++) {
            phases_.push_back({step, phase});
        }
    }
}

void ImageWork::choose(const Images& images, int64_t image) {
    memory_.inputs = images.inputs(image);
    memory_.outputs = images.outputs(image);
    begin_ = seconds_ ? now() : 0;
}

void ImageWork::run(int phase, int part) noexcept {
    const auto [step, phase_of_step] = phases_[phase];
    Memory memory = memory_;
    memory.scratch = memory.arena + layout_.scratches[step];
    steps_[step]->run(memory, {part, threads_}, phase_of_step);
}

void ImageWork::ended(int phase) noexcept {
    if (!seconds_) {
        return;
    }
    const double end = now();
    seconds_[phases_[phase].step] += end - begin_;
    begin_ = end;
}

void BatchWork::run(int, int part) noexcept {
    for (int64_t image = next_++; image < end_; image = next_++) {
        works_[part].choose(images_, image);
        run_serially(works_[part]);
    }
}

}  // namespace bmx
