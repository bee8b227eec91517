// Team of threads for parallel work in phases, each of as many parts as there are threads.
//
// A thread begins each phase with the part of its number, because its data is likely to be in its cache, and then takes
// parts that no thread has begun. So a thread that is descheduled delays the others only if it was interrupted within a
// part. Idle threads spin for some microseconds, which is about the duration of a phase, and then sleep, which leaves
// the core to other programs.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace bmx {

class PhasedWork {
  public:
    virtual ~PhasedWork() = default;
    virtual int phases() const = 0;
    // Runs a part. It sees all writes of the parts of earlier phases.
    virtual void run(int phase, int part) noexcept = 0;
    // Called once after each phase, before any part of the next phase begins.
    virtual void ended(int /*phase*/) noexcept {}
};

// Runs work whose phases have one part on the calling thread.
inline void run_serially(PhasedWork& work) {
    for (int phase = 0; phase < work.phases(); phase++) {
        work.run(phase, 0);
        work.ended(phase);
    }
}

// A counter on whose changes threads can wait.
class Signal {
  public:
    uint32_t value() const { return value_.load(std::memory_order_acquire); }
    void advance();
    // Waits until the value differs from `seen` and returns it.
    uint32_t wait(uint32_t seen);

  private:
    bool changes_soon(uint32_t seen) const;

    std::atomic<uint32_t> value_{0};
    std::atomic<int> sleeping_{0};
};

class ThreadTeam {
  public:
    // The caller of run() is one of the threads. Throws Error if the others cannot be started.
    explicit ThreadTeam(int threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int threads() const { return static_cast<int>(parts_.size()); }

    // Not reentrant: one caller at a time.
    void run(PhasedWork& work);

  private:
    struct alignas(64) Part {  // one cache line each, against false sharing
        std::atomic<uint32_t> begun{0};
    };

    void start(int thread);
    void stop();
    void serve(int thread);
    void help(uint32_t phase, int thread);
    bool try_part(uint32_t phase, int part);
    void end_phase(uint32_t phase);

    // Phases are numbered consecutively over all runs, modulo 2^32. At the end of a run the number is advanced to a
    // phase whose parts are all marked as begun. The members that describe a run are read only by threads that have
    // begun one of its parts, so they do not change meanwhile.
    Signal phase_;
    std::vector<Part> parts_;  // the last phase in which each was begun
    std::atomic<int> unfinished_{0};
    PhasedWork* work_ = nullptr;
    uint32_t first_ = 0, last_ = 0;
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

}  // namespace bmx
